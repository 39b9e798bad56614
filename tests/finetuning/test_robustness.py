import json

import numpy as np
import pytest

from debertakit.data.examples import TextExample
from debertakit.finetuning.evaluation import Evaluation
from debertakit.finetuning.robustness import paired, robustness, write
from debertakit.tasks import metrics
from debertakit.tasks.decisions import Prediction
from debertakit.tasks.task import Task

TASK = Task("own", "single-label", lambda _: {}, metrics.accuracy, "accuracy")
GOOD = [TextExample(str(i), f"He is a wonderful actor {i}", None, "good") for i in range(8)]
BAD = [TextExample(str(i), f"A terrible film {i}", None, "bad") for i in range(8)]


class Reader:
    """A model of three rules: "terrible" and "not" are bad, and so is everything that women do."""

    task = TASK

    def __call__(self, examples):
        bad = [any(word in example.text for word in ("terrible", "not", "She")) for example in examples]
        values = ["bad" if each else "good" for each in bad]
        return Evaluation(examples, [Prediction(v) for v in values], self.task.score(examples, values), 0.0)


def test_what_each_change_does_to_a_model_of_known_rules():
    found = robustness(Reader(), [*GOOD, *BAD])
    effects = {effect.name: effect for effect in found.effects}
    assert found.evaluation.scores == {"accuracy": 100}
    assert (effects["word order"].flips, effects["word order"].scores) == (0, (100, 100))
    assert (effects["case"].flips, len(effects["case"].changed)) == (0, 16)
    assert (effects["negation"].flips, len(effects["negation"].changed)) == (100, 8)  # BAD has no verb
    assert effects["negation"].scores is None
    groups = effects["groups"]
    assert (groups.flips, groups.scores, groups.interval) == (100, (100, 0), (-100, -100))
    lost = sum("terrible" not in each.text for each in effects["typos"].changed if each.label == "bad")
    assert effects["typos"].flips == 100 * lost / 16 > 0
    low, high = effects["typos"].interval
    assert low < -effects["typos"].flips < high <= 0
    line = next(line for line in str(found).splitlines() if line.startswith("groups"))
    assert line.split() == "groups 8 of 16 100.0 % 68-100 100.0 0.0 -100.0 -100.0 to -100.0".split()


def test_the_same_seed_makes_the_same_changes():
    texts = [effect.changed for effect in robustness(Reader(), GOOD, seed=1).effects]
    assert texts == [effect.changed for effect in robustness(Reader(), GOOD, seed=1).effects]
    assert texts != [effect.changed for effect in robustness(Reader(), GOOD, seed=2).effects]


def test_the_interval_of_the_difference_is_paired():
    """Both sides are wrong on the same half, so the score of a sample varies and the difference does not."""
    examples = [TextExample(str(i), "a", None, "good") for i in range(40)]
    before = ["good"] * 20 + ["bad"] * 20
    assert paired(TASK, examples, before, before) == ((50, 50), (0, 0))
    scores, (low, high) = paired(TASK, examples, before, ["bad"] * 4 + before[4:])
    assert scores == (50, 40)
    assert low == pytest.approx(-10 - 2 * 100 * np.sqrt(0.1 * 0.9 / 40), abs=3)
    assert low < -10 < high <= 0


def test_report(tmp_path):
    write(robustness(Reader(), [*GOOD, *BAD]), tmp_path, "runs/<b>")
    html, markdown = ((tmp_path / f"robustness.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    assert "She is a wonderful actress 0" in html
    assert "&lt;b&gt;" in html
    assert "| swapped groups | 8 of 16 | 100.0 % |" in markdown
    lines = [json.loads(line) for line in (tmp_path / "robustness.jsonl").read_text(encoding="utf-8").splitlines()]
    flipped = [line for line in lines if line["change"] == "groups"]
    assert {(line["before"], line["after"]) for line in flipped} == {("good", "bad")}
    assert flipped[0]["example"]["text"] == "She is a wonderful actress 0"
