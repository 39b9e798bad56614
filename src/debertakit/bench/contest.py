"""Interleaved timing: every contestant once per round, so that a noisy machine disturbs all alike; read ratios."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

PEERS = ("ours", "hf", "bert", "ort")


@dataclass(frozen=True)
class Timing:
    median: float
    """Milliseconds."""
    low: float
    """First quartile."""
    high: float
    """Third quartile."""


@dataclass(frozen=True)
class Result:
    """One work and each contestant's time on it; None where a peer does not apply."""

    work: str
    times: dict[str, Timing | None]

    def ratio(self, peer: str) -> float | None:
        """How many times as long as ours the peer takes."""
        ours, theirs = self.times["ours"], self.times.get(peer)
        return theirs.median / ours.median if ours is not None and theirs is not None else None

    def row(self) -> dict[str, object]:
        timed = {name: self.times.get(name) for name in PEERS}
        row: dict[str, object] = {"work": self.work}
        row |= {f"{name}_ms": None if t is None else round(t.median, 4) for name, t in timed.items()}
        row |= {
            f"{name}_spread_ms": None if t is None else [round(t.low, 4), round(t.high, 4)] for name, t in timed.items()
        }
        return row


def contest(work: str, contestants: dict[str, Callable[[], object]], seconds: float) -> Result:
    """Time all contestants for about this long in all, at least 5 rounds; one warm-up round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    order = list(contestants.items())
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < end:
        for name, run in order:
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
        order = order[1:] + order[:1]  # nobody always runs behind the same neighbour
        rounds += 1
    return Result(work, {name: _timing(values) for name, values in times.items()})


def _timing(values: list[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4)
    return Timing(median, low, high)
