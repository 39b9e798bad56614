"""Robustness: how predictions change with small changes of the texts (tasks/perturbations.py).

For each kind of change, over the n examples that it applies to:

    flips   share of predictions that differ from those for the original texts, with Wilson's 95 % interval
            (regression: that move by more than a tenth of the range of the original predictions)
    score   the task's metric before and after, and the difference with its 95 % interval: ``RESAMPLES`` paired
            bootstrap samples of the examples. Not for negation, which changes the correct answer
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from debertakit.data.examples import Example
from debertakit.files import write_text
from debertakit.finetuning.evaluation import Evaluation, Evaluator
from debertakit.finetuning.rendering import Section, as_html, as_markdown
from debertakit.finetuning.sections import TEXT, WORST, line_name, place_of, show_answer, show_text
from debertakit.finetuning.verdict import RESAMPLES, score_of_sample, wilson
from debertakit.tasks.decisions import Prediction
from debertakit.tasks.perturbations import changes_for, perturb
from debertakit.tasks.task import Task
from debertakit.theme import Say

MEANING = ("negation",)
"""Changes after which another answer may be right."""
MOVED = 0.1


@dataclass(frozen=True)
class Effect:
    """Effect of one kind of change."""

    name: str
    originals: list[Example]
    """Examples that the change applies to."""
    changed: list[Example]
    before: list[Any]
    """Predictions for the originals."""
    after: list[Any]
    flipped: list[bool]
    scores: tuple[float, float] | None = None
    """Before and after."""
    interval: tuple[float, float] | None = None
    """95 % interval of the difference, after minus before."""

    @property
    def flips(self) -> float:
        """In per cent."""
        return 100 * sum(self.flipped) / len(self.flipped)


@dataclass(frozen=True)
class Robustness:
    evaluation: Evaluation
    """Evaluation of the original texts."""
    metric: str
    effects: list[Effect]

    def __str__(self) -> str:
        header = ("", "changed", "flips", "95 % interval", self.metric, "changed texts", "difference", "95 % interval")
        rows = [header, *(_cells(effect, len(self.evaluation.examples)) for effect in self.effects)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


def robustness(evaluator: Evaluator, examples: Sequence[Example], seed: int = 0) -> Robustness:
    """Measure all changes. The same seed makes the same changes."""
    evaluation = evaluator(examples)
    effects = []
    for name in changes_for(evaluator.task.kind):
        changed = [perturb(each, name, Random(f"{seed} {name} {i}")) for i, each in enumerate(examples)]
        places = [i for i, (a, b) in enumerate(zip(examples, changed, strict=True)) if a != b]
        if places:
            effects.append(_effect(name, evaluator, evaluation, changed, places))
    return Robustness(evaluation, evaluator.task.metric, effects)


def _effect(
    name: str, evaluator: Evaluator, evaluation: Evaluation, changed: Sequence[Example], places: Sequence[int]
) -> Effect:
    originals = [evaluation.examples[i] for i in places]
    before, after = [evaluation.values[i] for i in places], evaluator([changed[i] for i in places]).values
    spread = 0.0
    if evaluator.task.kind == "regression":
        spread = MOVED * (max(evaluation.values) - min(evaluation.values))
    flipped = [abs(a - b) > spread if isinstance(a, float) else a != b for a, b in zip(before, after, strict=True)]
    effect = Effect(name, originals, [changed[i] for i in places], before, after, flipped)
    if name in MEANING or not evaluation.scores:
        return effect
    scores, interval = paired(evaluator.task, originals, before, after)
    return replace(effect, scores=scores, interval=interval)


def paired(
    task: Task, examples: Sequence[Example], before: Sequence[Any], after: Sequence[Any], seed: int = 0
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Scores of two lists of predictions, and the 95 % interval of their difference over resampled examples."""
    sides = [
        Evaluation(examples, [Prediction(value) for value in values], task.score(examples, values), float("nan"))
        for values in (before, after)
    ]
    a, b = (score_of_sample(task, side) for side in sides)
    draw, count = np.random.default_rng(seed), len(examples)
    samples = [draw.integers(count, size=count) for _ in range(RESAMPLES)]
    low, high = np.quantile([b(sample) - a(sample) for sample in samples], [0.025, 0.975])
    return (sides[0].scores[task.metric], sides[1].scores[task.metric]), (float(low), float(high))


def _cells(effect: Effect, examples: int) -> tuple[str, ...]:
    low, high = wilson(effect.flips / 100, len(effect.flipped))
    cells = (effect.name, f"{len(effect.changed):,} of {examples:,}", f"{effect.flips:.1f} %", f"{low:.0f}-{high:.0f}")
    if effect.scores is None or effect.interval is None:
        return (*cells, "", "", "", "")
    (a, b), (below, above) = effect.scores, effect.interval
    return (*cells, f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}", f"{below:+.1f} to {above:+.1f}")


# -------------------------------------------------------------------------------------------------------------- report


def write(found: Robustness, folder: Path, model: str) -> None:
    """Write robustness.html, robustness.md, and robustness.jsonl with every changed example and its prediction."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = [overview(found), *(flips(effect) for effect in found.effects if any(effect.flipped))]
    title = f"Robustness: {Path(model).name}"
    write_text(folder / "robustness.html", as_html(title, "", sections))
    write_text(folder / "robustness.md", as_markdown(title, [str(found.evaluation)], sections))
    lines = []
    for effect in found.effects:
        for example, before, after in zip(effect.changed, effect.before, effect.after, strict=True):
            line = {"change": effect.name, "example": asdict(example), "before": before, "after": after}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(folder / "robustness.jsonl", "".join(lines))


CHANGE_NAMES = {
    "typos": Say("typos", "错别字"),
    "case": Say("case", "大小写"),
    "word order": Say("word order", "词序"),
    "negation": Say("negation", "否定"),
    "groups": Say("swapped groups", "群体互换"),
}


def overview(found: Robustness) -> Section:
    interval = Say("95 % interval", "95% 置信区间")
    header = (
        Say("change", "改动"),
        Say("changed", "改动的样例"),
        Say("flips", "预测改变"),
        interval,
        Say(f"{found.metric} before", f"改动前 {found.metric}"),
        Say("after", "改动后"),
        Say("difference", "差"),
        interval,
    )
    rows: list[tuple[Say | str, ...]] = [
        (CHANGE_NAMES[e.name], *_cells(e, len(found.evaluation.examples))[1:]) for e in found.effects
    ]
    note = Say(
        "Predictions should survive typos, case and swapped groups. Negation changes the meaning: few flips there "
        "show that the model does not read it. A difference of 0 does not prove that the model is fair.",
        "错别字、大小写和群体互换不应改变预测。否定会改变意思：若预测很少改变，说明模型没有理解否定。没有差异并不能证明模型是公平的。",
    )
    return Section(Say("Robustness", "稳健性"), header, rows, note, wide=True)


def flips(effect: Effect) -> Section:
    """Examples whose prediction changed."""
    places = [i for i, flipped in enumerate(effect.flipped) if flipped][:WORST]
    rows = [
        (
            place_of(effect.originals[i]),
            show_answer(effect.originals[i], effect.before[i]),
            show_answer(effect.changed[i], effect.after[i]),
            show_text(effect.changed[i]),
        )
        for i in places
    ]
    name = CHANGE_NAMES[effect.name]
    title = Say(f"Changed predictions: {name.en}", f"改变的预测：{name.zh}")
    header = (line_name(effect.originals), Say("before", "改动前"), Say("after", "改动后"), TEXT)
    return Section(title, header, rows, listed=True, wide=True)
