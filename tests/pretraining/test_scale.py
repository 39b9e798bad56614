"""docs/scale.md agrees with the code, and the code's FLOP count with the model."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from debertakit.config import DebertaConfig
from debertakit.heads import DebertaForMaskedLM
from debertakit.padding import pack_input
from debertakit.pretraining import scale
from debertakit.pretraining.recipes import recipe

PAGE = Path(__file__).parents[2] / "docs/scale.md"


def test_the_page_is_what_the_code_computes():
    assert scale.table() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("emd_steps", [0, 2])
def test_flops_are_those_of_the_model(emd_steps):
    """Compare with torch's FLOP count of the reference attention, which scores every row of the position table."""
    length, rows = 128, 19  # 15 % of 128
    shape = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
    config = DebertaConfig(**shape, vocab_size=1000, position_buckets=64, emd_steps=emd_steps)
    model = DebertaForMaskedLM(config).eval()
    packed = pack_input(config, torch.zeros(1, length, dtype=torch.long), None)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.predict(packed, torch.arange(rows))
    assert 2 * length * scale.forward_macs(config, length, length) == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_tokens_epochs_days_and_disk_by_hand():
    base = scale.cost("deberta-base", 78)
    assert base.tokens == 1e6 * 2048 * 512
    assert base.epochs == pytest.approx(base.tokens * 4.56 / 78e9)
    assert base.gpu_days["A100"] == pytest.approx(base.flops / (0.4 * 312e12) / 86400)
    assert base.checkpoint_gb == pytest.approx(base.parameters * 12 / 1e9)
    assert base.parameters == pytest.approx(139e6, rel=0.02)  # 138.6 M without the table of absolute positions
    assert scale.cost("deberta-1.5b", 160).parameters == pytest.approx(1565e6, rel=0.01)


def test_published_hyper_parameters():
    base, large, huge = (recipe(name) for name in ("deberta-base", "deberta-large", "deberta-1.5b"))
    assert [r.optimizer.lr for r in (base, large, huge)] == [2e-4, 2e-4, 1.5e-4]
    for r in (base, large, huge):
        o = r.optimizer
        assert (o.beta1, o.beta2, o.eps, o.weight_decay, o.clip) == (0.9, 0.999, 1e-6, 0.01, 1.0)
        assert (o.warmup_steps, o.schedule, r.steps) == (10_000, "linear", 1_000_000)
        assert r.data.step_tokens == 2048 * r.data.max_length == 2048 * 512
        assert (r.masking.strategy, r.masking.max_ngram, r.masking.rate) == ("ngram", 3, 0.15)
        assert r.model["emd_steps"] == 2
