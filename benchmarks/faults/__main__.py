"""Inject faults into training, fine-tuning, corpus preparation and prediction, and resume: is anything lost?

    python -m benchmarks.faults --runs 200 --seed 0              all jobs and kinds in turn
    python -m benchmarks.faults --seed 0 --only 17               repeat run 17 of these
    python -m benchmarks.faults --runs 200 --part 1/2            odd runs; --part 2/2: even runs, on another core
    python -m benchmarks.faults --table one.jsonl two.jsonl      one table of both

Outcomes: *resumed* (the result is byte for byte that of an undisturbed run), *clear line* (the job stopped with exit
code 2 and one line; after following its advice, the result is the same), *lost* (anything else: a traceback, a hang,
another result, a half-written result that looks complete). The exit code is 1 if a run was lost.
"""

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

from benchmarks.faults.damage import can_mount
from benchmarks.faults.runs import DISK, KINDS, Harness, Run, plan

IMPORTED = (
    "debertakit.cli",
    "debertakit.finetuning.seq2seq",
    "debertakit.finetuning.train",
    "debertakit.inference.files",
    "debertakit.inference.tasks",
    "debertakit.pretraining.from_text",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "sacrebleu",
    "sklearn.metrics",
    "torch.distributed.launcher.api",
    "transformers.trainer",
)
OUTCOMES = ("resumed", "clear line", "lost")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="I/N: every N-th run, from the I-th")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of runs")
    parser.add_argument("--jobs", nargs="*", default=[], help="names of jobs, such as MLM and 'MLM x 2'")
    parser.add_argument("--kinds", nargs="*", default=[], choices=KINDS)
    parser.add_argument("--out", type=Path, help="file for the runs, one JSON line each")
    parser.add_argument("--folder", type=Path, help="working folder, which is kept; default: a temporary one")
    parser.add_argument("--table", type=Path, nargs="*", help="print the table of these files, and do nothing else")
    options = parser.parse_args()
    if options.table:
        found = [Run(**json.loads(line)) for path in options.table for line in path.read_text().splitlines()]
        print(table(found))
        return int(any(run.outcome == "lost" for run in found))
    warm_up()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        found = inject(options, folder.resolve())
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(found))
    return int(any(run.outcome == "lost" for run in found))


def inject(options: argparse.Namespace, folder: Path) -> list[Run]:
    first, every = map(int, options.part.split("/"))
    harness, found = Harness(folder), []
    began = time.monotonic()
    for number, (job, kind) in enumerate(plan(options.runs, options.jobs, options.kinds)):
        chosen = number in options.only if options.only else number % every == first - 1
        if not chosen:
            continue
        if kind == DISK and not can_mount():
            print(f"{number:4} {job.name}, {kind}: skipped, only root can mount a small disk", flush=True)
            continue
        start = time.monotonic()
        run = harness.inject(number, options.seed, job, kind)
        found.append(run)
        seconds = time.monotonic() - start
        print(f"{number:4} {seconds:5.1f} s  {job.name:<16}{kind:<19}{run.outcome:<11}{run.fault}", flush=True)
        if run.why:
            print(f"     {run.why}", flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")
    print(f"{len(found)} runs in {time.monotonic() - began:.0f} s\n")
    return found


def warm_up() -> None:
    """Import what the jobs import, so that their processes, forked from this one, start at once."""
    for name in IMPORTED:
        importlib.import_module(name)


def table(runs: Sequence[Run]) -> str:
    """Two Markdown tables: outcomes by kind, and by job."""
    return "\n\n".join((_by(runs, "kind", list(KINDS)), _by(runs, "job", list(dict.fromkeys(r.job for r in runs)))))


def _by(runs: Sequence[Run], name: str, values: Sequence[str]) -> str:
    rows = [f"| {name} | runs | resumed identically | clear line | lost |", "|---|---|---|---|---|"]
    for value in [*values, "all"]:
        counts = Counter(run.outcome for run in runs if value in (getattr(run, name), "all"))
        if counts:
            cells = [counts.total(), *(counts[outcome] for outcome in OUTCOMES)]
            rows.append(f"| {value} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
