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
from debertakit.lab.plan import with_rate
from debertakit.lab.words import HiddenWord
from debertakit.precision import best_device, cpu_name, resolve_precision
from debertakit.tasks import suites

WORDS, BITS, PAIRS = "hidden words", "bits per character", "minimal pairs"


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
class Results:
    rows: list[Row]
    floors: list[Row]
    claims: list[Claim]
    curves: dict[str, list[Point]]
    """Recipe -> bits per character after so many tokens."""
    paradigms: dict[str, dict[str, float]]
    """Recipe -> paradigm -> share of the pairs that are right, over the seeds."""
    measures: list[str]
    run_tokens: int
    """Tokens of the longest run."""
    hidden_words: int
    hidden_texts: int
    """Passages with hidden words."""
    settings: dict[str, Any]
    machine: dict[str, str]
    configs: dict[str, dict[str, Any]]


def collect(prepared: Prepared) -> Results:
    options, out = prepared.options, prepared.out
    hidden = read_words(prepared.hidden_words)
    pairs = read_pairs(options.pairs, options.limit) if options.pairs else []
    measured = {
        each.recipe: [Measured(**_read(prepared.measures(each.recipe, seed))) for seed in range(options.seeds)]
        for each in prepared.contestants
    }
    swept = {name: Swept(**each) for name, each in _read(out / "sweep.json").items()}
    rows = []
    for each in prepared.contestants:
        speed, sweep = _read(prepared.speed(each.recipe)), swept[each.recipe]
        rows.append(
            Row(
                each.recipe,
                _scores(measured[each.recipe], hidden, pairs) | _task_scores(prepared, each.recipe),
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
    majority = {task: [score] for task in options.task_names if (score := _majority(prepared, task)) is not None}
    floors += [Row("majority class", majority)] if majority else []
    measures = [name for name in (WORDS, BITS, PAIRS, *options.task_names) if any(name in r.scores for r in rows)]
    return Results(
        rows=rows,
        floors=floors,
        claims=judge(_differences(prepared, measured, hidden, pairs)),
        curves={name: _curve(runs) for name, runs in measured.items() if runs[0].curve},
        paradigms={name: _paradigms(runs, pairs) for name, runs in measured.items()} if pairs else {},
        measures=measures,
        run_tokens=max(_tokens(prepared, each.recipe) for each in prepared.contestants),
        hidden_words=len(hidden),
        hidden_texts=len({each.text for each in hidden}),
        settings=_read(out / "settings.json"),
        machine=machine(),
        configs={each.recipe: asdict(with_rate(each.config, swept[each.recipe].rate)) for each in prepared.contestants},
    )


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _tokens(prepared: Prepared, recipe: str) -> int:
    newest = max((prepared.run(recipe, 0) / "checkpoints").glob("step-*[0-9]/progress.json"))
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


def _task_scores(prepared: Prepared, recipe: str) -> dict[str, list[float]]:
    found = {}
    for task in prepared.options.task_names:
        metric = suites.task(task).metric
        runs = [prepared.task(task, recipe, seed) for seed in range(prepared.options.seeds)]
        found[task] = [_read(run / "metrics.json")["dev"][metric] for run in runs]
    return found


def _majority(prepared: Prepared, task: str) -> float | None:
    """Score of always answering the majority class, if the metric is accuracy."""
    return _read(prepared.task(task, prepared.contestants[0].recipe, 0) / "metrics.json").get("baseline")


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


# --------------------------------------------------------------------------------------------------------------- claims


def _differences(
    prepared: Prepared,
    measured: dict[str, list[Measured]],
    hidden: Sequence[HiddenWord],
    pairs: Sequence[MinimalPair],
) -> dict[tuple[str, str, str], Difference]:
    """The first recipe against each other one, in every measure that both have. Positive: the first is better."""
    first, *others = (each.recipe for each in prepared.contestants)
    found: dict[tuple[str, str, str], Difference] = {}
    for other in others:
        a, b = measured[first], measured[other]
        if a[0].bits is not None and b[0].bits is not None:
            right = [np.array([run.right for run in side]) * 100.0 for side in (a, b)]
            found[first, other, WORDS] = difference(*right)
            length = float(np.mean([len(each.word) for each in hidden]))
            bits = [np.array([run.bits for run in side], dtype=float) / -length for side in (a, b)]
            found[first, other, BITS] = difference(*bits)
        if a[0].pairs is not None and b[0].pairs is not None:
            weights = 100 * _pair_weights(pairs)
            hits = [np.array([run.pairs for run in side]) * weights for side in (a, b)]
            found[first, other, PAIRS] = difference(*hits)
        for task in prepared.options.task_names:
            found[first, other, task] = _task_difference(prepared, task, first, other)
    return found


def _pair_weights(pairs: Sequence[MinimalPair]) -> NDArray[np.float64]:
    """Weights with which the mean over pairs is the mean over paradigms."""
    sizes: dict[str, int] = {}
    for pair in pairs:
        sizes[pair.paradigm] = sizes.get(pair.paradigm, 0) + 1
    return np.array([len(pairs) / (len(sizes) * sizes[pair.paradigm]) for pair in pairs])


def _task_difference(prepared: Prepared, task: str, first: str, other: str) -> Difference:
    chosen = suites.task(task)
    sides = [[prepared.task(task, name, seed) for seed in range(prepared.options.seeds)] for name in (first, other)]
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
