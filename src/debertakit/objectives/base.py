"""What every objective shares: a view of the batch, rows asked of the encoder, and a summed loss over them.

    loss = sum over objectives o of  weight_o * (sum of o's terms over the step) / (number of o's terms in the step)

The number of terms is known before the forward pass, so a step may be cut into any number of parts (ranks times
accumulation): each part adds its sum over the global count, and the gradient is the same.

A *view* is what one pass of the encoder reads: ``masked`` (corrupted by the masking strategy, seen from both sides) or
``causal`` (the text itself, seen from the left). Objectives that read the same view share its pass.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from debertakit.attention.layout import Layout
from debertakit.decoding import decode_masks
from debertakit.heads import DebertaForMaskedLM
from debertakit.model import PackedInput
from debertakit.text.masking import Masked, Masking, apply
from debertakit.text.packing import PackedBatch
from debertakit.text.shards import Shards

ViewName = Literal["masked", "causal"]


@dataclass(frozen=True)
class Context:
    """Where the batches come from: all that corruption may depend on besides the batch and the progress."""

    shards: Shards
    masking: Masking
    seed: int


@dataclass(frozen=True)
class View:
    ids: Tensor
    """[T]: what the encoder reads."""
    lengths: Tensor
    """int32 [n]"""
    causal: bool = False
    segments: Tensor | None = None
    """[T]: 0 and 1 for the two texts of a pair; read where the model has segment embeddings."""
    masked: Masked | None = None
    """Rows and targets of the masking; None in the causal view."""
    pair_labels: NDArray[np.int64] | None = None
    """[n]: 0 the second text follows the first, 1 it is from elsewhere; None where there are no pairs."""

    def packed(self) -> PackedInput:
        layout = Layout.from_lengths(self.lengths)
        if self.causal:
            layout = layout.causal()
        return PackedInput(self.ids, layout, layout.q_positions, self.segments, None, (1, self.ids.shape[0]))

    def to(self, device: torch.device) -> "View":
        segments = None if self.segments is None else self.segments.to(device)
        return replace(self, ids=self.ids.to(device), lengths=self.lengths.to(device), segments=segments)

    @property
    def starts(self) -> Tensor:
        """[n]: the row of each sequence's [CLS]."""
        return (self.lengths.cumsum(0) - self.lengths).long()


class Asked(NamedTuple):
    """The rows an objective needs and what it should find there."""

    rows: Tensor  # [M] of the view; may repeat, in any order
    targets: Tensor  # [M]

    def to(self, device: torch.device) -> "Asked":
        return Asked(self.rows.to(device), self.targets.to(device))


class Outcome(NamedTuple):
    loss: Tensor  # the sum over this part's terms
    correct: Tensor  # how many predictions were right; zero in training, where nobody looks


class Objective(nn.Module):
    """One objective. Its own head, if it has one, is a submodule, saved beside the model and not in it."""

    view: ViewName = "masked"
    decodes = True
    """Reads its rows from the mask decoder (when the model has one), not from the ordinary last layer."""

    def ask(self, view: View) -> Asked:
        raise NotImplementedError

    def loss(self, model: DebertaForMaskedLM, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        """``hidden`` [M, hidden size]: the rows that were asked for."""
        raise NotImplementedError

    def outcome(self, logits: Tensor, targets: Tensor) -> Outcome:
        loss = F.cross_entropy(logits.float(), targets, reduction="sum")
        correct = loss.new_zeros(()) if self.training else (logits.argmax(-1) == targets).sum().to(loss.dtype)
        return Outcome(loss, correct)


def masked_view(batch: PackedBatch, context: Context, progress: float) -> View:
    masked = apply(batch, context.masking, context.shards.vocabulary, seed=context.seed, progress=progress)
    return View(torch.from_numpy(masked.input_ids), torch.from_numpy(masked.lengths), masked=masked)


def causal_view(batch: PackedBatch) -> View:
    return View(torch.from_numpy(batch.input_ids), torch.from_numpy(batch.lengths), causal=True)


def word_logits(model: DebertaForMaskedLM, hidden: Tensor) -> Tensor:
    return model.lm_predictions.lm_head(hidden, model.deberta.embeddings.word_embeddings.weight)


def hidden_rows(
    model: DebertaForMaskedLM, packed: PackedInput, decoded: Tensor | None, plain: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """One pass of the encoder: these rows (ascending) out of the mask decoder, and those out of the last layer.

    A model without mask decoder gives both from the last layer. The last layer is run only where it is read.
    """
    config, backbone = model.config, model.deberta
    decoding = decoded is not None and config.emd_steps > 0
    if not decoding:
        last = backbone.encode(packed).last
        return None if decoded is None else last[decoded], None if plain is None else last[plain]
    assert decoded is not None
    if plain is None:
        below, read = backbone.encode(packed, depth=config.num_hidden_layers - 1).last, None
    else:
        encoded = backbone.encode(packed, keep_hidden=True)
        below, read = encoded.hidden_states[-2], encoded.last[plain]
    return decode_masks(backbone, below, decoded, packed), read


def as_tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
