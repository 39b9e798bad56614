import json
from dataclasses import asdict

import pytest

from debertakit.data.examples import TextExample
from debertakit.data.pairs import Pair
from debertakit.finetuning.comparison import p_value, write_comparison
from debertakit.finetuning.evaluation import Evaluation, compare_runs, write_predictions
from debertakit.tasks.decisions import Prediction


def run(folder, wrong, **settings):
    """A finished run: the folder's predictions, of which the first ``wrong`` are wrong."""
    folder.mkdir(parents=True)
    record = {"task": "own", "kind": "single-label", "metric": "accuracy", "labels": ["x", "y"], "seed": 0, **settings}
    (folder / "run.json").write_text(json.dumps(record))
    examples = [TextExample(str(i), f"text <{i}>", None, "x", line=i + 2) for i in range(40)]
    predictions = [Prediction("y", [0.1, 0.9]) if i < wrong else Prediction("x", [0.7, 0.3]) for i in range(40)]
    write_predictions(folder / "predictions-dev.jsonl", Evaluation(examples, predictions, {"accuracy": 0.0}, 0.5))
    return folder


def page(tmp_path, a, b):
    write_comparison(tmp_path / "page.html", a, b, compare_runs(a, b, resamples=100), "dev")
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_says_who_is_better_and_where_they_differ(tmp_path):
    html = page(tmp_path, run(tmp_path / "high", 2, lr=1e-4), run(tmp_path / "low", 20, lr=1e-3))
    assert "high is better (p = " in html
    assert "high 更好（p = " in html
    assert "accuracy, high minus low: +45.0; 95 % interval" in html
    assert '<th scope="row">lr</th>' in html
    assert "18 examples have different predictions" in html
    assert "y (90.0 %)" in html
    assert "text &lt;5&gt;" in html
    assert "<dd>7</dd>" in html  # the line of text 5
    assert "text &lt;30&gt;" not in html  # both are right


def test_says_that_there_is_no_difference(tmp_path):
    html = page(tmp_path, run(tmp_path / "one" / "run", 5), run(tmp_path / "two" / "run", 5))
    assert "no significant difference (p = 1)" in html
    assert "The runs have the same settings." in html
    assert f"<title>{tmp_path}/one/run / {tmp_path}/two/run</title>" in html  # the names alone are the same


@pytest.mark.parametrize("kind", ["seq2seq"])
def test_texts(tmp_path, kind):
    pytest.importorskip("sacrebleu")
    for name, text in (("a", "the cat sat on the mat"), ("b", "a dog")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"task": "translation", "kind": kind, "metric": "bleu"}))
        lines = [{"example": Pair("源", "the cat sat on the mat")._asdict(), "prediction": text} for _ in range(3)]
        (tmp_path / name / "predictions-dev.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    html = page(tmp_path, tmp_path / "a", tmp_path / "b")
    assert "a dog" in html
    assert "源" in html


def test_a_small_p_is_not_zero():
    assert [p_value(0.5), p_value(0.00001)] == ["0.5000", "< 0.0001"]


def test_a_line_does_not_make_examples_different():
    assert TextExample("0", "a", line=3) == TextExample("0", "a")
    assert asdict(TextExample("0", "a", line=3))["line"] == 3
