"""Common interface of the objectives: a view of the batch, the encoder rows to read, and a summed loss over them.

    loss = sum over objectives o of  weight_o * (sum of o's terms over the step) / (number of o's terms in the step)

The number of terms is known before the forward pass, so a step can be split into any number of parts (ranks times
accumulation). Each part adds its sum divided by the global count, and the gradient is the same.

A *view* is the input of one encoder pass: ``masked`` (corrupted by the masking strategy, bidirectional attention),
``causal`` (the original text, causal attention), ``permuted`` (the original text, random prediction order) or
``infilled`` (masked for the encoder, causal for the decoder). Objectives with the same view share one pass.

A *backbone* is the interface of a model for objectives: encoder rows, and logits for rows (pretraining/backbones.py).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from debertakit.attention.layout import Layout
from debertakit.padding import PackedInput
from debertakit.text.masking import Masked, Masking, apply
from debertakit.text.packing import PackedBatch
from debertakit.text.shards import Shards

ViewName = Literal["masked", "causal", "permuted", "infilled"]


@dataclass(frozen=True)
class Context:
    """Everything that corruption may depend on, apart from the batch and the training progress."""

    shards: Shards
    masking: Masking
    seed: int


@dataclass(frozen=True)
class View:
    ids: Tensor
    """[T]: token ids that the encoder reads."""
    lengths: Tensor
    """int32 [n]"""
    causal: bool = False
    segments: Tensor | None = None
    """[T]: 0 and 1 for the two texts of a pair; used if the model has segment embeddings."""
    masked: Masked | None = None
    """Rows and targets of the masked tokens (permuted view: of the predicted tokens); None in the causal view."""
    pair_labels: NDArray[np.int64] | None = None
    """[n]: 0 if the second text follows the first, 1 if not, ``pairs.NO_PAIR`` if not a pair; None without pairs."""
    order: Tensor | None = None
    """[T], permuted view only: 0 for tokens that all tokens may see, otherwise the rank in the prediction order."""
    written: "View | None" = None
    """Infilled view only: the text that the decoder writes."""

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
        """[n]: row of the [CLS] of each sequence."""
        return (self.lengths.cumsum(0) - self.lengths).long()


class Asked(NamedTuple):
    """The rows that an objective reads, and its targets."""

    rows: Tensor  # [R] rows of the view, in any order; may repeat
    targets: Tensor  # [M]; in most objectives one row per target
    places: Tensor | None = None  # [M]: position of each target within its span, if needed

    def to(self, device: torch.device) -> "Asked":
        places = None if self.places is None else self.places.to(device)
        return Asked(self.rows.to(device), self.targets.to(device), places)


class Outcome(NamedTuple):
    loss: Tensor  # sum over the terms of this part
    correct: Tensor  # number of correct predictions; zero in training, where it is not used


class Backbone(Protocol):
    """Interface of a model of any family for objectives."""

    @property
    def config(self) -> Any: ...

    @property
    def views(self) -> tuple[ViewName, ...]:
        """Views that the model can read."""

    @property
    def knows_positions(self) -> bool:
        """Whether absolute positions are part of the input."""

    @property
    def has_pair_head(self) -> bool: ...

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Run the encoder once. ``decoded`` and ``plain`` are row numbers, ascending.

        Returns rows ``decoded`` from the mask decoder and rows ``plain`` from the last layer. A model without a mask
        decoder returns both from the last layer.
        """

    def word_table(self) -> Tensor:
        """[vocabulary, embedding size]"""

    def word_logits(self, hidden: Tensor) -> Tensor:
        """[M, hidden size] -> [M, vocabulary], with the model's own language-model head."""

    def pair_logits(self, hidden: Tensor) -> Tensor:
        """[M, hidden size] rows of [CLS] -> [M, 2], with the model's own pair head."""


class Objective(nn.Module):
    """One objective. If it has its own head, the head is a submodule and is saved separately from the model."""

    view: ViewName = "masked"
    decodes = True
    """Whether rows come from the mask decoder (if the model has one) or from the ordinary last layer."""

    def ask(self, view: View) -> Asked:
        raise NotImplementedError

    def loss(self, backbone: Backbone, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        """Compute the loss. ``hidden`` [R, hidden size]: hidden states of ``asked.rows``."""
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
