import json
from pathlib import Path

import pytest

from debertakit.data.examples import Question
from debertakit.data.squad import read_squad
from debertakit.tasks.suites import task

CONTEXT = "  The river Elbe flows north; the Elbe is long, and Dresden lies on it."


def squad(path, *questions, context=CONTEXT):
    """(id, answers or None) in SQuAD's format."""
    qas = []
    for identity, answers in questions:
        qa = {"id": identity, "question": f"Question {identity}? "}
        if answers is not None:
            qa["answers"] = [{"text": text, "answer_start": start} for text, start in answers]
        qas.append(qa)
    path.write_text(
        json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]})
    )
    return path


def good(n=40):
    return [(f"g{i}", [("Dresden", CONTEXT.index("Dresden"))]) for i in range(n)]


def test_versions_side_by_side(tmp_path):
    squad(tmp_path / "train-v1.1.json", ("a", [("river", CONTEXT.index("river"))]))
    squad(tmp_path / "train-v2.0.json", ("b", []))
    squad(tmp_path / "dev-v2.0.json", ("c", [("Dresden", CONTEXT.index("Dresden"))] * 3))
    squad(tmp_path / "test.json", ("d", None))
    splits = task("squad2").read(tmp_path)
    assert splits["train"] == [Question("b", "Question b?", CONTEXT, (), ())]
    assert splits["dev"][0].answers == ("Dresden",) * 3
    assert splits["test"] == [Question("d", "Question d?", CONTEXT)]
    assert task("squad").read(tmp_path)["train"][0].starts == (CONTEXT.index("river"),)
    for answer, start in zip(splits["dev"][0].answers, splits["dev"][0].starts, strict=True):
        assert splits["dev"][0].context.startswith(answer, start)  # the context keeps its blanks


def test_plausible_answers_of_impossible_questions_are_not_answers(tmp_path):
    path = squad(tmp_path / "a.json", ("x", [("Dresden", 5)]))
    data = json.loads(path.read_text())
    data["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    path.write_text(json.dumps(data))
    assert read_squad(path, train=True)[0].answers == ()


def test_a_wrong_offset_is_corrected_if_the_answer_occurs_once(tmp_path, caplog):
    path = squad(
        tmp_path / "a.json", *good(), ("moved", [("Dresden", 3)]), ("twice", [("Elbe", 3)]), ("gone", [("Rhine", 3)])
    )
    examples = {e.id: e for e in read_squad(path, train=True)}
    assert examples["moved"].starts == (CONTEXT.index("Dresden"),)
    assert set(examples) == {f"g{i}" for i in range(40)} | {"moved"}
    assert "a.json, question moved: answer at a wrong offset, corrected" in caplog.text
    assert "a.json, question gone: answer not in the context ('Rhine'); skipped" in caplog.text


def test_for_scoring_an_answer_that_is_not_in_the_context_is_kept(tmp_path):
    path = squad(tmp_path / "a.json", ("x", [("Rhine", 3), ("Dresden", 0)]), ("y", [("Rhine", -1)]))
    x, y = read_squad(path, train=False)
    assert (x.answers, x.starts) == (("Dresden", "Rhine"), (CONTEXT.index("Dresden"), -1))  # with a place first
    assert (y.answers, y.starts) == (("Rhine",), (-1,))


def test_the_hubs_dev_set_is_read_for_scoring(monkeypatch):
    """Like a dev file, it keeps answers that are not in the context."""
    import datasets

    def row(text, start):
        return {"id": "x", "question": "?", "context": CONTEXT, "answers": {"text": [text], "answer_start": [start]}}

    hub = {"train": [row("Dresden", CONTEXT.index("Dresden"))], "validation": [row("Rhine", 3)]}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: hub)
    splits = task("squad").read(Path("hf"))
    assert splits["train"][0].answers == ("Dresden",)
    assert (splits["dev"][0].answers, splits["dev"][0].starts) == (("Rhine",), (-1,))


def test_a_file_with_many_bad_questions_is_rejected(tmp_path):
    path = squad(tmp_path / "a.json", *good(9), ("gone", [("Rhine", 3)]))
    with pytest.raises(
        ValueError, match=r"question gone: answer not in the context \('Rhine'\); 1 of 10 rows .* more than 5%"
    ):
        read_squad(path, train=True)


def test_squad2_read_as_squad(tmp_path):
    squad(tmp_path / "train.json", ("x", []))
    with pytest.raises(ValueError, match="no answer \\(only squad2 has questions without an answer"):
        task("squad").read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not in SQuAD's format; expected an object with a list 'data'"),
        ('{"data": [{"title": "x"}]}', "question in article 1: not in SQuAD's format \\(KeyError 'paragraphs'\\)"),
        ('{"data": []}', "the file has no examples"),
        ('{"data": [{"paragraphs": [{"context": 3, "qas": [{"id": 1, "question": "?"}]}]}]}', "must be texts"),
    ],
)
def test_other_files(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=f"a.json.*{message}"):
        read_squad(tmp_path / "a.json", train=True)


def test_predictions(tmp_path):
    task("squad2").write(tmp_path / "p.json", [Question("a", "?", "c"), Question("b", "?", "c")], ["é", ""])
    assert json.loads((tmp_path / "p.json").read_text(encoding="utf-8")) == {"a": "é", "b": ""}
