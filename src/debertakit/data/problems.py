"""Collect problems in a data file and report them in a few lines.

A row that cannot be used is skipped, and a row that can be corrected is repaired; both are counted. The first few
problems are logged with file and line, the rest only as counts. A file is rejected if more than ``LIMIT`` of its rows
are skipped: the cause is then usually a wrong column, a wrong separator or a wrong file.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

LIMIT = 0.05
NAMED = 3

logger = logging.getLogger("debertakit.data")


class _Problem(NamedTuple):
    where: str
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


@dataclass
class Problems:
    """Problems of one file, collected while it is read."""

    path: Path
    unit: str = "line"
    skipped: list[_Problem] = field(default_factory=list)
    repaired: list[_Problem] = field(default_factory=list)

    def skip(self, number: int | str, reason: str, detail: str = "") -> None:
        """Record a skipped row. Problems are counted by ``reason``; ``detail`` is only shown."""
        self.skipped.append(self._problem(number, reason, detail))

    def repair(self, number: int | str, reason: str, detail: str = "") -> None:
        """Record a row that is used after the correction in ``reason``. Repairs have no limit."""
        self.repaired.append(self._problem(number, reason, detail))

    def check(self, used: int) -> None:
        """Raise if too many rows were skipped. ``used``: the number of rows that were kept."""
        total = used + len(self.skipped)
        if not total:
            raise ValueError(f"{self.path}: the file has no examples")
        if len(self.skipped) > LIMIT * total:
            share = f"{len(self.skipped)} of {total} rows cannot be used"
            raise ValueError(f"{self.skipped[0]}; {share} ({counts(self.skipped)}), more than {LIMIT:.0%}")

    def finish(self, used: int) -> None:
        """``check``, and log the problems."""
        self.check(used)
        total = used + len(self.skipped)
        for problems, verdict in ((self.skipped, "; skipped"), (self.repaired, "")):
            for problem in problems[:NAMED]:
                logger.warning("%s%s", problem, verdict)
            if len(problems) > NAMED:
                logger.warning("%s: %d of %d rows: %s%s", self.path, len(problems), total, counts(problems), verdict)

    def _problem(self, number: int | str, reason: str, detail: str) -> _Problem:
        return _Problem(f"{self.path}, {self.unit} {number}", reason, detail)


def counts(problems: Sequence[_Problem]) -> str:
    """Count problems by reason: '9 empty text, 3 no label'."""
    return ", ".join(f"{n} {reason}" for reason, n in Counter(p.reason for p in problems).most_common())


def shorten(value: object, length: int = 40) -> str:
    """Shorten a value for a one-line error message."""
    text = repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
