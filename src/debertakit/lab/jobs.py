"""A queue of jobs over the available cores. Each job is a process of its own, pinned to its cores.

A job is done when its file ``done`` exists, so a repeated command continues where the last one ended. When this process
gets SIGINT or SIGTERM, or fails, it sends SIGTERM to its jobs and waits: a training run finishes its step and saves. A
job whose parent was killed notices that by itself (worker.py).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from debertakit.precision import best_device

POLL = 0.5  # seconds
WORKER = [sys.executable, "-m", "debertakit.lab.worker"]


class JobFailed(ValueError):
    """A job ended with an error. The message names its log."""


@dataclass(frozen=True)
class Job:
    name: str
    kind: str
    """Function of worker.py."""
    settings: dict[str, object]
    done: Path
    log: Path
    total: int = 0
    """Steps of a training run, for the table."""
    may_fail: bool = False
    """A failure is a result: a learning rate at which the run diverges."""

    @property
    def finished(self) -> bool:
        return self.done.exists()


@dataclass
class Running:
    job: Job
    process: subprocess.Popen[bytes]
    cores: list[int]
    began: float = field(default_factory=time.monotonic)


Show = Callable[[Sequence[Running], int, int], None]
"""Called twice a second with the running jobs, the number of finished ones and the number of all."""


def core_groups(threads: int) -> list[list[int]]:
    """The cores of each place in the queue. One place on a GPU, or if the system cannot pin processes."""
    if best_device().type == "cuda" or not hasattr(os, "sched_getaffinity"):
        return [[]]
    cores = sorted(os.sched_getaffinity(0))
    groups = [cores[start : start + threads] for start in range(0, len(cores) - threads + 1, threads)]
    return groups or [cores]


def run_jobs(jobs: Sequence[Job], show: Show, *, threads: int = 1, alone: bool = False) -> set[str]:
    """Run the jobs that are not done, in order. ``alone``: one at a time. Returns the names of those that failed."""
    free = core_groups(threads)[: 1 if alone else None]
    waiting = [job for job in jobs if not job.finished]
    running: list[Running] = []
    failed: set[str] = set()
    with stopping_on_sigterm():
        try:
            while waiting or running:
                while waiting and free:
                    cores = free.pop()
                    running.append(Running(waiting[0], _start(waiting.pop(0), cores, threads), cores))
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    free.append(each.cores)
                    if each.process.returncode or not each.job.finished:
                        if not each.job.may_fail:
                            raise JobFailed(f"{each.job.name} failed: {_last_line(each.job.log)} ({each.job.log})")
                        failed.add(each.job.name)
                show(running, len(jobs) - len(waiting) - len(running), len(jobs))
                time.sleep(POLL if running else 0)
        finally:
            for each in running:
                each.process.terminate()
            for each in running:
                each.process.wait()
    return failed


def _start(job: Job, cores: list[int], threads: int) -> "subprocess.Popen[bytes]":
    job.log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))}
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            [*WORKER, job.kind],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**environment, "RAYON_NUM_THREADS": str(threads)},
        )
    if cores:
        os.sched_setaffinity(process.pid, cores)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(job.settings).encode())
    return process


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("deberta: ") if lines else "it wrote no message"


@contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as SIGINT does, so that ``finally`` blocks run."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
