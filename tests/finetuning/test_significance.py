"""Against closed forms and enumeration."""

from itertools import product
from math import comb

import numpy as np
import pytest

from debertakit.finetuning.significance import compare, mcnemar, summary


def accuracy(gold, predictions):
    return float(np.mean([g == p for g, p in zip(gold, predictions, strict=True)]))


def product_metric(gold, predictions):
    """Not a mean over examples."""
    return accuracy(gold, predictions) ** 2


@pytest.mark.parametrize("metric", [accuracy, product_metric])
def test_randomisation_is_exact_on_a_small_sample(metric):
    gold = [0, 1, 1, 0, 1, 0, 1]
    a, b = [0, 1, 1, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0, 1]
    observed = metric(gold, a) - metric(gold, b)
    differences = []
    for swaps in product((False, True), repeat=len(gold)):
        left = [y if swap else x for x, y, swap in zip(a, b, swaps, strict=True)]
        right = [x if swap else y for x, y, swap in zip(a, b, swaps, strict=True)]
        differences.append(metric(gold, left) - metric(gold, right))
    expected = np.mean(np.abs(differences) >= abs(observed) - 1e-12)
    found = compare(gold, [a], [b], metric)
    assert found.randomisation_p == pytest.approx(expected)
    assert found.difference == pytest.approx(observed)


def test_bootstrap_interval_of_a_mean_is_the_normal_one():
    draw = np.random.default_rng(0)
    gold = [1] * 100
    a, b = (draw.random(100) < 0.9).astype(int).tolist(), (draw.random(100) < 0.7).astype(int).tolist()
    found = compare(gold, [a], [b], accuracy, resamples=2000)
    differences = np.array(a) - np.array(b)
    error = differences.std() / 10
    assert found.low == pytest.approx(differences.mean() - 1.96 * error, abs=0.15 * error + 0.01)
    assert found.high == pytest.approx(differences.mean() + 1.96 * error, abs=0.15 * error + 0.01)
    assert found.bootstrap_p < 0.05
    assert found.randomisation_p < 0.05


def test_equal_systems_do_not_differ():
    gold, a = [0, 1] * 20, [0, 1, 1, 1] * 10
    found = compare(gold, [a], [a], accuracy, resamples=200)
    assert (found.difference, found.low, found.high) == (0, 0, 0)
    assert found.bootstrap_p == found.randomisation_p == 1


def test_seeds_are_averaged():
    gold = [0, 1, 0, 1, 1, 0]
    a = [[0, 1, 0, 1, 1, 0], [0, 1, 0, 1, 0, 0]]
    b = [[0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 1, 0]]
    found = compare(gold, a, b, accuracy, resamples=200)
    assert found.a == pytest.approx((1 + 5 / 6) / 2)
    assert found.b == pytest.approx(4 / 6)
    with pytest.raises(ValueError, match="2 runs with 1"):
        compare(gold, a, b[:1], accuracy)


def test_luck_is_reproducible_and_mistakes_are_named():
    gold = list(range(30))
    a, b = gold, [0] * 30
    assert compare(gold, [a], [b], accuracy, resamples=100, seed=3) == compare(
        gold, [a], [b], accuracy, resamples=100, seed=3
    )
    with pytest.raises(ValueError, match="2 predictions for 30 examples"):
        compare(gold, [[1, 2]], [b], accuracy)
    with pytest.raises(ValueError, match="two examples"):
        compare([1], [[1]], [[1]], accuracy)


def test_mcnemar_is_the_binomial_test():
    a = [True] * 8 + [False] * 1 + [True] * 5 + [False] * 3
    b = [False] * 8 + [True] * 1 + [True] * 5 + [False] * 3
    expected = 2 * sum(comb(9, k) for k in (0, 1)) / 2**9
    assert mcnemar(a, b) == pytest.approx(expected)
    assert mcnemar(a, a) == 1


def test_summary_over_seeds():
    found = summary([80.0, 82.0, 84.0])
    assert (found.mean, found.sd, found.low, found.high) == (82.0, 2.0, 80.0, 84.0)
    assert str(found) == "82.00 ± 2.00 (min 80.00, max 84.00)"
    assert summary([5.0]).sd == 0
