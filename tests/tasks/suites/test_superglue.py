import json

import pytest

from debertakit.data.examples import Choice, TextExample
from debertakit.tasks.suites import task
from tests.material import jsonl


def written(name, tmp_path, examples, predictions):
    out = tmp_path / task(name).files["test"]
    task(name).write(out, examples, predictions)
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_boolq_of_the_archive_and_of_the_hub(tmp_path):
    row = {"question": "is it", "passage": "It is.", "idx": 0}
    jsonl(tmp_path / "BoolQ" / "train.jsonl", [{**row, "label": True}, {**row, "label": 0}])
    jsonl(tmp_path / "BoolQ" / "val.jsonl", [{**row, "label": False}])
    jsonl(tmp_path / "BoolQ" / "test.jsonl", [row])
    splits = task("boolq").read(tmp_path)
    assert splits["train"][0] == TextExample("0", "It is.", "is it", "true")
    assert [e.label for e in (*splits["train"], *splits["dev"], *splits["test"])] == ["true", "false", "false", None]
    assert written("boolq", tmp_path, splits["test"], ["true"]) == [{"idx": 0, "label": "true"}]


def test_cb_and_rte(tmp_path):
    jsonl(tmp_path / "train.jsonl", [{"premise": "A", "hypothesis": "B", "label": "contradiction", "idx": 5}])
    assert task("cb").read(tmp_path)["train"] == [TextExample("5", "A", "B", "contradiction")]
    jsonl(tmp_path / "train.jsonl", [{"premise": "A", "hypothesis": "B", "label": "not_entailment", "idx": 5}])
    assert task("superglue-rte").read(tmp_path)["train"] == [TextExample("5", "A", "B", "not_entailment")]


def test_copa(tmp_path):
    row = {"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect", "idx": 3}
    jsonl(tmp_path / "train.jsonl", [{**row, "label": 0}, {**row, "label": 1, "question": "cause"}])
    jsonl(tmp_path / "test.jsonl", [row, {**row, "idx": 4, "label": -1}])
    splits = task("copa").read(tmp_path)
    assert splits["train"][0] == Choice("3", "It rained.", "What happened as a result?", ("Wet.", "Dry."), 0)
    assert splits["train"][1].pair == "What was the cause?"
    assert [e.label for e in splits["test"]] == [None, None]
    assert written("copa", tmp_path, splits["test"], [1, 0]) == [{"idx": 3, "label": 1}, {"idx": 4, "label": 0}]
    assert task("copa").score(splits["train"], [0, 0]) == {"accuracy": 50}


@pytest.mark.parametrize(
    ("change", "message"), [({"question": "why"}, "neither cause"), ({"label": 2}, "neither 0 nor 1")]
)
def test_copa_refuses(tmp_path, change, message):
    row = {"premise": "P", "choice1": "A", "choice2": "B", "question": "effect", "idx": 3, "label": 1}
    jsonl(tmp_path / "train.jsonl", [{**row, **change}])
    with pytest.raises(ValueError, match=f"train.jsonl, line 1: .*{message}"):
        task("copa").read(tmp_path)


def test_wic_of_the_archive_and_of_a_copy_in_one_text(tmp_path):
    row = {"word": "go", "sentence1": "Go on.", "sentence2": "We went.", "idx": 0, "label": False, "start1": 0}
    copy = {"label": 1, "text": "Word: go. Sentence 1: Go on. Sentence 2: We went."}
    jsonl(tmp_path / "train.jsonl", [row, copy])
    jsonl(tmp_path / "val.jsonl", [row])
    train = task("wic").read(tmp_path)["train"]
    assert [(e.text, e.pair, e.label) for e in train] == [
        ("go: Go on.", "We went.", "false"),
        ("go: Go on.", "We went.", "true"),
    ]


def test_wsc_marks_the_pronoun_that_is_meant(tmp_path):
    target = {"span1_text": "Mark", "span1_index": 0, "span2_text": "him", "span2_index": 6}
    text = "Mark saw him, and Pete saw him."
    jsonl(tmp_path / "train.jsonl", [{"text": text, "target": target, "idx": 0, "label": True}])
    jsonl(tmp_path / "valid.jsonl", [{"text": text, **target, "span2_index": 2, "idx": 1, "label": 0}])
    splits = task("wsc").read(tmp_path)
    assert splits["train"] == [
        TextExample("0", "Mark saw him, and Pete saw *him*.", "Mark saw him, and Pete saw Mark.", "true")
    ]
    assert splits["dev"][0].text == "Mark saw *him*, and Pete saw him."
    assert written("wsc", tmp_path, splits["dev"], ["true"]) == [{"idx": 1, "label": "True"}]


def test_wsc_without_the_pronoun(tmp_path):
    row = {"text": "Mark slept.", "span1_text": "Mark", "span2_text": "he", "span2_index": 1, "label": 0}
    jsonl(tmp_path / "train.jsonl", [row])
    with pytest.raises(ValueError, match=r"line 1: the pronoun is not in the text \('he'\)"):
        task("wsc").read(tmp_path)


def test_wsc_with_a_target_that_is_none(tmp_path, caplog):
    row = {"text": "Mark saw him.", "span1_text": "Mark", "span2_text": "him", "span2_index": 2, "label": 0}
    jsonl(tmp_path / "train.jsonl", [*[row] * 40, {"text": "Mark saw him.", "target": None, "label": 0}])
    assert len(task("wsc").read(tmp_path)["train"]) == 40
    assert "line 41: no text, span1_text, span2_text or span2_index" in caplog.text


def test_multirc_is_judged_answer_by_answer_and_written_nested(tmp_path):
    def passage(idx, labels):
        answers = [
            [{"text": f"a{i}", "idx": 10 + i, **({"label": x} if x is not None else {})} for i, x in enumerate(q)]
            for q in labels
        ]
        questions = [{"question": f"Q{i}?", "idx": i, "answers": a} for i, a in enumerate(answers)]
        return {"idx": idx, "passage": {"text": "P.", "questions": questions}}

    jsonl(tmp_path / "train.jsonl", [passage(0, [[1, 0], [1]])])
    jsonl(tmp_path / "test.jsonl", [passage(7, [[None, None], [None]])])
    splits = task("multirc").read(tmp_path)
    assert splits["train"][1] == TextExample("0-0-11", "P.", "Q0? a1", "0", "0-0")
    assert task("multirc").score(splits["train"], ["1", "0", "0"])["exact"] == 50
    assert written("multirc", tmp_path, splits["test"], ["1", "0", "1"]) == [
        {
            "idx": 7,
            "passage": {
                "questions": [
                    {"idx": 0, "answers": [{"idx": 10, "label": 1}, {"idx": 11, "label": 0}]},
                    {"idx": 1, "answers": [{"idx": 10, "label": 1}]},
                ]
            },
        }
    ]


def test_record_fills_the_blank_with_entities(tmp_path):
    text = "Bonn is small.\n@highlight\nBerlin grew, said Anna of Berlin"
    entities = [{"start": text.index(n), "end": text.index(n) + len(n) - 1} for n in ("Berlin", "Bonn", "Anna")]
    entities.append({"start": len(text) - 6, "end": len(text) - 1})  # Berlin again
    query = {"query": "@placeholder grew.", "idx": 5, "answers": [{"text": "Berlin"}, {"text": "Anna"}]}
    row = {"idx": 0, "passage": {"text": text, "entities": entities}, "qas": [query]}
    jsonl(tmp_path / "train.jsonl", [row])
    jsonl(tmp_path / "val.jsonl", [row])
    jsonl(tmp_path / "test.jsonl", [{**row, "qas": [{"query": "@placeholder grew.", "idx": 6}]}])
    splits = task("record").read(tmp_path)
    (dev,) = splits["dev"]
    assert dev.names == ("Bonn", "Berlin", "Anna")
    assert dev.options == ("Bonn grew.", "Berlin grew.", "Anna grew.")
    assert dev.text == "Bonn is small. Berlin grew, said Anna of Berlin"
    assert (dev.label, dev.answers) == (1, ("Berlin", "Anna"))
    assert task("record").score([dev], [2])["exact"] == 100
    (train,) = splits["train"]  # another right answer would be taught as wrong
    assert (train.names, train.label) == (("Bonn", "Berlin"), 1)
    assert written("record", tmp_path, splits["test"], [2]) == [{"idx": 6, "label": "Anna"}]


def test_a_passage_of_another_form(tmp_path):
    jsonl(tmp_path / "train.jsonl", [{"idx": 0, "text": "no passage"}])
    for name in ("multirc", "record"):
        with pytest.raises(ValueError, match=r"train.jsonl, line 1: unexpected structure \(KeyError 'passage'\)"):
            task(name).read(tmp_path)
