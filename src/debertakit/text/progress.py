"""Progress display for long work on files: amount done, speed, and time left (estimated from the bytes read)."""

import sys
import time


class ProgressBar:
    """Show a bar on a terminal; otherwise print a line every five seconds."""

    def __init__(self, label: str, unit: str, total: int, read_before: int = 0, made_before: int = 0):
        """``read_before``, ``made_before``: work done by an earlier, interrupted run. ``total`` 0: unknown."""
        from rich import progress
        from rich.console import Console

        self.label, self.unit = label, unit
        self.total, self.read_before, self.made_before = total, read_before, made_before
        self.began = self.printed = time.monotonic()
        text, bar, left = progress.TextColumn, progress.BarColumn, progress.TimeRemainingColumn
        columns = [text(label), bar(), text("{task.fields[note]}"), left()]
        console = Console(stderr=True)
        self.bar = progress.Progress(*columns, console=console, transient=True) if console.is_terminal else None
        if self.bar:
            self.task = self.bar.add_task("", total=total or None, note="")

    def __enter__(self) -> "ProgressBar":
        if self.bar:
            self.bar.start()
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
        elif now - self.printed >= 5:
            self.printed = now
            pace = (read - self.read_before) / (now - self.began)
            left = f", {(self.total - read) / pace:.0f} s left" if self.total and pace > 0 else ""
            print(f"{self.label}: {note}{left}", file=sys.stderr, flush=True)


def _short(number: float) -> str:
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:,.1f}{letter}"
    return f"{number:,.0f}"
