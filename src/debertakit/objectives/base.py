"""What every objective shares: a view of the batch, rows asked of the encoder, and a summed loss over them.

    loss = sum over objectives o of  weight_o * (sum of o's terms over the step) / (number of o's terms in the step)

The number of terms is known before the forward pass, so a step may be cut into any number of parts (ranks times
accumulation): each part adds its sum over the global count, and the gradient is the same.

A *view* is what one pass of the encoder reads: ``masked`` (corrupted by the masking strategy, seen from both sides),
``causal`` (the text itself, seen from the left), ``permuted`` (the text itself, in a random order of prediction) or
``infilled`` (masked for an encoder, and causal for the decoder that writes it).
Objectives that read the same view share its pass.

A *backbone* is what an objective sees of a model: rows of its encoder, and words for rows (pretraining/backbones.py).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from debertakit.attention.layout import Layout
from debertakit.model import PackedInput
from debertakit.text.masking import Masked, Masking, apply
from debertakit.text.packing import PackedBatch
from debertakit.text.shards import Shards

ViewName = Literal["masked", "causal", "permuted", "infilled"]


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
    """Rows and targets of the masking, in the permuted view those to be predicted; None in the causal view."""
    pair_labels: NDArray[np.int64] | None = None
    """[n]: 0 the second text follows the first, 1 it is from elsewhere; None where there are no pairs."""
    order: Tensor | None = None
    """[T]: permuted view: 0 for what every token may see, then the place in the order of prediction."""
    written: "View | None" = None
    """Infilled view: what the decoder writes."""

    def packed(self) -> PackedInput:
        layout = Layout.from_lengths(self.lengths)
        if self.causal:
            layout = layout.causal()
        return PackedInput(self.ids, layout, layout.q_positions, self.segments, None, (1, self.ids.shape[0]))

    def to(self, device: torch.device) -> "View":
        segments = None if self.segments is None else self.segments.to(device)
        order = None if self.order is None else self.order.to(device)
        written = None if self.written is None else self.written.to(device)
        ids, lengths = self.ids.to(device), self.lengths.to(device)
        return replace(self, ids=ids, lengths=lengths, segments=segments, order=order, written=written)

    @property
    def starts(self) -> Tensor:
        """[n]: the row of each sequence's [CLS]."""
        return (self.lengths.cumsum(0) - self.lengths).long()


class Asked(NamedTuple):
    """The rows an objective needs and what it should find there."""

    rows: Tensor  # [R] of the view; may repeat, in any order
    targets: Tensor  # [M]: one row a target, in most objectives
    places: Tensor | None = None  # [M]: of each target within its span, where the objective needs it

    def to(self, device: torch.device) -> "Asked":
        places = None if self.places is None else self.places.to(device)
        return Asked(self.rows.to(device), self.targets.to(device), places)


class Outcome(NamedTuple):
    loss: Tensor  # the sum over this part's terms
    correct: Tensor  # how many predictions were right; zero in training, where nobody looks


class Backbone(Protocol):
    """A model of any family, as objectives see it."""

    @property
    def config(self) -> Any: ...

    @property
    def views(self) -> tuple[ViewName, ...]:
        """Those that it can read."""

    @property
    def knows_positions(self) -> bool:
        """Absolute positions are part of its input."""

    @property
    def has_pair_head(self) -> bool: ...

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """One pass of the encoder: these rows (ascending) out of the mask decoder, and those out of the last layer.

        A model without mask decoder gives both from the last layer.
        """

    def word_table(self) -> Tensor:
        """[vocabulary, embedding size]"""

    def word_logits(self, hidden: Tensor) -> Tensor:
        """[M, hidden size] -> [M, vocabulary], by the model's own language-model head."""

    def pair_logits(self, hidden: Tensor) -> Tensor:
        """[M, hidden size] rows of [CLS] -> [M, 2], by the model's own head for pairs of texts."""


class Objective(nn.Module):
    """One objective. Its own head, if it has one, is a submodule, saved beside the model and not in it."""

    view: ViewName = "masked"
    decodes = True
    """Reads its rows from the mask decoder (when the model has one), not from the ordinary last layer."""

    def ask(self, view: View) -> Asked:
        raise NotImplementedError

    def loss(self, backbone: Backbone, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        """``hidden`` [R, hidden size]: the rows that were asked for."""
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


def as_tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
