"""The numbers of a finished comparison: tables, curves and claims."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from debertakit import __version__
from debertakit.finetuning.evaluation import compare_predictions
from debertakit.finetuning.significance import Summary, summary
from debertakit.lab.claims import Claim, Difference, difference, difference_of_scores, judge
from debertakit.lab.compare import Prepared, Swept
from debertakit.lab.floors import ORDERS
from debertakit.lab.measures import Measured, bits_per_character, read_words
from debertakit.lab.minimal_pairs import MinimalPair, count_right, read_pairs
from debertakit.lab.plan import Contestant, with_rate
from debertakit.lab.words import HiddenWord
from debertakit.precision import best_device, cpu_name, resolve_precision
from debertakit.tasks import suites

WORDS, BITS, PAIRS = "hidden words", "bits per character", "minimal pairs"
PATTERNS = ("diagonal", "stripe", "[CLS]")
"""Of appendix A.9 (explain/parts.patterns)."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a recipe or a floor."""

    name: str
    scores: dict[str, list[float]]
    """Measure -> score of each seed; without the measures that do not apply."""
    parameters: int | None = None
    widened: str = ""
    rate: float | None = None
    tokens_per_second: float | None = None
    peak_mb: float | None = None
    sweep_tokens: int = 0
    rate_at_edge: bool = False

    def summary(self, measure: str) -> Summary | None:
        return summary(self.scores[measure]) if measure in self.scores else None


@dataclass(frozen=True)
class Point:
    """A point of a learning curve, over the seeds."""

    tokens: float
    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class Attention:
    """The last layer of one recipe, mean over heads, passages and seeds (measures.attention)."""

    texts: int
    matrix: list[list[float]]
    by_distance: list[float]
    strength: dict[str, float]


@dataclass(frozen=True)
class Results:
    rows: list[Row]
    floors: list[Row]
    claims: list[Claim]
    curves: dict[str, list[Point]]
    """Recipe -> bits per character after so many tokens."""
    paradigms: dict[str, dict[str, float]]
    """Recipe -> paradigm -> share of the pairs that are right, over the seeds."""
    attention: dict[str, Attention]
    measures: list[str]
    seeds: list[int]
    """Seeds that are compared: those that every recipe of the table has finished."""
    unfinished: list[str]
    """What the command asks for and this report does not have."""
    run_tokens: int
    """Tokens of the longest run."""
    hidden_words: int
    hidden_texts: int
    """Passages with hidden words."""
    settings: dict[str, Any]
    machine: dict[str, str]
    configs: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Finished:
    """The part of a comparison that can be compared: the same seeds and tasks of every recipe."""

    contestants: list[Contestant]
    seeds: list[int]
    tasks: list[str]
    missing: list[str]


def finished(prepared: Prepared) -> Finished:
    """Leave out recipes without a finished run, then seeds that not every other recipe has, then tasks likewise."""
    every = range(prepared.options.seeds)
    done = {
        each.recipe: [seed for seed in every if prepared.measures(each.recipe, seed).exists()]
        for each in prepared.contestants
    }
    contestants = [each for each in prepared.contestants if done[each.recipe]]
    seeds = [seed for seed in every if all(seed in done[each.recipe] for each in contestants)]
    first = prepared.contestants[0].recipe
    if len(contestants) < 2 or not done[first] or not seeds:
        counts = ", ".join(f"{name} {len(runs)} of {len(every)}" for name, runs in done.items())
        raise ValueError(f"a report needs runs of {first} and of another recipe with the same seed; finished: {counts}")

    def complete(task: str) -> bool:
        runs = [prepared.task(task, each.recipe, seed) for each in contestants for seed in seeds]
        return all((run / "metrics.json").exists() for run in runs)

    tasks = [task for task in prepared.options.task_names if complete(task)]
    missing = [f"the recipe {name}" for name, runs in done.items() if not runs]
    missing += [f"seed {seed}" for seed in every if seed not in seeds]
    missing += [f"the task {task}" for task in prepared.options.task_names if task not in tasks]
    return Finished(contestants, seeds, tasks, missing)


def collect(prepared: Prepared) -> Results:
    """The results of everything that has finished."""
    part = finished(prepared)
    contestants, seeds = part.contestants, part.seeds
    options, out = prepared.options, prepared.out
    hidden = read_words(prepared.hidden_words)
    pairs = read_pairs(options.pairs, options.limit) if options.pairs else []
    measured = {
        each.recipe: [Measured(**_read(prepared.measures(each.recipe, seed))) for seed in seeds] for each in contestants
    }
    swept = {name: Swept(**each) for name, each in _read(out / "sweep.json").items()}
    rates = {each.recipe: swept[prepared.trained_as(each.recipe)].rate for each in contestants}
    rows = []
    for each in contestants:
        speed, sweep = _read(prepared.speed(each.recipe)), swept[prepared.trained_as(each.recipe)]
        rows.append(
            Row(
                each.recipe,
                _scores(measured[each.recipe], hidden, pairs) | _task_scores(prepared, each.recipe, part),
                each.parameters,
                each.widened,
                sweep.rate,
                speed["tokens_per_second"],
                speed["peak_mb"],
                sweep.tokens,
                sweep.at_the_edge,
            )
        )
    stored = _read(out / "floors.json")
    floors = [Row(name, _scores([Measured(**stored[name])], hidden, pairs)) for name in ORDERS]
    majority = {task: [score] for task in part.tasks if (score := _majority(prepared, task, seeds[0])) is not None}
    floors += [Row("majority class", majority)] if majority else []
    measures = [name for name in (WORDS, BITS, PAIRS, *part.tasks) if any(name in r.scores for r in rows)]
    return Results(
        rows=rows,
        floors=floors,
        claims=judge(_differences(prepared, part, measured, hidden, pairs)),
        curves={name: _curve(runs) for name, runs in measured.items() if runs[0].curve},
        attention=_attention({each.recipe: measured[each.recipe] for each in contestants if not each.trained_as}),
        paradigms={name: _paradigms(runs, pairs) for name, runs in measured.items()} if pairs else {},
        measures=measures,
        seeds=seeds,
        unfinished=part.missing,
        run_tokens=max(_tokens(prepared, each.recipe, seeds[0]) for each in contestants),
        hidden_words=len(hidden),
        hidden_texts=len({each.text for each in hidden}),
        settings=_read(out / "settings.json")
        | {"recipes": list(measured), "seeds": options.seeds, "tasks": options.tasks},
        machine=machine(),
        configs={each.recipe: asdict(with_rate(each.config, rates[each.recipe])) for each in contestants},
    )


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _tokens(prepared: Prepared, recipe: str, seed: int) -> int:
    newest = max((prepared.run(recipe, seed) / "checkpoints").glob("step-*[0-9]/progress.json"))
    return _read(newest)["tokens"]


# --------------------------------------------------------------------------------------------------------------- scores


def _scores(
    runs: Sequence[Measured], hidden: Sequence[HiddenWord], pairs: Sequence[MinimalPair]
) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = {}
    for run in runs:
        if run.right is not None and run.bits is not None:
            scores.setdefault(WORDS, []).append(100 * float(np.mean(run.right)))
            scores.setdefault(BITS, []).append(bits_per_character(hidden, run.bits))
        if run.pairs is not None:
            scores.setdefault(PAIRS, []).append(100 * count_right(pairs, run.pairs).mean)
    return scores


def _task_scores(prepared: Prepared, recipe: str, part: Finished) -> dict[str, list[float]]:
    found = {}
    for task in part.tasks:
        metric = suites.task(task).metric
        runs = [prepared.task(task, recipe, seed) for seed in part.seeds]
        found[task] = [_read(run / "metrics.json")["dev"][metric] for run in runs]
    return found


def _majority(prepared: Prepared, task: str, seed: int) -> float | None:
    """Score of always answering the majority class, if the metric is accuracy."""
    return _read(prepared.task(task, prepared.contestants[0].recipe, seed) / "metrics.json").get("baseline")


def _paradigms(runs: Sequence[Measured], pairs: Sequence[MinimalPair]) -> dict[str, float]:
    counted = [count_right(pairs, run.pairs).correct for run in runs if run.pairs is not None]
    return {name: float(np.mean([each[name][0] / each[name][1] for each in counted])) for name in counted[0]}


def _curve(runs: Sequence[Measured]) -> list[Point]:
    """The points that every seed has."""
    points = []
    for together in zip(*(run.curve for run in runs), strict=False):
        bits = [point["bits_per_character"] for point in together]
        points.append(
            Point(float(np.mean([p["tokens"] for p in together])), min(bits), float(np.mean(bits)), max(bits))
        )
    return points


def _attention(measured: dict[str, list[Measured]]) -> dict[str, Attention]:
    """Means over the seeds."""
    found = {}
    for name, runs in measured.items():
        stored = [run.attention for run in runs if run.attention is not None]
        if stored:
            matrix, curve = (np.mean([each[key] for each in stored], axis=0) for key in ("matrix", "by_distance"))
            strength = {key: float(np.mean([each["strength"][key] for each in stored])) for key in PATTERNS}
            found[name] = Attention(stored[0]["texts"], matrix.tolist(), curve.tolist(), strength)
    return found


# --------------------------------------------------------------------------------------------------------------- claims


def _differences(
    prepared: Prepared,
    part: Finished,
    measured: dict[str, list[Measured]],
    hidden: Sequence[HiddenWord],
    pairs: Sequence[MinimalPair],
) -> dict[tuple[str, str, str], Difference]:
    """The first recipe against each other one, in every measure that both have. Positive: the first is better."""
    first, *others = (each.recipe for each in part.contestants)
    found: dict[tuple[str, str, str], Difference] = {}
    for other in others:
        a, b = measured[first], measured[other]
        one_model = prepared.trained_as(first) == prepared.trained_as(other)
        if not one_model and a[0].bits is not None and b[0].bits is not None:
            right = [np.array([run.right for run in side]) * 100.0 for side in (a, b)]
            found[first, other, WORDS] = difference(*right)
            length = float(np.mean([len(each.word) for each in hidden]))
            bits = [np.array([run.bits for run in side], dtype=float) / -length for side in (a, b)]
            found[first, other, BITS] = difference(*bits)
        if not one_model and a[0].pairs is not None and b[0].pairs is not None:
            weights = 100 * _pair_weights(pairs)
            hits = [np.array([run.pairs for run in side]) * weights for side in (a, b)]
            found[first, other, PAIRS] = difference(*hits)
        for task in part.tasks:
            found[first, other, task] = _task_difference(prepared, task, first, other, part.seeds)
    return found


def _pair_weights(pairs: Sequence[MinimalPair]) -> NDArray[np.float64]:
    """Weights with which the mean over pairs is the mean over paradigms."""
    sizes: dict[str, int] = {}
    for pair in pairs:
        sizes[pair.paradigm] = sizes.get(pair.paradigm, 0) + 1
    return np.array([len(pairs) / (len(sizes) * sizes[pair.paradigm]) for pair in pairs])


def _task_difference(prepared: Prepared, task: str, first: str, other: str, seeds: Sequence[int]) -> Difference:
    chosen = suites.task(task)
    sides = [[prepared.task(task, name, seed) for seed in seeds] for name in (first, other)]
    files = [[run / "predictions-dev.jsonl" for run in side] for side in sides]
    scores = [[_read(run / "metrics.json")["dev"][chosen.metric] for run in side] for side in sides]
    bootstrap = compare_predictions(files[0], files[1], chosen)
    deviation = (bootstrap.high - bootstrap.low) / (2 * 1.96)
    examples = sum(1 for _ in files[0][0].open(encoding="utf-8"))
    return difference_of_scores(scores[0], scores[1], deviation**2, examples)


# --------------------------------------------------------------------------------------------------------------- record


def machine() -> dict[str, str]:
    return {
        "processor": cpu_name(),
        "cores": str(os.cpu_count()),
        "precision": resolve_precision("auto", best_device()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "debertakit": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }
