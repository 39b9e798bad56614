import json
import re

import numpy as np
import pytest

from debertakit.data.examples import Choice, Question, Tagged, TextExample
from debertakit.finetuning.charts import interval_bar
from debertakit.finetuning.evaluation import Evaluation
from debertakit.finetuning.rendering import table
from debertakit.finetuning.report import write_report, write_summary
from debertakit.finetuning.sections import confusion, errors, expected_calibration_error, per_class
from debertakit.finetuning.verdict import Verdict
from debertakit.tasks.decisions import Prediction, Span

RECORD = {
    "model": "somewhere/tiny", "task": "t<b>", "kind": "single-label", "metric": "accuracy", "labels": ["x", "好"],
    "seed": 0, "train_examples": 10, "epochs": 2.0, "batch_size": 8, "lr": 1e-3, "max_length": 64, "sift": True,
    "sift_lambda": 5.0,
}  # fmt: skip
METRICS = {"seconds": 3.0, "dev": {"accuracy": 50.0}}
HISTORY = [{"step": 1, "loss": 0.7, "epoch": 0.5}, {"step": 2, "eval_loss": 0.6, "eval_accuracy": 50.0, "epoch": 1.0}]
NASTY = "<script>alert(1)</script> | 很好 `x`\nline"


def report(tmp_path, evaluation, labels=("x", "好"), kind="single-label"):
    write_report(tmp_path, {**RECORD, "kind": kind}, METRICS, HISTORY, errors(kind, evaluation, labels))
    return (tmp_path / "report.html").read_text(encoding="utf-8"), (tmp_path / "report.md").read_text(encoding="utf-8")


def test_users_text_is_shown_and_does_nothing(tmp_path):
    examples = [TextExample("0", NASTY, None, "好"), TextExample("1", "fine", "pair", "x")]
    predictions = [Prediction("x", [0.9, 0.1]), Prediction("x", [0.8, 0.2])]
    html, markdown = report(tmp_path, Evaluation(examples, predictions, {"accuracy": 50.0}, 0.5))
    assert "<script>alert" not in html
    assert html.count("<script") == 1  # the page's own: the browser's language
    assert "&lt;script&gt;alert(1)&lt;/script&gt; | 很好" in html
    assert "<script" not in markdown
    assert "\\| 很好" in markdown
    assert "t&lt;b&gt;" in html
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 4, 5, 6)
    assert html.count("<svg") == 3  # loss, dev score, calibration
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](http[^\"']+)", html)


def test_what_it_holds_for_classes(tmp_path):
    examples = [TextExample(str(i), f"text {i}", None, "x" if i < 6 else "好") for i in range(10)]
    guesses = ["x"] * 5 + ["好"] + ["x"] + ["好"] * 3
    predictions = [Prediction(g, [0.7, 0.3] if g == "x" else [0.2, 0.8]) for g in guesses]
    html, markdown = report(tmp_path, Evaluation(examples, predictions, {"accuracy": 80.0}, 0.5))
    assert "| x | 5 | 1 |" in markdown
    assert "| 好 | 1 | 3 |" in markdown
    assert "| x | 83.33 | 83.33 | 83.33 | 6 |" in markdown
    assert "| 5 | x | 好 | 80.0 % | text 5 |" in markdown
    assert "text 0" not in markdown  # right, so not among the worst
    assert "Training took 3 s" in html


def test_classes_as_scikit_learn_counts_them():
    from sklearn.metrics import precision_recall_fscore_support

    truth, guess = np.random.default_rng(0).random((2, 30, 4)) < 0.4
    guess[:, 2], truth[:, 3] = False, False  # never predicted, never there
    expected = precision_recall_fscore_support(truth, guess, average=None, zero_division=0)
    found = np.array([row[1:] for row in per_class(truth, guess, ("a", "b", "c", "d")).rows]).T
    np.testing.assert_allclose(found, [*(100 * figures for figures in expected[:3]), expected[3]])


def test_calibration_by_hand():
    confidence, right = np.array([0.95, 0.91, 0.61, 0.69, 1.0]), np.array([1, 0, 1, 1, 1])
    ece, rows = expected_calibration_error(confidence, right)
    expected = (2 * abs(0.65 - 1) + 3 * abs((0.95 + 0.91 + 1.0) / 3 - 2 / 3)) / 5
    assert ece == pytest.approx(expected)
    assert [row[:2] for row in rows] == [("0.6-0.7", 2), ("0.9-1.0", 3)]


def test_confusion_counts_gold_by_predicted():
    truth, guess = np.eye(3)[[0, 0, 1, 2]], np.eye(3)[[0, 1, 1, 0]]
    section = confusion(truth, guess, ("a", "b", "c"))
    assert [list(row) for row in section.rows] == [["a", 1, 1, 0], ["b", 0, 1, 0], ["c", 1, 0, 0]]
    assert "Omitted: 50 classes" in confusion(np.eye(50), np.eye(50), tuple(map(str, range(50)))).note.en


@pytest.mark.parametrize(
    ("kind", "labels", "examples", "predictions"),
    [
        (
            "regression",
            (),
            [TextExample("0", "a", None, 1.0), TextExample("1", "b", None, 3.0)],
            [Prediction(1.5), Prediction(2.0)],
        ),
        (
            "multi-label",
            ("x", "y"),
            [TextExample("0", "a", None, ("x",)), TextExample("1", "b", None, ())],
            [Prediction(("x", "y"), [0.9, 0.6]), Prediction((), [0.1, 0.2])],
        ),
        (
            "multi-label",
            ("x",),
            [TextExample("0", "a", None, ("x",)), TextExample("1", "b", None, ())],
            [Prediction((), [0.4]), Prediction((), [0.1])],
        ),
        (
            "tagging",
            ("O", "B-P"),
            [Tagged("0", ("安", "娜"), ("B-P", "O")), Tagged("1", ("b",), ("O",))],
            [Prediction(("O", "O"), [0.5, 0.5]), Prediction(("O",), [0.9])],
        ),
        (
            "qa",
            (),
            [Question("0", "谁?", "安娜", ("安娜",), (0,)), Question("1", "who?", "bob", (), ())],
            [Prediction("安", answers=[Span("安", 1.0, 0)], no_answer=-3.0), Prediction("", no_answer=2.0)],
        ),
        (
            "choice",
            (),
            [Choice("0", "安娜", "q", ("a", "b"), 1), Choice("1", "t", "", ("a", "b", "c"), 0)],
            [Prediction(0, [0.6, 0.4]), Prediction(0, [0.5, 0.2, 0.3])],
        ),
    ],
)
def test_every_kind_has_a_report_of_its_mistakes(kind, labels, examples, predictions, tmp_path):
    evaluation = Evaluation(examples, predictions, {"accuracy": 50.0}, 0.5)
    html, markdown = report(tmp_path, evaluation, labels, kind)
    worst = markdown[markdown.index("## Worst") : markdown.index("## Settings")]
    assert "\n| 0 |" in worst
    assert ("\n| 1 |" in worst) == (kind in ("regression", "multi-label"))  # nearly right is not quite right
    if kind not in ("regression", "multi-label"):
        assert "安" in html


def judged(baseline=55.0):
    return Verdict("accuracy", 86.7, 82.1, 90.2, 300, baseline, "majority class", ["the model may be no better"])


def written(tmp_path, metrics=METRICS, history=HISTORY, **options):
    write_report(tmp_path, RECORD, metrics, history, [], **options)
    return [(tmp_path / name).read_text(encoding="utf-8") for name in ("report.html", "report.md")]


def test_begins_with_the_score_its_baseline_and_interval(tmp_path):
    html, markdown = written(tmp_path, verdict=judged())
    hero = html[html.index('class="card hero') : html.index("Scores")]
    assert "86.7 %" in hero
    assert "majority class: 55.0 %; 95 % interval 82–90 on 300 dev examples" in hero
    assert "多数类：55.0 %" in hero
    assert "the model may be no better" in hero
    assert markdown.splitlines()[2].startswith("86.7 % accuracy (majority class: 55.0 %), 95 % interval 82-90")


def places(bar, css):
    return [float(place) for place in re.findall(rf'class="{css}[ a-z]*" style="left:([\d.]+)%', bar)]


def test_the_interval_is_drawn_to_scale():
    bar = interval_bar(60.0, 55.0, 65.0, 20.0, 'a "b" <c>')
    assert (places(bar, "value"), places(bar, "base"), places(bar, "range")) == ([60, 60], [20, 20], [55])
    assert "width:10.00%" in bar
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in bar
    near = interval_bar(-0.5, -3.0, 2.0, 0.0, "", (-4, 4))
    assert '<b class="base after" style="left:50.00%">0.0</b>' in near  # two numbers at one place: one on each side
    assert '<b class="value before" style="left:43.75%">−0.5</b>' in near


def test_a_report_on_own_data_is_named_after_the_file(tmp_path):
    write_report(tmp_path, {**RECORD, "task": "own", "train": "data/films.csv"}, METRICS, HISTORY, [])
    assert "<title>films.csv · tiny</title>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "# films.csv" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_changed_settings_come_before_the_others(tmp_path):
    html, markdown = written(tmp_path, defaults={"epochs": 3, "lr": 1e-3, "batch_size": 8, "max_length": None})
    assert html.index("Changed settings") < html.index("Training<") < html.rindex("Settings")
    changed = markdown[markdown.index("## Changed settings") : markdown.index("## Training")]
    assert "| epochs | 2.00 | 3 |" in changed
    assert "| max_length | 64 | from the data |" in changed
    assert "lr" not in changed
    assert "batch_size" not in changed
    assert "All options have their default values." in written(tmp_path, defaults={"lr": 1e-3})[1]


def test_one_evaluation_is_visible(tmp_path):
    html = written(tmp_path, verdict=judged())[0]
    metric = html[html.index("Dev accuracy by step") :]
    metric = metric[: metric.index("</figure>")]
    assert metric.count('class="point"') == 1
    assert ">50</text>" in metric  # its value
    assert "curve dashed" in metric  # the baseline


def test_line_and_confidence_of_a_mistake(tmp_path):
    examples = [TextExample("a7", "good film", None, "好", line=12), TextExample("a8", "x", None, "x", line=14)]
    predictions = [Prediction("x", [0.93, 0.07]), Prediction("x", [0.8, 0.2])]
    html, markdown = report(tmp_path, Evaluation(examples, predictions, {"accuracy": 50.0}, 0.5))
    assert "| line | gold | predicted | confidence | text |" in markdown
    assert "| 12 | 好 | x | 93.0 % | good film |" in markdown
    assert "<dd>93.0 %</dd>" in html


def test_follows_light_and_dark_and_both_languages(tmp_path):
    html = written(tmp_path, verdict=judged())[0]
    assert "prefers-color-scheme: dark" in html
    body = html[html.index("<body>") :]
    assert not re.findall(r"#[0-9a-fA-F]{6}\b|rgba?\(\d", body)  # only colours of the stylesheet
    assert body.count('class="say" lang="en"') == body.count('class="say" lang="zh"') > 10


def test_card_and_summary(tmp_path):
    report(
        tmp_path,
        Evaluation([TextExample("0", "a", None, "x")], [Prediction("x", [0.9, 0.1])], {"accuracy": 100.0}, 0.1),
    )
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-classification")
    assert "SiFT with lambda 5" in card
    assert "好" in card
    write_summary(tmp_path, RECORD, [("seed-0", {"accuracy": 80.0}), ("seed-1", {"accuracy": 90.0})])
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["accuracy"]["mean"] == 85.0
    text = (tmp_path / "report.md").read_text()
    assert "| accuracy | 85.00 | 7.07 | 80.00 | 90.00 |" in text
    assert "Best on the dev set: seed-1" in text


def test_a_column_of_numbers_is_aligned_right():
    rows = [("a", "+1.5 … −2", "71.3 ± 0.4", "8,192", "3e-05"), ("b", "–", "3.9", "12 %", "no")]
    page = table(("name", "interval", "score", "size", "mixed"), rows)
    assert page.count('<th scope="col" class="number">') == 3
    assert '<td class="number">+1.5 … −2</td><td class="number">71.3 ± 0.4</td>' in page
    assert "<td>3e-05</td>" in page  # not every row has a number
