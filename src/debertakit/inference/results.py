"""Result types of the predictors, the same in Python, in files (as JSON) and over HTTP."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Label:
    label: str
    score: float
    """Probability, 0 to 1."""


@dataclass(frozen=True)
class Classification:
    labels: list[str]
    """The predicted label; multi-label: all labels with probability >= 0.5."""
    scores: list[Label]
    """All labels, most probable first."""


@dataclass(frozen=True)
class Score:
    score: float
    """Regression: the value. Pairs: how well the texts match; higher is better."""


@dataclass(frozen=True)
class Entity:
    type: str
    text: str
    start: int
    end: int
    """Character offsets: the entity is text[start:end] of the input."""
    score: float


@dataclass(frozen=True)
class Entities:
    entities: list[Entity]


@dataclass(frozen=True)
class Answer:
    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answers:
    answer: str
    """Empty if the context has no answer."""
    no_answer: float
    """Probability that the context has no answer."""
    answers: list[Answer]
    """Most probable first."""


@dataclass(frozen=True)
class Chosen:
    index: int
    option: str
    scores: list[float]


@dataclass(frozen=True)
class Candidate:
    token: str
    """The token as text."""
    token_id: int
    probability: float
    text: str
    """The whole text with this mask filled. Other masks stay."""


@dataclass(frozen=True)
class Filled:
    masks: list[list[Candidate]]
    """The most probable tokens for each mask, from left to right."""


@dataclass(frozen=True)
class Embedding:
    embedding: list[float]


Result = Classification | Score | Entities | Answers | Chosen | Filled | Embedding
