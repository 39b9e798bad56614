"""What predictors answer: the same in Python, in files (as JSON) and over HTTP."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Label:
    label: str
    score: float
    """Probability, 0 to 1."""


@dataclass(frozen=True)
class Classification:
    labels: list[str]
    """The label; or, where there may be several, those of probability 1/2 and more."""
    scores: list[Label]
    """All labels, the likeliest first."""


@dataclass(frozen=True)
class Score:
    score: float
    """Regression: the value. Pairs: how well they match, the higher the better."""


@dataclass(frozen=True)
class Entity:
    type: str
    text: str
    start: int
    end: int
    """text[start:end] of the input, in characters."""
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
    """ "": the context does not say."""
    no_answer: float
    """Probability that it does not."""
    answers: list[Answer]
    """The likeliest first."""


@dataclass(frozen=True)
class Chosen:
    index: int
    option: str
    scores: list[float]


@dataclass(frozen=True)
class Candidate:
    token: str
    """The word piece, as text."""
    token_id: int
    probability: float
    text: str
    """The whole text with this piece in place; other masks stay."""


@dataclass(frozen=True)
class Filled:
    masks: list[list[Candidate]]
    """For each mask, from left to right, the likeliest pieces."""


@dataclass(frozen=True)
class Embedding:
    embedding: list[float]


Result = Classification | Score | Entities | Answers | Chosen | Filled | Embedding
