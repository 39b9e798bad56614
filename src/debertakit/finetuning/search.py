"""Search the paper's grid of hyper-parameters (appendix A.3) on the dev set, by successive halving.

N points of the grid are drawn. All of them train for a part of the epochs, the better half (by the task's metric)
trains again from the start for twice as long, and so on; the last two train for all epochs:

    16 points x 1/8 of the epochs, 8 x 1/4, 4 x 1/2, 2 x 1    together: 8 runs' worth of epochs

OUT becomes the best of the last two, an ordinary run. OUT.search contains the others:

    search.json             the settings and the points; --resume compares them with the new command
    round-1/trial-03/       the folder of each trial (runs.py); those of the last round have their weights
    report.md, report.html  all trials

The score of the best trial is a maximum over noisy scores on one dev set, so it is optimistic: score it on other data.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from debertakit.files import write_json, write_text
from debertakit.finetuning import rendering
from debertakit.finetuning.hyperparameters import Size
from debertakit.finetuning.job import Job, open_job, say
from debertakit.finetuning.modes import Seeds
from debertakit.finetuning.report import plain_hero
from debertakit.finetuning.runs import Record, RunResult, check_same, read_json, world_size
from debertakit.finetuning.train import run

Point = Mapping[str, Any]
"""Values of the options that the search varies."""
RATES: dict[str, tuple[float, ...]] = {
    "base": (0.75, 1, 1.5, 2),  # of 2e-5: 1.5e-5, 2e-5, 3e-5, 4e-5
    "large": (0.5, 0.8, 0.9, 1),  # of 1e-5: 5e-6, 8e-6, 9e-6, 1e-5
    "xxlarge": (1 / 3, 1, 5 / 3),  # of 3e-6: 1e-6, 3e-6, 5e-6
}
"""The paper's learning rates, as multiples of the usual one for the size."""
DROPOUTS = {"base": (0.0, 0.1, 0.15), "large": (0.0, 0.15, 0.3), "xxlarge": (0.0, 0.15, 0.3)}
BATCHES = {"base": (16, 32, 48, 64), "large": (16, 32, 48, 64), "xxlarge": (16, 32, 64)}
WARMUPS = (50, 100, 500, 1000)
"""Steps. Those beyond half of the run are left out; in a short round, the warm-up is shorter by the same factor."""
VARIED = ("lr", "batch_size", "cls_dropout", "warmup")
HEADER = ("round", "trial", *VARIED, "epochs", "score", "seconds")


@dataclass(frozen=True)
class Trial:
    round: int
    number: int
    point: Point
    epochs: float
    score: float
    seconds: float
    folder: Path

    def row(self) -> tuple[Any, ...]:
        values = (self.point.get(name, "") for name in VARIED)
        return (self.round, self.number, *values, round(self.epochs, 3), self.score, round(self.seconds))


def search(
    model: str | Path, out: str | Path, trials: int, *, seed: int = Seeds.seed, resume: bool = False, **others: Any
) -> RunResult:
    """Find good hyper-parameters and write the best run to ``out``. ``others``: arguments of ``finetune``.

    An option that is given keeps its value.
    """
    if trials < 2:
        raise ValueError(f"search is {trials}; it must be >= 2")
    if world_size() > 1:
        raise ValueError("--search runs in one process; start it without torchrun")
    folder = Path(out)
    place = folder.with_name(f"{folder.name}.search")
    if resume and (folder / "run.json").is_file() and (place / "search.json").is_file():
        return _result(folder, place)
    job = open_job(model, [folder], folder, resume=resume, **others)
    given = {name for name in VARIED if others.get(name) is not None}
    points = draw_points(job, given, trials, seed)
    _open(place, {**job.record(seed), "trials": trials, "points": points}, resume)
    counts = rounds(len(points))
    epochs = job.options.epochs or 0
    shares = [2.0 ** (i + 1 - len(counts)) for i in range(len(counts))]
    cost = sum(count * share for count, share in zip(counts, shares, strict=True))
    plan = ", ".join(f"{count} x {epochs * share:g} epochs" for count, share in zip(counts, shares, strict=True))
    say(f"search: {plan}; together {cost:g} times the training of one run")
    print("  ".join(f"{name:>11}" for name in HEADER), flush=True)
    alive, done = list(enumerate(points)), list[Trial]()
    for number, (count, share) in enumerate(zip(counts, shares, strict=True), 1):
        found = []
        for index, point in alive[:count]:
            target = place / f"round-{number}" / f"trial-{index:02}"
            tried = _tried(job, point, share, seed, number, index, target)
            if number < len(counts):
                (target / "model.safetensors").unlink(missing_ok=True)
            print("  ".join(f"{rendering.short(cell):>11}" for cell in tried.row()), flush=True)
            found.append(tried)
            write_report(place, [*done, *found], job.task.metric)
        done += found
        alive = [(each.number, each.point) for each in sorted(found, key=lambda each: -each.score)]
    best = max(found, key=lambda each: each.score)
    best.folder.rename(folder)
    return _result(folder, place)


def rounds(trials: int) -> list[int]:
    """Number of trials in each round: half as many until two are left."""
    counts = [trials]
    while counts[-1] > 2:
        counts.append(math.ceil(counts[-1] / 2))
    return counts


def draw_points(job: Job, given: set[str], trials: int, seed: int) -> list[Point]:
    """Draw points of the grid at random, without repetition. Options that the user gave are not varied."""
    options, size = job.options, job.size
    assert options.lr is not None
    assert options.batch_size is not None
    grid = _grid_of(size)
    values: dict[str, Sequence[Any]] = {
        "lr": [float(f"{options.lr * rate:.3g}") for rate in RATES[grid]],
        "batch_size": [each for each in BATCHES[grid] if each % options.gradient_accumulation == 0],
        "cls_dropout": DROPOUTS[grid],
    }
    if options.cls_dropout is None:  # the head has none
        given = {*given, "cls_dropout"}
    varied = {name: choices for name, choices in values.items() if name not in given}
    points = []
    for combination in itertools.product(*varied.values()):
        point = dict(zip(varied, combination, strict=True))
        if "warmup" in given:
            points.append(point)
            continue
        steps = _steps(job, point.get("batch_size", options.batch_size))
        usable: list[float | None] = [warmup for warmup in WARMUPS if warmup <= steps / 2]
        points += [{**point, "warmup": warmup} for warmup in usable or [options.warmup]]
    order = np.random.default_rng(seed).permutation(len(points))[:trials]
    return [points[i] for i in order]


def _grid_of(size: Size) -> str:
    if size in ("large", "v3-large"):
        return "large"
    return "xxlarge" if size.endswith("xlarge") else "base"


def _steps(job: Job, batch_size: int) -> int:
    return math.ceil(len(job.train.rows) / batch_size * (job.options.epochs or 0))


def _tried(job: Job, point: Point, share: float, seed: int, number: int, index: int, target: Path) -> Trial:
    epochs = (job.options.epochs or 0) * share
    warmup = point.get("warmup", job.options.warmup)
    warmup = warmup if warmup < 1 else round(warmup * share)
    options = replace(job.options, **{**point, "epochs": epochs, "warmup": warmup})
    result = run(replace(job, options=options), seed, target, resume=True)
    return Trial(number, index, point, epochs, result.scores[job.task.metric], result.seconds, target)


def _open(place: Path, settings: Record, resume: bool) -> None:
    """Create OUT.search, or check that the search in it can resume."""
    if not (place / "search.json").is_file():
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / "search.json", settings)
        return
    if not resume:
        raise ValueError(f"{place} already contains a search. Use --resume to continue it, or choose another --out.")
    check_same("search", place, read_json(place / "search.json"), settings)


def _result(folder: Path, place: Path) -> RunResult:
    metrics = read_json(folder / "metrics.json")
    seconds = sum(read_json(path)["seconds"] for path in place.glob("round-*/trial-*/metrics.json"))
    words = f"{metrics.get('verdict', '')}\nall trials: {place / 'report.md'}"
    return RunResult(folder, metrics["dev"], seconds + metrics["seconds"], verdict=words.strip())


def write_report(place: Path, trials: Sequence[Trial], metric: str) -> None:
    best = max(trials, key=lambda each: (each.round, each.score))
    note = (
        f"Best so far: trial {best.number} of round {best.round}. Its score is optimistic: it is the best of "
        "several on the same dev set."
    )
    rows = [each.row() for each in sorted(trials, key=lambda each: (-each.round, -each.score))]
    sections = [rendering.Section("Trials", HEADER, rows, note)]
    title = "Search of hyper-parameters"
    lead = [f"{metric} {best.score:.2f}"]
    write_text(place / "report.md", rendering.as_markdown(title, lead, sections))
    write_text(place / "report.html", rendering.as_html(title, plain_hero(metric, best.score), sections))
