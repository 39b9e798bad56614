"""A task: how to read its examples, score predictions and write a leaderboard's file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from debertakit.data.examples import E, Kind

V = TypeVar("V")
"""Value that is predicted for an example (data/examples.py)."""


@dataclass(frozen=True)
class Task(Generic[E, V]):
    name: str
    kind: Kind
    read: Callable[[Path], dict[str, list[E]]]
    """Folder with the distributed files -> the splits found: "train", "dev", "test", and others like "dev-..."."""
    score: Callable[[Sequence[E], Sequence[V]], dict[str, float]]
    """Examples and predictions -> official metrics, in per cent if the leaderboard uses per cent."""
    metric: str
    """Metric that selects the best checkpoint."""
    labels: tuple[str, ...] | None = None
    """In logit order; None: taken from the training data, or the task has no labels."""
    write: Callable[[Path, Sequence[E], Sequence[V]], None] | None = None
    """Writes a file in the leaderboard's format from its path, the test examples and the predictions."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File names that the leaderboard expects: {"test": "MNLI-m.tsv", "test-mismatched": "MNLI-mm.tsv"}."""
