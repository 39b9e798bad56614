"""Fine-tune a model on every task of a suite (``deberta benchmark``): GLUE, SuperGLUE or CLUE.

Each task is a normal run of ``finetune`` with the recipe of its task and model size. OUT contains:

    suite.json              the settings; --resume compares them with the new command
    TASK/                   the folder of each run (runs.py), or of its seeds
    scores.json             score of each finished task, and the average
    report.md, report.html  the same as a table; rewritten after each task
    submission/, *.zip      the leaderboard's files, predicted by the best seed of each task

An interrupted suite resumes with the task that was running, from its last checkpoint. The score of a suite is the mean
over tasks of the task's metric on the dev set, in per cent. As on the leaderboards, a task with two metrics counts with
their mean, and MNLI with the mean of its matched and mismatched accuracies.
"""

import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from debertakit.data.examples import Example
from debertakit.data.folders import NoData
from debertakit.files import remove, replacing, temporary_path, write_json, write_text
from debertakit.finetuning import rendering
from debertakit.finetuning.evaluation import check_packages, predict_test, read_benchmark
from debertakit.finetuning.modes import Seeds, SuiteOptions
from debertakit.finetuning.options import FinetuneOptions
from debertakit.finetuning.report import plain_hero
from debertakit.finetuning.runs import RunResult, check_same, read_json, world_size
from debertakit.finetuning.significance import Summary, summary
from debertakit.finetuning.train import finetune
from debertakit.tasks import suites
from debertakit.tasks.listing import SUITES, Suite
from debertakit.tasks.task import Task


@dataclass(frozen=True)
class TaskScore:
    task: str
    metric: str
    score: Summary
    """Over the seeds."""
    seeds: int
    train: int
    """Training examples."""
    start: str
    """Model that the task started from."""
    seconds: float
    best: Path
    """Run with the best score."""

    def row(self) -> tuple[str, str, float, float, int, int, str, float]:
        score = self.score
        return self.task, self.metric, score.mean, score.sd, self.seeds, self.train, self.start, self.seconds


HEADER = ("task", "metric", "dev", "sd", "seeds", "train", "start", "seconds")


@dataclass
class SuiteResult:
    suite: Suite
    folder: Path
    scores: dict[str, TaskScore] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Task -> why it was not run."""
    zip: Path | None = None
    absent: list[str] = field(default_factory=list)
    """Files that the leaderboard expects and the zip lacks."""

    @property
    def counted(self) -> list[TaskScore]:
        return [score for name, score in self.scores.items() if name in self.suite.tasks]

    @property
    def average(self) -> float | None:
        """Mean over the tasks of the leaderboard that have a score."""
        return float(np.mean([each.score.mean for each in self.counted])) if self.counted else None

    def average_line(self) -> str:
        if self.average is None:
            return "no task has a score yet"
        done, total = len(self.counted), len(self.suite.tasks)
        tasks = f"all {total} tasks" if done == total else f"{done} of {total} tasks, not the official average"
        return f"{self.suite.title} average on dev: {self.average:.2f} ({tasks})"

    def __str__(self) -> str:
        lines = [self.average_line()]
        if self.missing:
            lines.append("not run: " + "; ".join(f"{name} ({why})" for name, why in self.missing.items()))
        if self.zip is not None:
            lacks = f"; the leaderboard also expects {', '.join(self.absent)}" if self.absent else ""
            lines.append(f"leaderboard files: {self.zip}{lacks}")
        return "\n".join([*lines, f"report: {self.folder / 'report.md'}"])


def run_suite(
    suite: str,
    model: str | Path,
    data: str | Path,
    out: str | Path,
    options: SuiteOptions | None = None,
    training: FinetuneOptions | None = None,
    *,
    seed: int = Seeds.seed,
    seeds: int = Seeds.seeds,
    resume: bool = False,
) -> SuiteResult:
    """Run every task of a suite that ``data`` has files for. ``training``: options for all tasks."""
    options, training = options or SuiteOptions(), training or FinetuneOptions()
    chosen, folder = SUITES[suite], Path(out)
    if world_size() > 1:
        raise ValueError("deberta benchmark runs in one process; start it without torchrun")
    options.check(suite)
    names = [name for name in (*chosen.tasks, *chosen.extra) if options.task is None or name in options.task]
    for name in names:
        check_packages(name)
    settings = {"suite": suite, "model": str(model), "data": str(data), "seed": seed, "seeds": seeds}
    _open(folder, {**settings, **asdict(options), "training": asdict(training)}, resume)
    found = SuiteResult(chosen, folder)
    print("  ".join(f"{name:<13}" if i < 2 else f"{name:>8}" for i, name in enumerate(HEADER)), flush=True)
    for name in names:
        task = suites.task(name)
        try:
            splits = _read(task, data, options.limit)
        except NoData:
            found.missing[name] = "no files in --data"
            continue
        if not splits.get("train"):
            found.missing[name] = "no training set in --data"
            continue
        start = _start(chosen, name, str(model), options.mnli, found)
        task = replace(task, read=partial(_already_read, splits))
        place = folder / name
        begun = place.exists() or temporary_path(place).exists()
        result = finetune(start, place, task=task, data=data, seed=seed, seeds=seeds, resume=begun, **vars(training))
        found.scores[name] = _score(task, result, len(splits["train"]), start)
        _write(found, settings)
        print("  ".join(_cells(found.scores[name])), flush=True)
    if not found.scores:
        raise ValueError(f"{data} has no training data of {chosen.title}; expected subfolders such as {names[0]}")
    found.zip, found.absent = _submit(found, suite, data)
    _write(found, settings)
    return found


def _open(folder: Path, settings: dict[str, Any], resume: bool) -> None:
    """Create the folder, or check that the suite in it can resume."""
    if not folder.is_dir() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "suite.json", settings)
        return
    if not (folder / "suite.json").is_file():
        raise ValueError(f"{folder} is not empty and has no suite.json; choose another --out")
    if not resume:
        raise ValueError(
            f"{folder} already contains a benchmark. Use --resume to continue it, or choose another --out."
        )
    check_same("benchmark", folder, read_json(folder / "suite.json"), settings)


def _read(task: Task, data: str | Path, limit: int | None) -> dict[str, list[Example]]:
    splits = read_benchmark(task, data)
    train = splits.get("train", [])
    if limit is not None and len(train) > limit:
        chosen = np.random.default_rng(0).permutation(len(train))[:limit]
        splits["train"] = [train[i] for i in sorted(chosen.tolist())]
    return splits


def _already_read(splits: dict[str, list[Example]], folder: Path) -> dict[str, list[Example]]:
    return dict(splits)


def _start(suite: Suite, task: str, model: str, mnli: str, found: SuiteResult) -> str:
    """Model that a task starts from."""
    source = suite.starts.get(task)
    if source is None or mnli == "none":
        return model
    if mnli != "auto":
        return mnli
    return str(found.scores[source].best) if source in found.scores else model


def _score(task: Task, result: RunResult, train: int, start: str) -> TaskScore:
    runs = [run.folder for run in result.runs or [result]]
    scores = [_run_score(task, folder) for folder in runs]
    best = runs[int(np.argmax(scores))]
    return TaskScore(task.name, task.metric, summary(scores), len(runs), train, start, result.seconds, best)


def _run_score(task: Task, folder: Path) -> float:
    """Mean of the metric over the dev sets: MNLI has two."""
    metrics = read_json(folder / "metrics.json")
    splits = [split for split in ("dev", "dev-mismatched") if split in metrics]
    return float(np.mean([metrics[split][task.metric] for split in splits]))


# -------------------------------------------------------------------------------------------------------------- output


def _cells(score: TaskScore) -> Iterator[str]:
    task, metric, mean, sd, seeds, train, start, seconds = score.row()
    yield from (f"{task:<13}", f"{metric:<13}", f"{mean:>8.2f}", f"{sd:>8.2f}", f"{seeds:>8}", f"{train:>8,}")
    yield from (f"{Path(start).name:>8}", f"{seconds:>8,.0f}")


def _write(found: SuiteResult, settings: dict[str, Any]) -> None:
    rows = [each.row() for each in found.scores.values()]
    notes = [found.average_line() + "."]
    notes += [f"Not run: {name} ({why})." for name, why in found.missing.items()]
    notes += [f"Not part of {found.suite.title}: {name}." for name in found.suite.extra if name in found.scores]
    starts = [name for name in found.suite.starts if name in found.scores]
    if any(found.scores[name].start != settings["model"] for name in starts):
        notes.append("The column start shows which tasks started from a model of MNLI, as in the paper.")
    sections = [rendering.Section("Dev scores", HEADER, rows, " ".join(notes))]
    if found.zip is not None:
        lacks = f"It lacks {', '.join(found.absent)}, which the leaderboard also expects." if found.absent else ""
        sections.append(rendering.Section("Leaderboard", note=f"The files are in {found.zip.name}. {lacks}".strip()))
    sections.append(rendering.Section("Settings", ("", ""), [(k, str(v)) for k, v in settings.items()]))
    title = f"{found.suite.title}: {Path(settings['model']).name}"
    write_text(found.folder / "report.md", rendering.as_markdown(title, [found.average_line()], sections))
    write_text(found.folder / "report.html", rendering.as_html(title, plain_hero("average", found.average), sections))
    scores = {name: {**asdict(each), "best": str(each.best)} for name, each in found.scores.items()}
    write_json(found.folder / "scores.json", {"average": found.average, "tasks": scores, "missing": found.missing})


def _submit(found: SuiteResult, suite: str, data: str | Path) -> tuple[Path | None, list[str]]:
    """Predict the test sets and zip the leaderboard's files. Returns the zip, and the file names that it lacks."""
    folder, chosen = found.folder / "submission", found.suite
    models = {name: name for name in chosen.tasks} | dict(chosen.diagnostics)
    expected = [file for name in models for file in suites.task(name).files.values()]
    for name, source in models.items():
        files = [folder / file for file in suites.task(name).files.values()]
        if source not in found.scores or all(file.is_file() for file in files):
            continue
        for path in files:  # an interrupted suite wrote some of them
            remove(path)
        try:
            splits = read_benchmark(suites.task(name), data)
        except NoData:
            continue
        if any(splits.get(split) for split in suites.task(name).files):
            predict_test(found.scores[source].best, name, data, folder)
    written = [file for file in expected if (folder / file).is_file()]
    if not written:
        return None, expected
    path = found.folder / f"{suite}-submission.zip"
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in written:
            archive.write(folder / file, file)
    return path, [file for file in expected if file not in written]
