"""Random models whose greedy output does not repeat one token, and padded batches."""

import torch

from debertakit.generation.causal import DebertaForCausalLM
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
from tests.models import small

VARIANTS = {
    "v3": ("deberta-v3-base", {}),
    "v1": ("deberta-base", {}),
    "emd": ("deberta-v3-base", {"causal_emd": True}),
    "absolute": ("deberta-v3-base", {"position_biased_input": True, "emd_steps": 0}),
}


def lively(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm.weight" in name:
                parameter.normal_(1.0, 0.1)
            elif parameter.dim() == 1:
                parameter.normal_(0.0, 0.1)
            else:
                parameter.normal_(0.0, 0.3 if "embeddings" in name else parameter.shape[-1] ** -0.5)
    return model.eval()


def writer(variant: str = "v3", **overrides) -> DebertaForCausalLM:
    name, fields = VARIANTS[variant]
    return lively(DebertaForCausalLM(small(name, **{**fields, **overrides})))


def translator(name: str = "deberta-v3-base", decoder_layers: int = 2, **overrides) -> DebertaForSeq2SeqLM:
    return lively(
        DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=small(name, **overrides), decoder_layers=decoder_layers))
    )


def text(*shape: int) -> torch.Tensor:
    return torch.randint(4, 101, shape)


def padded(ids: torch.Tensor, lengths: list[int], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the first ``lengths`` tokens of each row and pad them on one side. Returns (ids, mask)."""
    width = max(lengths)
    block = torch.zeros(len(lengths), width, dtype=torch.long)
    mask = torch.zeros_like(block)
    for b, n in enumerate(lengths):
        cells = slice(width - n, width) if side == "left" else slice(0, n)
        block[b, cells], mask[b, cells] = ids[b, :n], 1
    return block, mask
