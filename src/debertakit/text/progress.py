"""Progress of long work: percentage, speed and time left on a terminal, and as lines in a log file.

``ProgressBar`` is for work that can be counted, ``working`` for a call that cannot. Both are silent for the first
``FIRST`` seconds. Light to import.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST, EVERY = 2.0, 5.0
"""Seconds before the first line, and between lines, if the output is not a terminal."""


class ProgressBar:
    """Show a bar on a terminal; otherwise print a line every few seconds."""

    def __init__(self, label: str, unit: str, total: int, read_before: int = 0, made_before: int = 0):
        """``read_before``, ``made_before``: work done by an earlier, interrupted run. ``total`` 0: unknown."""
        from rich import progress
        from rich.console import Console

        self.label, self.unit = label, unit
        self.total, self.read_before, self.made_before = total, read_before, made_before
        self.began = time.monotonic()
        self.lines = Lines(label)
        text, bar, left = progress.TextColumn, progress.BarColumn, progress.TimeRemainingColumn
        percent = [progress.TaskProgressColumn()] if total else []
        columns = [text(label), bar(), *percent, text("{task.fields[note]}"), left()]
        console = Console(stderr=True)
        self.bar = progress.Progress(*columns, console=console, transient=True) if console.is_terminal else None
        if self.bar:
            self.task = self.bar.add_task("", total=total or None, note="")

    def __enter__(self) -> "ProgressBar":
        if self.bar:
            from rich.errors import LiveError

            try:
                self.bar.start()
            except LiveError:  # inside another bar
                self.bar = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def show(self, made: int, read: int) -> None:
        now = time.monotonic()
        rate = (made - self.made_before) / max(now - self.began, 1e-9)
        note = f"{_short(made)} {self.unit}, {_short(rate)}/s"
        if self.bar:
            self.bar.update(self.task, completed=read, note=note)
        elif self.lines.due(now):
            pace = (read - self.read_before) / max(now - self.began, 1e-9)
            percent = f"{min(read / self.total, 1):.0%}, " if self.total else ""
            left = f", {duration((self.total - read) / pace)} left" if self.total and pace > 0 else ""
            self.lines.write(f"{percent}{note}{left}", now)


class Lines:
    """Decide when a log file gets its next line of progress."""

    def __init__(self, label: str):
        self.label, self.next = label, time.monotonic() + FIRST

    def due(self, now: float) -> bool:
        return now >= self.next

    def write(self, text: str, now: float) -> None:
        self.next = now + EVERY
        print(f"{self.label}: {text}", file=sys.stderr, flush=True)


@contextmanager
def working(label: str) -> Iterator[None]:
    """Print how long a call has been running: after two seconds, then every five."""
    began, done = time.monotonic(), threading.Event()

    def report() -> None:
        wait = FIRST
        while not done.wait(wait):
            print(f"{label}: {duration(time.monotonic() - began)}", file=sys.stderr, flush=True)
            wait = EVERY

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def duration(seconds: float) -> str:
    """95 -> "1 min 35 s"."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _short(number: float) -> str:
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:,.1f}{letter}"
    return f"{number:,.0f}"
