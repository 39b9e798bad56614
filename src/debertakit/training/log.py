"""Log of a run: log.jsonl, the terminal, and optionally TensorBoard or trackio."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debertakit.files import write_text
from debertakit.text.progress import Lines, duration

if TYPE_CHECKING:
    from rich.progress import Progress


class Log:
    """Log of one run, on the main process only. A resumed run drops old records after step ``since``."""

    def __init__(self, folder: Path, tracker: str, total: float, unit: str, since: int):
        self.path = folder / "log.jsonl"
        kept = [record for record in read(self.path) if record["step"] <= since]
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        self.file = self.path.open("a", encoding="utf-8")
        self.unit = unit
        self.first: tuple[float, int, float] | None = None  # (done, step, time) of the first step of this session
        self.tracker, self.close_tracker = _tracker(tracker, folder)
        self.bar: Progress | None = None
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = [progress.BarColumn(), progress.TextColumn("{task.description}"), progress.TimeRemainingColumn()]
            self.bar = progress.Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task("starting", total=total)
            self.bar.start()
        self.total = total
        self.lines = Lines("progress")

    def write(self, kind: str, step: int, **figures: object) -> None:
        record = {"kind": kind, "step": step, **figures}
        try:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        except OSError as error:
            raise OSError(
                f"cannot write {self.path}: {error}; free some disk space and continue with --resume"
            ) from error
        numbers = {f"{kind}/{key}": value for key, value in figures.items() if isinstance(value, (int, float))}
        self.tracker(numbers, step)
        shown = "  ".join(f"{key} {_short(value)}" for key, value in figures.items())
        line = f"{kind:<10} step {step:>7}  {shown}"
        if self.bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self.bar.console.print(line, highlight=False)

    def advance(self, done: float, step: int, loss: float) -> None:
        """``done``: the part of ``total`` that is complete, in steps or in seconds."""
        if self.bar is not None:
            self.bar.update(self.task, completed=min(done, self.total), description=f"step {step}  loss {loss:.3f}")
            return
        now = time.monotonic()
        if self.first is None:
            self.first = (done, step, now)
        elif self.lines.due(now):
            before, step_before, began = self.first
            pace = (done - before) / max(now - began, 1e-9)
            rate = (step - step_before) / max(now - began, 1e-9)
            left = f", {duration((self.total - done) / pace)} left" if pace > 0 and done < self.total else ""
            self.lines.write(f"{min(done / self.total, 1):.0%}, step {step}, {rate:.3g} steps/s{left}", now)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        with suppress(OSError):  # a line that did not fit on the disk, already reported
            self.file.close()
        self.close_tracker()


def read(path: Path) -> list[dict[str, Any]]:
    """Read the records of a log. Skip an incomplete last line, and damaged lines with a warning."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], 1):
        record = _record(line)
        if record is None:
            print(f"{path}, line {number}: damaged; the line is skipped", file=sys.stderr)
        else:
            records.append(record)
    return records


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and isinstance(record.get("step"), int) and isinstance(record.get("kind"), str)
    return record if whole else None


def _short(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _tracker(name: str, folder: Path) -> tuple[Callable[[dict[str, float], int], None], Callable[[], None]]:
    """Return two functions: log (figures, step) -> None, and close () -> None."""
    if name == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("tracker=tensorboard needs a package: pip install tensorboard") from None
        writer = SummaryWriter(str(folder / "tensorboard"))

        def write(figures: dict[str, float], step: int) -> None:
            for key, value in figures.items():
                writer.add_scalar(key, value, step)

        return write, writer.close
    if name == "trackio":
        try:
            import trackio
        except ImportError:
            raise ImportError("tracker=trackio needs a package: pip install trackio") from None
        trackio.init(project="debertakit", name=folder.name)
        return lambda figures, step: trackio.log(figures, step=step), trackio.finish
    return lambda figures, step: None, lambda: None
