"""Size and cost of the released models and of BERT and RoBERTa (``deberta models``, the paper's appendix A.7).

Parameters are counted on the meta device, without weights. A multiplication and an addition are two FLOPs; only matrix
products count. For a text of N tokens, with L layers of width d, feed-forward width f, and a table of 2k relative
positions, of which a text of N tokens uses R <= min(2N - 1, 2k) rows:

    BERT                    L (8 N d^2 + 4 N d f + 4 N^2 d)      projections, feed-forward, attention
    c2p and p2c             L (2 N R d) each                     content with each position row
    projected positions     L (2 R d^2) for each of Kr and Qr    prediction: once per model; training: once per batch
    v2's convolution        2 N kernel d^2                       in one layer

The scores of one layer, for one text, in an implementation that keeps them (transformers; ours does not): h heads,

    BERT    4 h N^2 bytes               DeBERTa    4 h N^2 (1 + number of position terms) bytes
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import BertConfig, BertModel, PreTrainedConfig, RobertaConfig, RobertaModel

from debertakit.config import PRESETS, DebertaConfig, preset
from debertakit.model import DebertaModel

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
BERT = {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
PEERS: dict[str, PreTrainedConfig] = {
    "bert-base": BertConfig(**BASE, **BERT),
    "bert-large": BertConfig(**LARGE, **BERT),
    "roberta-base": RobertaConfig(**BASE, **ROBERTA),
    "roberta-large": RobertaConfig(**LARGE, **ROBERTA),
}
LENGTHS = (128, 512)


@dataclass(frozen=True)
class Count:
    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    backbone: int
    """Parameters of the encoder without word embeddings, as Microsoft counts them."""
    total: int
    """Parameters with word embeddings, without heads and the mask decoder's position embeddings."""


def parameter_counts() -> Iterator[Count]:
    for name in PRESETS:
        yield count(name, preset(name, emd_steps=0))


def count(name: str, config: PreTrainedConfig) -> Count:
    with torch.device("meta"):
        match config:
            case DebertaConfig():
                words, model = config.embedding_size, DebertaModel(config)
            case RobertaConfig():
                words, model = config.hidden_size, RobertaModel(config, add_pooling_layer=False)
            case _:
                words, model = config.hidden_size, BertModel(config, add_pooling_layer=False)
    total = sum(p.numel() for p in model.parameters())
    shape = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.vocab_size)
    return Count(name, *shape, total - words * config.vocab_size, total)


@dataclass(frozen=True)
class Flops:
    """FLOPs of one text."""

    shared: int
    """FLOPs of a BERT of the same shape."""
    positions: int
    """c2p, p2c and the convolution."""
    tables: int
    """Projection of the relative positions, which texts share."""


def flops(config: PreTrainedConfig, length: int) -> Flops:
    layers, d, f = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    width = d
    if isinstance(config, DebertaConfig):
        width = config.num_attention_heads * (config.attention_head_size or d // config.num_attention_heads)
    shared = layers * (8 * length * d * width + 4 * length * d * f + 4 * length**2 * width)
    if not isinstance(config, DebertaConfig):
        return Flops(shared, 0, 0)
    if config.embedding_size != d:
        shared += 2 * length * config.embedding_size * d
    terms = len(config.pos_att_type) if config.relative_attention else 0
    rows = config.relative_positions.cut(length - 1).count or 0
    convolution = 2 * length * config.conv_kernel_size * d * d // config.conv_groups
    per_row = 2 * layers * terms * rows * width
    return Flops(shared, length * per_row + convolution, d * per_row)


def score_bytes(config: PreTrainedConfig, length: int) -> int:
    """fp32 scores of one layer for one text, in an implementation that keeps every term."""
    terms = len(config.pos_att_type) if isinstance(config, DebertaConfig) and config.relative_attention else 0
    return 4 * config.num_attention_heads * length**2 * (1 + terms)


def position_parameters(config: DebertaConfig) -> int:
    """Parameters of the relative positions: the table and its projections (without biases), 2kd + 2Ld^2 for v1."""
    table = 2 * config.relative_positions.span * config.hidden_size
    projections = 0 if config.share_att_key else len(config.pos_att_type) * config.num_hidden_layers
    return table + projections * config.hidden_size**2


def complexity_table() -> Iterator[str]:
    """Lines of ``deberta models --complexity``."""
    columns = [f"MFLOPs/token at {length}" for length in LENGTHS]
    yield (
        f"{'name':<20}{'backbone':>11}{'positions':>11}{'weights':>10}"
        + "".join(f"{column:>21}{'to BERT':>9}" for column in columns)
        + f"{'tables':>10}{'scores':>10}"
    )
    configs = {**PEERS, **{name: preset(name, emd_steps=0) for name in PRESETS}}
    for name, config in configs.items():
        found = count(name, config)
        extra = position_parameters(config) if isinstance(config, DebertaConfig) else 0
        costs = [flops(config, length) for length in LENGTHS]
        cells = "".join(
            f"{(cost.shared + cost.positions) / length / 1e6:>21,.1f}{cost.positions / cost.shared:>+9.0%}"
            for cost, length in zip(costs, LENGTHS, strict=True)
        )
        yield (
            f"{name:<20}{found.backbone / 1e6:>9,.1f} M{extra / 1e6:>9,.1f} M{4 * found.total / 1e6:>7,.0f} MB"
            f"{cells}{costs[-1].tables / 1e9:>8,.1f} G{score_bytes(config, LENGTHS[-1]) / 1e6:>7,.0f} MB"
        )
    yield ""
    yield "positions: parameters of the relative positions. weights: all weights in fp32, without heads."
    yield "to BERT: additional FLOPs, relative to a BERT of the same shape. tables: FLOPs to project relative positions"
    yield f"of {LENGTHS[-1]} tokens, once per model in prediction and once per batch in training. scores: fp32"
    yield f"attention scores of a layer for {LENGTHS[-1]} tokens, in an implementation that keeps them (ours does not)."
