import json

import pytest

from debertakit.data.examples import Tagged, TextExample
from debertakit.tasks.suites import task
from tests.material import jsonl, lines, tsv


def test_tnews_of_clue_and_in_two_columns(tmp_path):
    row = {"label": "102", "label_desc": "news_entertainment", "sentence": "好看", "keywords": ""}
    jsonl(tmp_path / "clue" / "train.json", [row])
    jsonl(tmp_path / "clue" / "test.json", [{"id": 7, "sentence": "好看", "keywords": ""}])
    tsv(tmp_path / "two" / "train.tsv", ('"好看"', "news_entertainment"), ("好看", "116"))
    splits = task("tnews").read(tmp_path / "clue")
    assert splits == {
        "train": [TextExample("0", "好看", label="news_entertainment")],
        "test": [TextExample("7", "好看")],
    }
    assert [(e.text, e.label) for e in task("tnews").read(tmp_path / "two")["train"]] == [
        ('"好看"', "news_entertainment"),
        ("好看", "news_game"),
    ]
    out = tmp_path / task("tnews").files["test"]
    task("tnews").write(out, splits["test"], ["news_game"])
    assert out.name == "tnews11_predict.json"
    assert json.loads(out.read_text()) == {"id": 7, "label": "116"}


def test_ocnli_leaves_out_what_annotators_did_not_agree_on(tmp_path, caplog):
    rows = [{"sentence1": "甲", "sentence2": "乙", "label": "neutral", "id": i} for i in range(40)]
    jsonl(tmp_path / "train.50k.json", [*rows, {**rows[0], "label": "-"}])
    assert len(task("ocnli").read(tmp_path)["train"]) == 40
    assert "line 41: label '-': the annotators did not agree; skipped" in caplog.text


def test_afqmc(tmp_path):
    jsonl(tmp_path / "train.json", [{"sentence1": "甲", "sentence2": "乙", "label": "0"}])
    assert task("afqmc").read(tmp_path)["train"] == [TextExample("0", "甲", "乙", "0")]


def test_chnsenticorp_with_and_without_header(tmp_path):
    tsv(tmp_path / "train.tsv", ("房间太小", "negative"), ("很好", "positive"))
    tsv(tmp_path / "dev.tsv", ("label", "text_a"), (1, "很好"))
    tsv(tmp_path / "test.tsv", ("qid", "text_a"), (3, "一般"))
    splits = task("chnsenticorp").read(tmp_path)
    assert [e.label for e in splits["train"] + splits["dev"]] == ["negative", "positive", "positive"]
    assert splits["test"] == [TextExample("3", "一般")]
    task("chnsenticorp").write(tmp_path / "out", splits["test"], ["positive"])
    assert (tmp_path / "out").read_text() == "qid\tlabel\n3\t1\n"


def ner(text, label):
    return {"text": text, "label": label}


def test_cluener_reads_objects_on_many_lines_and_writes_them_back(tmp_path):
    first = ner("浙商银行叶老桂", {"name": {"叶老桂": [[4, 6]]}, "company": {"浙商银行": [[0, 3]]}})
    text = (
        json.dumps(first, ensure_ascii=False, indent=2) + "\n" + json.dumps(ner("无", {}), ensure_ascii=False, indent=2)
    )
    lines(tmp_path / "train.json", text)
    train = task("cluener").read(tmp_path)["train"]
    assert train[0].words == tuple("浙商银行叶老桂")
    assert train[0].tags == ("B-company", *["I-company"] * 3, "B-name", "I-name", "I-name")
    assert train[1] == Tagged("1", ("无",), ("O",))
    assert {tag for e in train for tag in e.tags} <= set(task("cluener").labels)
    task("cluener").write(tmp_path / "out.json", train, [e.tags for e in train])
    rows = [json.loads(row) for row in (tmp_path / "out.json").read_text(encoding="utf-8").splitlines()]
    assert rows == [{"id": 0, **first}, {"id": 1, **ner("无", {})}]


def test_cluener_entities_out_of_place_or_inside_another(tmp_path, caplog):
    wrong = {"name": {"叶": [[0, 0]]}}
    nested = {"company": {"浙商": [[0, 1]], "浙商银行": [[0, 3]]}}
    jsonl(tmp_path / "train.json", [ner("浙商银行", wrong), ner("浙商银行", nested)])
    first, second = task("cluener").read(tmp_path)["train"]
    assert first.tags == ("O",) * 4
    assert second.tags == ("B-company", *["I-company"] * 3)
    assert "line 1: entity at a wrong offset, dropped ('叶')" in caplog.text
    assert "line 2: entity that overlaps a longer one, dropped ('浙商')" in caplog.text


def test_broken_objects_cost_only_themselves(tmp_path, caplog):
    good = json.dumps(ner("好", {}), indent=1)
    lines(tmp_path / "train.json", *[good] * 20, '{\n "text": "坏",\n "label": {]\n}', *[good] * 10)
    assert len(task("cluener").read(tmp_path)["train"]) == 30
    assert "train.json, line 83: not JSON" in caplog.text  # 20 objects of 4 lines, and the third of the broken one


def test_a_label_of_another_form(tmp_path):
    jsonl(tmp_path / "train.json", [ner("好", ["name"])])
    with pytest.raises(ValueError, match=r"line 1: not {type: {text"):
        task("cluener").read(tmp_path)


def test_cmrc_has_two_dev_sets(tmp_path):
    qas = [{"id": "DEV_0_QUERY_0", "question": "谁？", "answers": [{"text": "光荣", "answer_start": 2}]}]
    data = {"data": [{"paragraphs": [{"context": "是由光荣开发", "qas": qas}]}]}
    for name in ("cmrc2018_train", "cmrc2018_dev", "cmrc2018_trial"):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    splits = task("cmrc2018").read(tmp_path)
    assert set(splits) == {"train", "dev", "dev-trial"}
    assert task("cmrc2018").score(splits["dev"], ["由光荣"])["f1"] == pytest.approx(80)
