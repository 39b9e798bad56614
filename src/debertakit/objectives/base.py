"""Common interface of the objectives: a view of the batch, targets, a summed loss, and metrics.

    loss = sum over objectives o of  weight_o * (sum of o's terms over the step) / (number of o's terms in the step)

The number of terms is known before the forward pass, so a step can be split into any number of parts (ranks times
accumulation). Each part adds its sum divided by the global count, and the gradient is the same.

A *view* is the input of one encoder pass, for example ``masked`` (corrupted by the masking strategy) or ``causal`` (the
original text). Each objective builds its view. Objectives with the same view name share one view and one encoder pass.

A *backbone* is the interface of a model for objectives: hidden states of rows, and logits for rows. The adapters are in
backbones.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel

from debertakit.attention.layout import Layout
from debertakit.padding import PackedInput
from debertakit.text.masking import Masked, Masking, apply
from debertakit.text.packing import PackedBatch
from debertakit.text.shards import Shards

AttentionMode = Literal["bidirectional", "causal", "prefix", "permuted", "encoder-decoder"]
"""What a model must be able to do to read a view."""


@dataclass(frozen=True)
class Context:
    """Everything that corruption may depend on, apart from the batch and the training progress."""

    shards: Shards
    masking: Masking
    seed: int
    information: NDArray[np.float64] | None = None
    """[vocabulary]: relative information of each token, for ``masking.density``."""


@dataclass(frozen=True)
class View:
    ids: Tensor
    """[T]: token ids that the encoder reads."""
    lengths: Tensor
    """int32 [n]"""
    causal: bool = False
    prefix: Tensor | None = None
    """int32 [n], causal views only: this many leading tokens of each sequence are visible to all of its tokens."""
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
    text_tokens: int = 0
    """Number of tokens before corruption."""

    def packed(self) -> PackedInput:
        layout = Layout.from_lengths(self.lengths)
        if self.causal:
            layout = layout.prefix(self.prefix)
        return PackedInput(self.ids, layout, layout.q_positions, self.segments, None, (1, self.ids.shape[0]))

    def to(self, device: torch.device) -> "View":
        names = ("ids", "lengths", "prefix", "segments", "order", "written")
        return replace(self, **{name: x.to(device) for name in names if (x := getattr(self, name)) is not None})

    @property
    def starts(self) -> Tensor:
        """[n]: row of the [CLS] of each sequence."""
        return (self.lengths.cumsum(0) - self.lengths).long()

    def sequence_of(self, rows: Tensor) -> Tensor:
        """The sequence of each row."""
        return torch.searchsorted(self.lengths.cumsum(0), rows, right=True)


class Targets(NamedTuple):
    """The rows that an objective reads, and what it predicts from them."""

    rows: Tensor  # [R] rows of the view, in any order; may repeat
    labels: Tensor  # [M]; in most objectives one row per label
    span_positions: Tensor | None = None  # [M]: position of each label within its span, if needed

    def to(self, device: torch.device) -> "Targets":
        positions = None if self.span_positions is None else self.span_positions.to(device)
        return Targets(self.rows.to(device), self.labels.to(device), positions)


class Outcome(NamedTuple):
    loss: Tensor  # sum over the terms of this part
    correct: Tensor  # number of correct predictions; zero in training, where it is not used


class Backbone(Protocol):
    """Interface of a model of any family for objectives."""

    @property
    def model(self) -> PreTrainedModel: ...

    @property
    def config(self) -> PreTrainedConfig: ...

    @property
    def attention(self) -> tuple[AttentionMode, ...]: ...

    @property
    def knows_positions(self) -> bool:
        """Whether absolute positions are part of the input."""

    @property
    def has_pair_head(self) -> bool: ...

    @property
    def decodes_causal_rows(self) -> bool:
        """Whether rows of a causal view come from the mask decoder."""

    def train_mask_decoder(self, used: bool) -> None:
        """Freeze the parameters of an unused mask decoder: DDP waits for the gradient of every trained parameter."""

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

    def detection_logits(self, view: View) -> Tensor:
        """Run the encoder. Returns [T], positive if the token looks replaced, with the model's own head."""


class Objective(nn.Module):
    """One objective. If it has its own head, the head is a submodule and is saved separately from the model."""

    view: str = "masked"
    attention: AttentionMode = "bidirectional"
    decodes: bool = True
    """Whether rows come from the mask decoder (if the model has one) or from the ordinary last layer."""
    rearranges_text: bool = False
    """Whether ``build_view`` changes the text before it is corrupted. Such an objective builds the view for all
    objectives that share it."""
    needs_row_per_token: bool = False
    """Whether each masked token needs its own row (no ``masking.one_mask_per_span``)."""
    needs_documents: bool = False
    """Whether a sequence must come from a single document (no ``data.mode=blocks``)."""
    uses_pair_head: bool = False
    """Whether the loss uses the model's own head for pairs of texts, if the family has a class with such a head."""
    trains_all_parameters: bool = True
    """Whether every parameter of the model gets a gradient from this objective alone."""
    pipeline_tag: str = "fill-mask"
    """The hub's name for what a model trained on this objective does."""

    def __init__(self, backbone: Backbone):
        super().__init__()

    def check_corpus(self, shards: Shards, half: str, max_length: int) -> None:
        """Raise if this half of the corpus (training or validation) cannot be used."""

    def build_view(self, batch: PackedBatch, context: Context, progress: float) -> View:
        """Build the encoder's input. Runs on the CPU. ``progress``: completed fraction of the run."""
        return masked_view(batch, context, progress)

    def targets(self, view: View) -> Targets:
        raise NotImplementedError

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        """Compute the loss. ``hidden`` [R, hidden size]: hidden states of ``targets.rows``."""
        raise NotImplementedError

    def metrics(self, loss: float, accuracy: float) -> dict[str, float]:
        """Validation metrics, from the mean loss and accuracy."""
        return {"loss": loss, "accuracy": accuracy, "perplexity": math.exp(min(loss, 50))}

    def outcome(self, logits: Tensor, labels: Tensor) -> Outcome:
        loss = F.cross_entropy(logits.float(), labels, reduction="sum")
        correct = loss.new_zeros(()) if self.training else (logits.argmax(-1) == labels).sum().to(loss.dtype)
        return Outcome(loss, correct)


def masked_view(batch: PackedBatch, context: Context, progress: float) -> View:
    masked = apply(
        batch,
        context.masking,
        context.shards.vocabulary,
        seed=context.seed,
        progress=progress,
        information=context.information,
    )
    ids, lengths = torch.from_numpy(masked.input_ids), torch.from_numpy(masked.lengths)
    return View(ids, lengths, masked=masked, text_tokens=len(batch.input_ids))


def causal_view(batch: PackedBatch) -> View:
    ids, lengths = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.lengths)
    return View(ids, lengths, causal=True, text_tokens=len(ids))


def masked_targets(view: View) -> Targets:
    """The masked rows and their original tokens."""
    assert view.masked is not None
    return Targets(as_tensor(view.masked.positions), as_tensor(view.masked.targets))


def as_tensor(array: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
