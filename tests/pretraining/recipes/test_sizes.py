"""The recipes of published sizes have the published numbers of parameters. Built on the meta device."""

import pytest
import torch

from debertakit.pretraining.models import make_models
from debertakit.pretraining.recipes import RECIPES, recipe

MILLIONS = {
    "deberta-base": 139.2,
    "deberta-base-ablation": 139.2,
    "deberta-base-no-c2p": 132.1,
    "deberta-base-absolute": 124.7,
    "deberta-large": 406.2,
    "deberta-900m": 889.8,
    "deberta-1.5b": 1567.7,
    "bert-large": 336.2,
    "roberta-large": 355.4,
    "albert-base": 11.8,
    "albert-large": 17.8,
    "albert-xlarge": 59.1,
    "albert-xxlarge": 223.2,
    "xlnet-large": 361.3,
    "electra-base": 109.5,
    "electra-large": 334.7,
    "deberta-v3-base": 184.0,
    "deberta-v3-large": 434.6,
}
"""Parameters of the released models, with the language-model head, or of the discriminator."""


class Vocabulary:
    """All that a model needs to know about its tokenizer."""

    bos_token_id, eos_token_id, pad_token_id = 1, 2, 0
    cls_token_id, sep_token_id, mask_token_id = 1, 2, 4

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size


def parameters(name: str) -> float:
    config = recipe(name)
    with torch.device("meta"):
        model = make_models(config, Vocabulary(config.data.vocab_size))[0]
    return sum(p.numel() for p in model.parameters()) / 1e6


@pytest.mark.parametrize("name", MILLIONS)
def test_published_sizes(name):
    assert parameters(name) == pytest.approx(MILLIONS[name], rel=0.01)


@pytest.mark.parametrize("name", [n for n in RECIPES if n.startswith("deberta-base-")])
def test_ablations_differ_from_the_full_model_in_the_model_only(name):
    """Table 4: batch 256, learning rate 1e-4, 1 M steps."""
    config, full = recipe(name), recipe("deberta-base-ablation")
    assert (config.optimizer, config.data, config.masking) == (full.optimizer, full.data, full.masking)
    assert (config.data.step_tokens, config.optimizer.lr, config.steps) == (256 * 512, 1e-4, 1_000_000)
    changed = {key for key in config.model | full.model if config.model.get(key) != full.model.get(key)}
    parts = {"emd": "emd_steps", "c2p": "pos_att_type", "p2c": "pos_att_type"}
    expected = {field for part, field in parts.items() if part in name.removeprefix("deberta-base").split("-")}
    if "positions" in name:
        expected = {"emd_steps", "position_biased_input"}
    if "absolute" in name:
        expected = {"emd_steps", "position_biased_input", "relative_attention", "pos_att_type", "norm_rel_ebd"}
    assert changed - {"norm_rel_ebd"} == expected - {"norm_rel_ebd"}


def test_deberta_ap_adds_positions_in_the_input_to_relative_attention():
    for name in ("deberta-ar-ap", "tiny-ar-ap", "tiny-input-positions", "deberta-base-input-positions"):
        model = recipe(name).model
        assert model["position_biased_input"]
        assert model["emd_steps"] == 0
        assert model.get("relative_attention", True)
