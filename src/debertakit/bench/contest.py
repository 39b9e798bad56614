"""Interleaved timing: each round runs every contestant once, so noise affects all equally. Compare ratios."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

PAUSE = 0.02  # seconds
PEERS = ("ours", "hf", "bert", "modernbert", "ort", "onnx")


@dataclass(frozen=True)
class Timing:
    median: float
    """Milliseconds."""
    low: float
    """First quartile."""
    high: float
    """Third quartile."""


@dataclass(frozen=True)
class Measurement:
    """One workload and each contestant's time on it; None if a contestant does not apply."""

    work: str
    times: dict[str, Timing | None]

    def ratio(self, peer: str) -> float | None:
        """The peer's time divided by ours."""
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


def contest(work: str, contestants: dict[str, Callable[[], object]], seconds: float) -> Measurement:
    """Time all contestants for about ``seconds`` in total, at least 3 rounds, after one uncounted warm-up round.

    The order is random in each round, so that every contestant runs after every other one. Each run starts after a
    pause, because thread pools keep spinning for a while after their work, ONNX Runtime's most of all.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    order = random.Random(0)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        for name in order.sample(list(contestants), len(contestants)):
            time.sleep(PAUSE)
            start = time.perf_counter()
            contestants[name]()
            times[name].append((time.perf_counter() - start) * 1e3)
        rounds += 1
    return Measurement(work, {name: _timing(values) for name, values in times.items()})


def _timing(values: list[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4)
    return Timing(median, low, high)
