"""Significance tests: is A better than B, or is the difference chance?

All tests are paired, because both systems predicted the same examples. m is the metric on a set of examples (its mean
over seeds, if there are several) and d = m(A) - m(B):

    bootstrap         resample the examples with replacement; the interval of d comes from its quantiles, and
                      p = 2 min(P(d <= 0), P(d >= 0))
    randomisation     randomly swap the two predictions of each example; p = P(|d'| >= |d|), exact if all 2^n swaps
                      can be enumerated
    McNemar           accuracy only: of the examples that only one system gets right, does A get half? Exact
                      binomial test

The bootstrap estimates how d would vary on other examples of the same kind. The other two tests estimate how often
equal systems would differ by that much. For the variation between seeds, see ``summary``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

E = TypeVar("E")
P = TypeVar("P")


@dataclass(frozen=True)
class Comparison:
    a: float
    b: float
    low: float
    high: float
    """95 % interval of a - b."""
    bootstrap_p: float
    randomisation_p: float
    mcnemar_p: float | None = None

    @property
    def difference(self) -> float:
        return self.a - self.b

    def verdict(self, a: str, b: str) -> str:
        """The result in words, by approximate randomisation at the 5 % level."""
        p = f"p = {self.randomisation_p:.2g}"
        if self.randomisation_p >= 0.05 or self.a == self.b:
            return f"no significant difference ({p})"
        return f"{a if self.a > self.b else b} is better ({p})"

    def __str__(self) -> str:
        tests = {"paired bootstrap": self.bootstrap_p, "approximate randomisation": self.randomisation_p}
        if self.mcnemar_p is not None:
            tests["McNemar"] = self.mcnemar_p
        lines = [f"difference {self.difference:+.2f}, 95 % interval [{self.low:+.2f}, {self.high:+.2f}]"]
        return "\n".join([*lines, *(f"{name}: p = {p:.4f}" for name, p in tests.items())])


def compare(
    examples: Sequence[E],
    a: Sequence[Sequence[P]],
    b: Sequence[Sequence[P]],
    metric: Callable[[Sequence[E], Sequence[P]], float],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems. ``a`` and ``b`` have one list of predictions per seed."""
    if len(a) != len(b) or not a:
        raise ValueError(f"cannot compare {len(a)} runs with {len(b)}; both sides need the same number of seeds")
    for run in (*a, *b):
        if len(run) != len(examples):
            raise ValueError(f"{len(run)} predictions for {len(examples)} examples")
    if len(examples) < 2:
        raise ValueError("a comparison needs at least two examples")
    from scipy import stats  # takes a second to import

    n = len(examples)
    both = [[*left, *right] for left, right in zip(a, b, strict=True)]  # prediction i of A is at i, of B at n + i

    def mean(chosen: np.ndarray, rows: np.ndarray) -> float:
        picked, places = [examples[i] for i in chosen.tolist()], rows.tolist()
        return float(np.mean([metric(picked, [run[i] for i in places]) for run in both]))

    def resampled(indices: np.ndarray) -> float:
        return mean(indices, indices) - mean(indices, n + indices)

    def exchanged(left: np.ndarray, right: np.ndarray) -> float:
        return mean(everyone, left) - mean(everyone, right)

    everyone = np.arange(n)
    drawn = stats.bootstrap(
        (everyone,), resampled, vectorized=False, n_resamples=resamples, method="percentile", rng=_draw(seed)
    ).bootstrap_distribution
    drawn = drawn[np.isfinite(drawn)]  # a correlation can be undefined on a resample
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    swapped = stats.permutation_test(
        (everyone, n + everyone),
        exchanged,
        permutation_type="samples",
        vectorized=False,
        n_resamples=resamples,
        rng=_draw(seed),
    )
    return Comparison(
        mean(everyone, everyone),
        mean(everyone, n + everyone),
        float(low),
        float(high),
        _two_sided(drawn),
        float(swapped.pvalue),
    )


def _two_sided(differences: np.ndarray) -> float:
    """Two-sided p-value. Never 0: the sample itself counts as one draw on each side."""
    below, above = int(np.sum(differences <= 0)), int(np.sum(differences >= 0))
    return min(1.0, 2 * (min(below, above) + 1) / (len(differences) + 1))


def mcnemar(a_right: Sequence[bool], b_right: Sequence[bool]) -> float:
    """p-value of the exact test that A alone is right as often as B alone."""
    from scipy import stats

    only_a = sum(x and not y for x, y in zip(a_right, b_right, strict=True))
    only_b = sum(y and not x for x, y in zip(a_right, b_right, strict=True))
    return float(stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


@dataclass(frozen=True)
class Summary:
    mean: float
    sd: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.sd:.2f} (min {self.low:.2f}, max {self.high:.2f})"


def summary(figures: Sequence[float]) -> Summary:
    """Statistics over seeds. The standard deviation uses n - 1, and is 0 for one seed."""
    values = np.asarray(figures, dtype=float)
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return Summary(float(values.mean()), sd, float(values.min()), float(values.max()))


def _draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
