"""Group rows into batches.

Training: each step has ``batch_size`` examples, as in every recipe. Models that run unpadded (ours) take them in random
order. For other models, the examples of several steps are sorted together by length, which reduces padding. The order
depends only on (seed, epoch).

Evaluation: rows are sorted by length and grouped up to a token budget, with almost no padding.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from debertakit.data.examples import Kind
from debertakit.model import IGNORED
from debertakit.protocols import Tokenizer
from debertakit.tasks.features import TokenRow

SORTED_STEPS = 16
"""Number of steps whose examples are sorted together, for models that need padding."""


Collate = Callable[[Sequence[TokenRow]], dict[str, Tensor]]


class TrainingOrder(Sampler[int]):
    """Indices of rows in training order. The Trainer splits them into batches."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, sorted_steps: int):
        self.lengths = np.asarray(lengths)
        self.batch_size, self.seed, self.sorted_steps = batch_size, seed, sorted_steps
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        draw = np.random.default_rng((self.seed, self.epoch))
        order = draw.permutation(len(self.lengths))
        window = self.batch_size * self.sorted_steps
        if self.sorted_steps > 1:
            parts = [order[i : i + window] for i in range(0, len(order), window)]
            order = np.concatenate([part[np.argsort(self.lengths[part], kind="stable")] for part in parts])
        steps = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        last = steps.pop() if steps and len(steps[-1]) < self.batch_size else np.empty(0, dtype=np.int64)
        whole = [steps[i] for i in draw.permutation(len(steps))]
        return iter(np.concatenate([*whole, last]).tolist())


class ProcessShare(Sampler[list[int]]):
    """The part of every batch that one of several processes computes: every n-th row.

    If the last batch of an epoch has fewer rows than there are processes, the first row is computed again.
    """

    def __init__(self, order: TrainingOrder, batch_size: int, process: int, processes: int):
        self.order, self.batch_size, self.process, self.processes = order, batch_size, process, processes

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        rows = list(self.order)
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            yield batch[self.process :: self.processes] or batch[:1]


def budget_batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices sorted by length, longest first, in batches of at most ``tokens`` tokens with padding (or one row)."""
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if room < 1:
            batches.append([])
            room = max(1, tokens // max(lengths[index], 1))
        batches[-1].append(index)
        room -= 1
    return batches


def batches_of(
    rows: Sequence[TokenRow], collate: Collate, budget: int, device: torch.device
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Yield (row indices, tensors) for evaluation, each row once."""
    for indices in budget_batches([row.tokens for row in rows], budget):
        yield indices, {key: value.to(device) for key, value in collate([rows[i] for i in indices]).items()}


class Collator:
    """Converts rows to the tensors of a batch, padded to its longest sequence."""

    def __init__(self, tokenizer: Tokenizer, kind: Kind):
        self.pad, self.kind = tokenizer.pad_token_id, kind

    def __call__(self, rows: Sequence[TokenRow]) -> dict[str, Tensor]:
        sequences = [ids for row in rows for ids in row.ids]
        longest = max(map(len, sequences))
        batch = {
            "input_ids": _pad(sequences, longest, self.pad),
            "attention_mask": _pad([[1] * len(ids) for ids in sequences], longest, 0),
        }
        if self.kind == "choice":
            batch["options"] = torch.tensor([len(row.ids) for row in rows])
        if all(row.segments is not None for row in rows):
            segments = [part for row in rows if row.segments is not None for part in row.segments]
            batch["token_type_ids"] = _pad(segments, longest, 0)
        labels = [row.label for row in rows if row.label is not None]
        if len(labels) == len(rows):
            batch["labels"] = self._labels(labels, longest)
        return batch

    def _labels(self, labels: Sequence[Any], longest: int) -> Tensor:
        match self.kind:
            case "tagging":
                return _pad(labels, longest, IGNORED)
            case "single-label" | "multi-label" | "regression" | "qa" | "choice":
                return torch.tensor(labels)


def _pad(sequences: Sequence[list[int]], longest: int, value: int) -> Tensor:
    padded = np.full((len(sequences), longest), value, dtype=np.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return torch.from_numpy(padded)
