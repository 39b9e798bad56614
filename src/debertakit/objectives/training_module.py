"""``TrainingModule``: everything that the training loop needs to know about models and losses.

There are two: ``joint.JointObjectives`` (one model, a weighted sum of objectives) and ``rtd.ReplacedTokenDetection``
(generator and discriminator). Loop, checkpoints, reports and distributed training use only this interface.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from debertakit.checkpoints import State
from debertakit.objectives.base import Context
from debertakit.text.packing import PackedBatch
from debertakit.text.shards import Shards

MODEL_FILE = "model.safetensors"
HEADS_FILE = "heads.safetensors"
"""Weights that are used only in training."""

Gather = Callable[[Any], list[Any]]
"""Collects an object of every rank, in rank order."""


class Part(Protocol):
    """One part of a step, corrupted and ready for the model."""

    @property
    def tokens(self) -> int: ...

    def counts(self) -> list[int]:
        """Number of loss terms, in the order of ``TrainingModule.weights``."""

    def to(self: "P", device: torch.device) -> "P": ...


P = TypeVar("P", bound=Part)


class TrainingModule(nn.Module, Generic[P]):
    model: PreTrainedModel
    """The result of the run."""
    weights: dict[str, float]
    """Weight of each loss in the total loss."""
    pipeline_tag: str
    """The hub's name for what the trained model does."""

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        """Models to export: ``model`` to the run's folder, others to subfolders named after them."""
        return {"model": self.model}

    @property
    def trains_all_parameters(self) -> bool:
        """Whether every parameter gets a gradient in every phase."""
        return True

    def check_corpus(self, shards: Shards, half: str, max_length: int) -> None:
        """Raise if this half of the corpus (training or validation) cannot be used."""

    def phases(self, step: int) -> tuple[str, ...]:
        """Phases of a step. Each phase is one forward pass over all parts, and one update."""
        return ("all",)

    def prepare(self, batch: PackedBatch, context: Context, progress: float) -> P:
        """Corrupt a batch. Runs on the CPU, before the model is called."""
        raise NotImplementedError

    def forward(self, part: P, totals: Tensor, phase: str = "all") -> tuple[Tensor, Tensor]:
        """Return the weighted loss of this part, and [losses, 2]: summed loss and number of correct predictions.

        ``totals`` [losses]: number of terms of each loss in the whole step.
        """
        raise NotImplementedError

    def metrics(self, name: str, loss: float, accuracy: float) -> dict[str, float]:
        """Validation metrics of one loss, from its mean and accuracy."""
        raise NotImplementedError

    def extra_metrics(self, parts: Sequence[P], gather: Gather) -> dict[str, float]:
        """Validation metrics that need the predictions themselves."""
        return {}

    def to_files(self, weights: State) -> dict[str, State]:
        """Split the weights into the files of a checkpoint."""
        model = without_prefix("model.", weights)
        heads = {key: value for key, value in weights.items() if not key.startswith("model.")}
        return {MODEL_FILE: model, **({HEADS_FILE: heads} if heads else {})}

    def from_files(self, files: dict[str, State]) -> State:
        """The inverse of ``to_files``."""
        return {f"model.{key}": value for key, value in files[MODEL_FILE].items()} | files.get(HEADS_FILE, {})


def without_prefix(prefix: str, weights: State) -> State:
    return {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
