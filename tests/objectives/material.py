"""Random weights, and losses computed by hand."""

import torch
from torch import Tensor

from debertakit.objectives.base import View
from tests.models import randomise


def lively(module: torch.nn.Module) -> torch.nn.Module:
    """Draw random weights with which every input token affects every output."""
    randomise(module, std=0.3)
    with torch.no_grad():
        for norm in (m for m in module.modules() if isinstance(m, torch.nn.LayerNorm)):
            norm.weight.fill_(1.0)
            norm.bias.zero_()
    return module


def sequences(view: View) -> list[Tensor]:
    return [piece[None] for piece in view.ids.split(view.lengths.tolist())]


def cross_entropy(logits: Tensor, target: int) -> float:
    logits = logits.double()
    return float(logits.exp().sum().log() - logits[target])
