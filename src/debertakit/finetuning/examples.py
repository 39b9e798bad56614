"""What a task is made of: four kinds of example, and a task that reads, scores and writes them.

    kind          example    label                 prediction
    single-label  Text       str                   str
    multi-label   Text       tuple of str          tuple of str
    regression    Text       float                 float
    tagging       Tagged     a tag for each word   a tag for each word
    qa            Question   answers and starts    str; "" says that there is none
    choice        Choice     int, into options     int

A label of None: not given, as in the test sets of leaderboards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["single-label", "multi-label", "regression", "tagging", "qa", "choice"]


@dataclass(frozen=True)
class Text:
    id: str
    text: str
    pair: str | None = None
    label: str | tuple[str, ...] | float | None = None
    group: str | None = None
    """Examples that are scored together, as the answers to one question of MultiRC."""


@dataclass(frozen=True)
class Tagged:
    id: str
    words: tuple[str, ...]
    """Chinese: characters."""
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None = None
    """() : the context does not say; None: not given."""
    starts: tuple[int, ...] | None = None
    """Characters of the context at which the answers begin; -1: nowhere, then the answer is there to score by."""


@dataclass(frozen=True)
class Choice:
    id: str
    text: str
    pair: str
    """What each option is read behind: the question, or nothing."""
    options: tuple[str, ...]
    label: int | None = None
    names: tuple[str, ...] | None = None
    """What an option is called where its name is what counts: the entities of ReCoRD."""
    answers: tuple[str, ...] | None = None
    """Names that are right, where several may be."""


Example = Text | Tagged | Question | Choice


def gold(example: Example) -> Any:
    """The right prediction, or None where it is not given."""
    if isinstance(example, Tagged):
        return example.tags
    return example.answers if isinstance(example, Question) else example.label


@dataclass(frozen=True)
class Task:
    name: str
    kind: Kind
    read: Callable[[Path], dict[str, list[Any]]]
    """Folder with the distributed files -> those that are there of "train", "dev", "test" and further "dev-..."."""
    score: Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
    """Examples and a prediction for each -> the official metrics, in per cent where the leaderboard has per cent."""
    metric: str
    """The one that chooses the best epoch."""
    labels: tuple[str, ...] | None = None
    """In the order of the logits; None: found in the training data, or none at all."""
    write: Callable[[Path, Sequence[Any], Sequence[Any]], None] | None = None
    """Path of the file to write, test examples, predictions: the leaderboard's format."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What the leaderboard calls that file: {"test": "MNLI-m.tsv", "test-mismatched": "MNLI-mm.tsv"}."""
