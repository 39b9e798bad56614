"""The live table of a comparison: the running jobs on a terminal, or a line every few seconds."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from debertakit.lab.jobs import Job, Running, Show
from debertakit.text.progress import Lines, duration
from debertakit.training import log

if TYPE_CHECKING:
    from rich.table import Table


@contextmanager
def live_table() -> Iterator[Show]:
    if not sys.stderr.isatty():
        yield _Printer()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=2, transient=True) as live:
        yield lambda running, done, total: live.update(_table(running, done, total))


class _Printer:
    def __init__(self) -> None:
        self.lines = Lines("compare")

    def __call__(self, running: Sequence[Running], done: int, total: int) -> None:
        now = time.monotonic()
        if running and self.lines.due(now):
            told = "; ".join(f"{each.job.name}{_shown(each.job)}" for each in running)
            self.lines.write(f"{done} of {total} jobs are done; {told}", now)


def _shown(job: Job) -> str:
    step, loss = progress(job)
    return f" (step {step:,} of {job.total:,}, loss {loss:.3f})" if step else ""


def _table(running: Sequence[Running], done: int, total: int) -> "Table":
    from rich.table import Table

    table = Table(title=f"{done} of {total} jobs of this phase are done", title_justify="left")
    for name in ("job", "cores", "step", "loss", "time"):
        table.add_column(name, justify="left" if name == "job" else "right")
    for each in running:
        step, loss = progress(each.job)
        steps, shown = (f"{step:,} / {each.job.total:,}", f"{loss:.3f}") if step else ("", "")
        elapsed = duration(time.monotonic() - each.began)
        table.add_row(each.job.name, ", ".join(map(str, each.cores)), steps, shown, elapsed)
    return table


def progress(job: Job) -> tuple[int, float]:
    """Last step and training loss in the log of a training run; (0, 0) for other jobs."""
    if not job.total:
        return 0, 0.0
    records = [record for record in log.read(Path(str(job.settings["out"])) / "log.jsonl") if record["kind"] == "train"]
    return (records[-1]["step"], records[-1]["loss"]) if records else (0, 0.0)
