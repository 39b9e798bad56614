"""The kinds of tasks, and the four classes of examples.

    kind          example      label                 prediction
    single-label  TextExample  str                   str
    multi-label   TextExample  tuple of str          tuple of str
    regression    TextExample  float                 float
    tagging       Tagged       one tag per word      one tag per word
    qa            Question     answers and starts    str; "" means no answer
    choice        Choice       int, option index     int

A label of None means not given, as in the test sets of leaderboards.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Kind = Literal["single-label", "multi-label", "regression", "tagging", "qa", "choice"]


@dataclass(frozen=True)
class TextExample:
    id: str
    text: str
    pair: str | None = None
    label: str | tuple[str, ...] | float | None = None
    group: str | None = None
    """Examples of one group are scored together, for example the answers to one MultiRC question."""
    line: int | None = field(default=None, compare=False)
    """First line of the example in its file (Parquet: row)."""


@dataclass(frozen=True)
class Tagged:
    id: str
    words: tuple[str, ...]
    """For Chinese: characters."""
    tags: tuple[str, ...] | None = None
    line: int | None = field(default=None, compare=False)
    """First line of the example in its file (Parquet: row)."""


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None = None
    """(): the context has no answer; None: not given."""
    starts: tuple[int, ...] | None = None
    """Start of each answer in the context, in characters; -1: not in the context, the answer is only for scoring."""


@dataclass(frozen=True)
class Choice:
    id: str
    text: str
    pair: str
    """Text before each option: the question, or empty."""
    options: tuple[str, ...]
    label: int | None = None
    names: tuple[str, ...] | None = None
    """Names of the options, if scoring compares names: the entities of ReCoRD."""
    answers: tuple[str, ...] | None = None
    """Correct names, if there may be several."""
    line: int | None = field(default=None, compare=False)
    """First line of the example in its file (Parquet: row)."""


Example = TextExample | Tagged | Question | Choice
E = TypeVar("E", bound=Example)
EXAMPLE_CLASSES: dict[Kind, type[Example]] = {
    "single-label": TextExample,
    "multi-label": TextExample,
    "regression": TextExample,
    "tagging": Tagged,
    "qa": Question,
    "choice": Choice,
}


def gold(example: Example) -> Any:
    """The correct prediction, or None if it is not given."""
    if isinstance(example, Tagged):
        return example.tags
    return example.answers if isinstance(example, Question) else example.label
