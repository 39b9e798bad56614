"""Formulas of parameters and FLOPs against what torch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from debertakit.attention import use_backend
from debertakit.complexity import PEERS, complexity_table, count, flops, position_parameters, score_bytes
from debertakit.config import preset
from debertakit.explain.parts import EncodedText, Subject, look
from debertakit.model import DebertaModel
from tests import tiny
from tests.models import small

VARIANTS = ("deberta-base", "deberta-v2-xlarge", "deberta-v3-base")


def counted(model, length):
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(length)[None] % 90 + 5)
    return counter.get_total_flops()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("length", [9, 40])
def test_flops_are_those_that_torch_counts(variant, length):
    config = small(variant, emd_steps=0)
    with use_backend("reference"):  # with gradients, it projects only the rows that the text uses
        measured = counted(DebertaModel(config).train(), length)
    cost = flops(config, length)
    assert measured == cost.shared + cost.positions + cost.tables


def test_flops_of_bert():
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=100, attn_implementation="eager", **shape)  # torch does not count SDPA on a CPU
    model = BertModel(config, add_pooling_layer=False).eval()
    cost = flops(config, 40)
    assert (cost.positions, cost.tables) == (0, 0)
    assert counted(model, 40) == cost.shared


@pytest.mark.parametrize("variant", VARIANTS)
def test_position_parameters(variant):
    """The same model without relative attention has none of them; v1's separate projections have biases in Qr's."""
    config = small(variant, emd_steps=0)
    names = dict(DebertaModel(config).named_parameters())
    ours = [name for name in names if "rel_embeddings" in name or ("pos_" in name and name.endswith("weight"))]
    assert position_parameters(config) == sum(names[name].numel() for name in ours) > 0


def test_the_paper_says_49_million_more_for_large_and_14_for_base():
    assert position_parameters(preset("deberta-large")) / 1e6 == pytest.approx(49, abs=3)
    assert position_parameters(preset("deberta-base")) / 1e6 == pytest.approx(14, abs=2)


def test_parameters_of_bert_and_roberta():
    """The published 110 M and 125 M contain the pooler (0.6 M)."""
    assert count("bert-base", PEERS["bert-base"]).total == 109_482_240 - 590_592
    assert count("roberta-base", PEERS["roberta-base"]).total == 124_645_632 - 590_592


def test_score_bytes_are_those_of_the_reference():
    config = small(emd_steps=0)
    encoded = EncodedText("", [""] * 12, (), 0, {"input_ids": torch.arange(12)[None] + 5})
    parts = look(Subject("m", DebertaModel(config), tiny.tokenizer()), encoded).parts
    assert score_bytes(config, 12) == sum(part[0].nbytes for part in parts.values())


@pytest.mark.slow
def test_table():
    lines = list(complexity_table())
    assert [line.split()[0] for line in lines[1:6]] == [*PEERS, "deberta-base"]
    base, v3 = (next(line for line in lines if line.startswith(name)) for name in ("bert-base", "deberta-v3-base"))
    assert "+0%" in base
    assert "+0%" not in v3
