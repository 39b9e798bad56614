"""Longer texts from a checkpoint: what changes if ``data.max_length`` is above the length that it was trained at.

Relative positions. The table does not grow, and the limit M of its buckets stays that of the checkpoint. With
Microsoft's rule all distances of M - 1 and beyond share the last bucket; transformers reads row 0 for distances of -M
and beyond, a row that no released model has trained (attention/positions.py). A run on texts longer than M uses the
rule of transformers, and row 0 starts as a copy of row 1. The model then starts with the same function as before, and
stock transformers computes the same as we do, before and after the run.

Absolute positions (of the mask decoder, or at the input). The table gets a row for each new position. Row i is a copy
of row i mod n, of n trained rows: neighbours of a new position are then neighbours that the model knows, except where
a copy begins (Longformer, 2004.05150, section 5).
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from debertakit.checkpoints import State
from debertakit.config import DebertaConfig
from debertakit.pretraining import settings

POSITIONS = "embeddings.position_embeddings.weight"
DISTANCES = "encoder.rel_embeddings.weight"


def trained_length(init: str, positions: int) -> int:
    """Return how many of its ``positions`` a checkpoint was trained on: run.json of our own runs says it."""
    file = Path(init) / "run.json"
    return min(settings.load(file).data.max_length, positions) if file.is_file() else positions


def lengthen(
    model: PreTrainedModel, state: State, init: str, max_length: int, before: DebertaConfig | None = None
) -> list[str]:
    """Fit the position tables of a checkpoint to texts of ``max_length``, in place. Returns a line for each change.

    ``before``: config of a DeBERTa checkpoint.
    """
    lines = []
    table = model.get_submodule(model.base_model_prefix).embeddings.position_embeddings
    for key in [key for key in state if key.endswith(POSITIONS)] if table is not None else ():
        reserved = 0 if table.padding_idx is None else table.padding_idx + 1  # RoBERTa's first rows are not positions
        trained = trained_length(init, len(state[key]) - reserved)
        if max_length > trained:
            rows = repeat_rows(state[key][reserved : reserved + trained], len(table.weight) - reserved)
            state[key] = torch.cat([state[key][:reserved], rows])
            lines.append(f"positions from {trained:,} start as copies of the first {trained:,}")
    if before is not None and before.clamp_distances and not model.config.clamp_distances:
        for key in [key for key in state if key.endswith(DISTANCES)]:
            state[key] = torch.cat([state[key][1:2], state[key][1:]])
    return lines


def repeat_rows(table: Tensor, rows: int) -> Tensor:
    """Repeat a table from its start until it has this many rows."""
    return table[torch.arange(rows) % len(table)]
