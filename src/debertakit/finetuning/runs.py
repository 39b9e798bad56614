"""The folder of a fine-tuning run, and several seeds of one job.

A run is written to ``OUT.part``, which is renamed to ``OUT`` when the run is complete:

    run.json                model, data and all options; --resume compares it with the new command
    log.jsonl               training loss and dev scores by step
    checkpoints/            the Trainer's checkpoints, deleted at the end
    metrics.json            dev scores and training time
    predictions-dev.jsonl   one line per dev example
    report.html, report.md, README.md, the model and its tokenizer

With several seeds, OUT has one such folder per seed (seed-0, seed-1, ...), summary.json, report.html and report.md.

With several processes (torchrun), only the main process reads and writes these files. ``on_main`` passes its results to
the other processes.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from torch import distributed

from debertakit.files import flush, flush_all, naming, remove, temporary_path, write_json
from debertakit.finetuning.card import Record
from debertakit.finetuning.report import write_summary
from debertakit.finetuning.significance import Summary, summary
from debertakit.precision import best_device
from debertakit.training.checksums import CHECKSUMS, WRITE_ERRORS, damage
from debertakit.training.ranks import connect, is_lost_rank

T = TypeVar("T")
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class RunResult:
    folder: Path
    scores: dict[str, float]
    """Dev scores; with several seeds, their means."""
    seconds: float
    runs: list["RunResult"] = field(default_factory=list)
    """One result per seed, if there are several."""
    signatures: dict[str, str] = field(default_factory=dict)
    """sacreBLEU's signatures, which say how a score was computed."""
    verdict: str = ""
    """The result in words, with warnings (verdict.py). With several seeds: the warnings."""

    def summary(self, metric: str) -> Summary:
        return summary([run.scores[metric] for run in self.runs or [self]])

    def __str__(self) -> str:
        seeds = [f"{name}: {self.summary(name)} over {len(self.runs)} seeds" for name in self.scores if self.runs]
        line = f"{self.folder}: {show_scores(self.scores)} on the dev set, {self.seconds:,.0f} s"
        words = [self.verdict] if self.verdict else []
        return "\n".join([*words, *seeds, line, *(f"{name}: {text}" for name, text in self.signatures.items())])


def show_scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def seed_folders(out: Path, seed: int, seeds: int) -> dict[int, Path]:
    """The folder of each seed."""
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it must be >= 1")
    return {seed: out} if seeds == 1 else {number: out / f"seed-{number}" for number in range(seed, seed + seeds)}


def run_seeds(
    out: Path, folders: Mapping[int, Path], record: Record, run: Callable[[int, Path], RunResult]
) -> RunResult:
    """Run every seed, one after the other, and summarise several. ``record``: run.json of the first seed."""
    results = [run(seed, folder) for seed, folder in folders.items()]
    if len(results) == 1:
        return results[0]
    scores = {name: float(np.mean([each.scores[name] for each in results])) for name in results[0].scores}
    rows = [(each.folder.name, each.scores) for each in results]
    on_main(lambda: write_summary(out, record, rows))
    warnings = [f"{each.folder.name}: {line}" for each in results for line in each.verdict.splitlines()[1:]]
    seconds = sum(each.seconds for each in results)
    return RunResult(out, scores, seconds, results, results[0].signatures, "\n".join(warnings))


# ------------------------------------------------------------------------------------------------------------ one run


def check_folders(out: Path, runs: Iterable[Path], resume: bool) -> None:
    """Raise before training starts if a run could not be saved in these folders."""
    runs = list(runs)
    if runs != [out] and (out / "run.json").exists():
        raise ValueError(f"{out} contains a single run; choose another --out for {len(runs)} runs")
    parts = [temporary_path(run) for run in runs]
    for folder in (out, *runs, *parts):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; choose another --out")
    for folder in (*runs, *parts):
        _check_run(folder, resume)


def _check_run(folder: Path, resume: bool) -> None:
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not resume:
        raise ValueError(f"{folder} already contains a run. Use --resume to continue it, or choose another --out.")
    if not (folder / "run.json").is_file():
        raise ValueError(f"{folder} has no run to resume (no run.json); choose another --out")


def recorded_precision(runs: Iterable[Path]) -> str | None:
    """Precision in the first run.json among these runs, finished or not. All seeds use the same precision."""
    for folder in (place for run in runs for place in (run, temporary_path(run))):
        if (folder / "run.json").is_file():
            return read_json(folder / "run.json").get("precision")
    return None


def open_run(out: Path, record: Record, resume: bool) -> RunResult | None:
    """Create ``OUT.part``, or check that the run in it can resume. Returns the result if the run is finished."""
    part = temporary_path(out)
    for folder in (out, part):
        if folder.is_dir() and any(folder.iterdir()):
            _check_run(folder, resume)
            before = read_json(folder / "run.json")
            if before.get("precision") == "auto":  # version 1 did not record the resolved precision (precision.py)
                del before["precision"]
            check_same("run", folder, before, record)
            if folder == out:
                remove(out / CHECKPOINTS)
                metrics = read_json(out / "metrics.json")
                return RunResult(
                    out,
                    metrics["dev"],
                    metrics["seconds"],
                    signatures=metrics.get("signatures", {}),
                    verdict=metrics.get("verdict", ""),
                )
    part.mkdir(parents=True, exist_ok=True)
    write_json(part / "run.json", record)
    return None


def check_same(what: str, folder: Path, before: Record, now: Record) -> None:
    """Raise if a run, search or benchmark in ``folder`` was started with other settings than the new command has."""
    for name, value in json.loads(json.dumps(now)).items():
        if before.get(name, value) != value:
            raise ValueError(
                f"{folder} contains another {what}, with {name} {before[name]!r} instead of {value!r}; "
                "choose another --out"
            )


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turn the errors of a full disk, from any library, into an OSError that says how to continue."""
    try:
        yield
    except WRITE_ERRORS as error:
        if is_lost_rank(error):
            raise
        raise OSError(
            f"cannot write {what} to {folder}: {error}. Free some disk space and continue with --resume"
        ) from error


def close_run(out: Path) -> None:
    """Flush a complete run to disk, rename its folder to ``out``, and delete its checkpoints."""
    part = temporary_path(out)
    for path in part.iterdir():
        if path.name != CHECKPOINTS:
            flush_all(path)
    part.rename(out)
    flush(out.parent)
    remove(out / CHECKPOINTS)


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest intact checkpoint whose best checkpoint is intact too, and delete the damaged ones.

    The best checkpoint is the one whose weights the Trainer loads at the end.
    """
    intact = set()
    for path in folder.glob("checkpoint-*"):
        wrong = damage(path)
        if wrong is None:
            intact.add(path)
            continue
        if (path / CHECKSUMS).exists():  # otherwise the run ended while it wrote the checkpoint
            print(f"the checkpoint {path} is damaged ({wrong}); resuming without it", file=sys.stderr)
        remove(path)
    usable = [path for path in intact if _best(path) is None or folder / str(_best(path)) in intact]
    return max(usable, key=checkpoint_step, default=None)


def delete_old_checkpoints(newest: Path) -> None:
    """Keep this checkpoint and the best one."""
    for path in newest.parent.glob("checkpoint-*"):
        if path.name not in (newest.name, _best(newest)):
            remove(path)


def _best(checkpoint: Path) -> str | None:
    """Name of the best checkpoint so far."""
    best = read_json(checkpoint / "trainer_state.json").get("best_model_checkpoint")
    return None if best is None else Path(best).name


def checkpoint_step(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])


def seconds_before(checkpoint: Path | None) -> float:
    """Seconds that the run had taken when this checkpoint was written."""
    if checkpoint is None:
        return 0.0
    history = read_json(checkpoint / "trainer_state.json")["log_history"]
    return max((entry["eval_elapsed"] for entry in history if "eval_elapsed" in entry), default=0.0)


def read_json(path: Path) -> Record:
    with naming(path):
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            advice = f"restore it from a backup, or delete {path.parent} and train again"
            raise ValueError(f"{path} is damaged ({error}); {advice}") from error


# ---------------------------------------------------------------------------------------------------------- processes


def world_size() -> int:
    """Number of processes that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_main() -> bool:
    return int(os.environ.get("RANK", 0)) == 0


def on_main(work: Callable[[], T]) -> T:
    """Do ``work`` on the main process and return its result on every process.

    If it raises, the main process ends with the error, and torchrun ends the others.
    """
    if world_size() == 1:
        return work()
    if not distributed.is_initialized():
        # The others wait while the main process evaluates.
        connect("gloo" if best_device().type == "cpu" else "nccl", timedelta(hours=12))
        atexit.register(distributed.destroy_process_group)  # otherwise gloo's threads may abort the exit
    box = [work() if is_main() else None]
    distributed.broadcast_object_list(box)
    return cast(T, box[0])
