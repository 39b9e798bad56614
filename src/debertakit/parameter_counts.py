"""Parameter counts of the released models, computed on the meta device without allocating weights."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from debertakit.config import PRESETS, preset


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
    from debertakit.model import DebertaModel

    for name in PRESETS:
        config = preset(name, emd_steps=0)
        with torch.device("meta"):
            model = DebertaModel(config)
        total = sum(p.numel() for p in model.parameters())
        words = model.embeddings.word_embeddings.weight.numel()
        yield Count(
            name,
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.vocab_size,
            total - words,
            total,
        )
