import numpy as np
import pytest
from scipy import stats

from debertakit.lab.claims import Difference, difference, difference_of_scores, holm, judge


def test_one_example_is_a_paired_t_test_over_seeds():
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(5, 1)), draw.normal(size=(5, 1))
    expected = stats.ttest_rel(a[:, 0], b[:, 0])
    found = difference(a, b)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_one_seed_is_a_paired_t_test_over_examples():
    draw = np.random.default_rng(1)
    a, b = draw.normal(size=(1, 40)), draw.normal(0.3, size=(1, 40))
    assert difference(a, b).p == pytest.approx(stats.ttest_rel(a[0], b[0]).pvalue)


def test_both_seeds_and_examples_widen_the_interval():
    """Simulated effects of seeds and examples: a true difference of 0 is outside the interval in about 5 % of draws."""
    draw = np.random.default_rng(2)
    outside = 0
    for _ in range(400):
        effects = draw.normal(size=(4, 1)) + draw.normal(size=(1, 30)) + draw.normal(size=(4, 30))
        found = difference(effects, np.zeros_like(effects))
        outside += not found.low <= 0 <= found.high
    assert 4 <= outside <= 36  # 1 to 9 %
    seeds_only = draw.normal(size=(4, 1)) + np.zeros((4, 30))
    assert difference(seeds_only, 0 * seeds_only).p == pytest.approx(stats.ttest_1samp(seeds_only[:, 0], 0).pvalue)


def test_a_score_that_is_no_mean_takes_its_variance_from_outside():
    found = difference_of_scores([60.0, 62.0, 61.0], [58.0, 58.0, 58.0], v_examples=0.0, examples=100)
    assert found.p == pytest.approx(stats.ttest_1samp([2.0, 4.0, 3.0], 0).pvalue)
    assert difference_of_scores([60.0, 62.0], [58.0, 58.0], 4.0, 100).high > found.high


def test_holm_against_the_definition():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_verdicts_in_words():
    def claim(mean: float, p: float, seeds: int = 3) -> str:
        (found,) = judge({("A", "B", "bits"): Difference(mean, 0, 0, p, seeds)})
        return found.verdict

    assert [claim(1, 0.01), claim(-1, 0.01), claim(1, 0.06)] == ["supported", "contradicted", "not shown"]
    assert claim(1, 0.001, seeds=1) == "not shown"
    two = judge({("A", "B", "x"): Difference(1, 0, 2, 0.03, 3), ("A", "C", "x"): Difference(1, 0, 2, 0.03, 3)})
    assert [each.verdict for each in two] == ["not shown", "not shown"]  # 0.03 twice: Holm
    assert str(two[0]) == "A is better than B in x: not shown, at this scale"


def test_the_same_everywhere_shows_nothing():
    assert difference(np.ones((3, 9)), np.ones((3, 9))).p == 1.0
