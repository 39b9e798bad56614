"""Progress of the preparation of a corpus: tokens, tokens a second, time left."""

import sys
import time


class TokenProgress:
    """A bar on a terminal; elsewhere a line every five seconds."""

    def __init__(self, total_bytes: int, bytes_before: int, tokens_before: int):
        """``before``: what an earlier, interrupted run has done."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.total, self.bytes_before, self.tokens_before = total_bytes, bytes_before, tokens_before
        self.began = self.printed = time.monotonic()
        columns = [TextColumn("tokenising"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn()]
        console = Console(stderr=True)
        self.bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        if self.bar:
            self.task = self.bar.add_task("", total=total_bytes or None, note="")

    def __enter__(self) -> "TokenProgress":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def show(self, tokens: int, bytes_read: int) -> None:
        now = time.monotonic()
        rate = (tokens - self.tokens_before) / max(now - self.began, 1e-9)
        note = f"{tokens / 1e6:.1f} M tokens, {rate / 1e3:,.0f} k/s"
        if self.bar:
            self.bar.update(self.task, completed=bytes_read, note=note)
        elif now - self.printed >= 5:
            self.printed = now
            pace = (bytes_read - self.bytes_before) / (now - self.began)
            left = f", {(self.total - bytes_read) / pace:.0f} s left" if self.total and pace > 0 else ""
            print(f"tokenising: {note}{left}", file=sys.stderr, flush=True)
