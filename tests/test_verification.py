import pytest
import torch

from debertakit import model as model_module
from debertakit import verification
from debertakit.attention import positions


@pytest.mark.parametrize(
    "name", ["deberta-base", pytest.param("deberta-v2-xlarge", marks=pytest.mark.slow), "deberta-v3-xsmall"]
)
def test_variants_pass(name):
    row = verification.verify_variant(name)
    assert row.passed, row
    assert row.hidden > 0  # two implementations never agree to the last bit, so 0 would mean no comparison


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(verification, "TEXT_LENGTHS", (17,))


def test_it_notices_a_wrong_scale(quick, monkeypatch):
    from debertakit.config import DebertaConfig

    monkeypatch.setattr(DebertaConfig, "attention_scale", property(lambda self: self.attention_head_size**-0.5))
    row = verification.verify_variant("deberta-v3-xsmall")
    assert row.hidden > verification.TOLERANCE
    assert row.gradients > verification.TOLERANCE
    assert not row.passed


def test_it_notices_distances_that_are_not_clamped(quick, monkeypatch):
    """Imitate stock transformers, which does not clamp distances beyond 512 tokens."""
    clamped = positions.log_bucket
    monkeypatch.setattr(positions, "log_bucket", lambda x, *rule: clamped(x, *rule) - (x <= -511))
    positions._build.cache_clear()
    row = verification.verify_variant("deberta-v3-xsmall")
    positions._build.cache_clear()
    assert row.hidden <= verification.TOLERANCE
    assert row.past_512 > verification.TOLERANCE
    assert not row.passed


def test_one_that_is_not_a_number_among_many_is_not_lost():
    assert verification._most([1e-7, 2e-7]) == pytest.approx(2e-7)
    assert not verification._most([1e-7, float("nan"), 1e-8]) <= verification.TOLERANCE


def test_a_result_that_is_not_a_number_fails(quick, monkeypatch):
    finish = model_module.finish_layer
    monkeypatch.setattr(model_module, "finish_layer", lambda *a: finish(*a) * torch.nan)
    assert not verification.verify_variant("deberta-v3-xsmall").passed
