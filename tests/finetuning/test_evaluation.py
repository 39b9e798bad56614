"""A model and the data that it is to be scored on must be of one task."""

import json
from dataclasses import replace

import pytest

from debertakit import evaluate, finetune
from debertakit.data.examples import TextExample
from debertakit.finetuning.evaluation import (
    Evaluation,
    check_packages,
    labels_for,
    load_evaluator,
    read_predictions,
    write_predictions,
)
from debertakit.loading import describe, load_for_training
from debertakit.tasks.decisions import Prediction
from debertakit.tasks.suites import task
from tests import tiny
from tests.material import lines, tsv


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """kind, labels -> a model with such a head."""
    pretrained = tiny.deberta(tmp_path_factory.mktemp("pretrained"))

    def make(kind, labels=()):
        folder = tmp_path_factory.mktemp("model")
        load_for_training(pretrained, kind, labels).save_pretrained(folder)
        tiny.tokenizer().save_pretrained(folder)
        return folder

    return make


@pytest.mark.parametrize("kind", ["single-label", "multi-label", "regression"])
def test_heads_of_one_form_are_of_three_kinds(kind, made):
    model = made(kind, ("0", "1") if kind != "regression" else ())
    for other in ("single-label", "multi-label", "regression"):
        if other == kind:
            assert evaluate(model, task=tiny.task(kind)).scores
        else:
            with pytest.raises(ValueError, match=f"is a model for {kind}, but tiny-{other} is a {other} task"):
                evaluate(model, task=tiny.task(other))


def test_labels_are_matched_in_any_case_and_order(made):
    rte = replace(task("rte"), read=lambda _: {"dev": [TextExample("0", "the film", "it was", "entailment")]})
    model = made("single-label", ("Not_Entailment", "ENTAILMENT"))
    assert labels_for(describe(model), rte) == ("not_entailment", "entailment")
    assert load_evaluator(model, rte).encoder.labels == ("not_entailment", "entailment")
    assert set(evaluate(model, task=rte, data=".").values) <= {"entailment", "not_entailment"}
    other = made("single-label", ("bad", "good"))
    with pytest.raises(ValueError, match="has the labels bad, good, but rte has entailment, not_entailment") as told:
        load_evaluator(other, rte)
    assert "\n" not in str(told.value)


def test_rows_of_a_file_whose_label_the_model_lacks(made, tmp_path, caplog):
    model = made("single-label", ("bad", "good"))
    rows = [("a", "y"), *[(f"film {i}", "good" if i % 2 else "bad") for i in range(40)], ("film", "neither")]
    found = evaluate(model, file=tsv(tmp_path / "dev.tsv", *rows), text="a", label="y")
    assert len(found.examples) == 40
    assert found.scores
    assert "dev.tsv, line 42: label unseen in training ('neither'); skipped" in caplog.text
    conll = lines(tmp_path / "dev.conll", "anna B-PER", "lives O")
    with pytest.raises(ValueError, match=r"is a model for single-label, but .*dev\.conll is read as tagging"):
        evaluate(model, file=conll)


def test_tags_of_a_file(made, tmp_path, caplog):
    model = made("tagging", ("O", "B-PER", "B-LOC"))
    file = lines(tmp_path / "dev.conll", *["anna B-PER", "bob I-PER", "lives O", ""] * 30, "rome B-ORG")
    assert len(evaluate(model, file=file).examples) == 30
    assert "sentence 31: label unseen in training (B-ORG); skipped" in caplog.text


def test_questions_of_a_file_are_read_to_score_by(made, tmp_path):
    """Questions whose answer is not in the context count as well."""
    qas = [{"id": "1", "question": "where ?", "answers": [{"text": "elsewhere", "answer_start": -1}]}]
    (tmp_path / "q.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "in rome", "qas": qas}]}]}))
    found = evaluate(made("qa"), file=tmp_path / "q.json")
    assert found.examples[0].answers == ("elsewhere",)
    assert found.scores["f1"] == 0


def test_lines_of_predictions_end_at_line_ends_only(tmp_path):
    text = "one\u2028two\u0085three\u000bfour"
    examples = [TextExample("0", text, None, "x"), TextExample("1", "b", None, "x")]
    path = tmp_path / "predictions-dev.jsonl"
    write_predictions(path, Evaluation(examples, [Prediction("x"), Prediction("x")], {}, 0.0))
    assert read_predictions(path, "single-label") == (examples, ["x", "x"])


def test_what_would_be_ignored_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"unknown option of finetune\(\): epoch$"):
        finetune("nothing", tmp_path / "run", train=lines(tmp_path / "a.csv", "text,label", "x,y"), epoch=3)
    with pytest.raises(ValueError, match="unknown option for a benchmark: text"):
        evaluate("nowhere", task="rte", data="x", text="a")
    with pytest.raises(ValueError, match="data is only for a benchmark"):
        evaluate("nowhere", file="a.csv", data="x", text="a", label="y")


def test_a_package_of_one_task_is_named_before_the_work(monkeypatch):
    monkeypatch.setattr("debertakit.finetuning.evaluation.find_spec", lambda name: None if name == "nltk" else name)
    check_packages("rte")
    for named in ("cmrc2018", task("cmrc2018")):
        with pytest.raises(ImportError, match="needs nltk"):
            check_packages(named)
