"""Request and response schemas. Results are the predictors' own types (inference/results.py)."""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from debertakit.inference.results import Answers, Chosen, Classification, Embedding, Entities, Filled, Score

R = TypeVar("R")
LABELS = 128
"""Maximum labels or options per text: the model reads the text once for each."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextInput(Strict):
    text: str


class TextOrPair(Strict):
    text: str
    pair: str | None = None


class Pair(Strict):
    text: str
    pair: str


class WithLabels(Strict):
    text: str
    labels: list[str] = Field(min_length=1, max_length=LABELS)


class TextOrWords(Strict):
    text: str | None = None
    words: list[str] | None = Field(None, min_length=1, description="Words to tag as they are, instead of a text.")


class QuestionInput(Strict):
    question: str
    context: str


class OptionsInput(Strict):
    text: str
    pair: str | None = None
    options: list[str] = Field(min_length=2, max_length=LABELS)


I = TypeVar("I", bound=BaseModel)  # noqa: E741


class Request(Strict, Generic[I]):
    inputs: list[I] = Field(min_length=1)
    model: str | None = Field(None, description="A name from /models; the first that does this task if absent.")


class Response(BaseModel, Generic[R]):
    model: str
    results: list[R]


class Problem(BaseModel):
    error: str


class Explain(Strict):
    model: str
    text: str = Field(max_length=2000)
    against: str | None = Field(None, description="A second model, shown beside the first.")


class ModelInfo(BaseModel):
    name: str
    task: str
    labels: list[str]
    explains: bool = Field(description="Whether /explain can take its attention apart.")


BODIES: dict[str, tuple[Any, Any]] = {
    "classify": (Request[TextOrPair], Response[Classification | Score]),
    "zero-shot": (Request[WithLabels], Response[Classification]),
    "ner": (Request[TextOrWords], Response[Entities]),
    "answer": (Request[QuestionInput], Response[Answers]),
    "choose": (Request[OptionsInput], Response[Chosen]),
    "fill": (Request[TextInput], Response[Filled]),
    "score": (Request[Pair], Response[Score]),
    "embed": (Request[TextInput], Response[Embedding]),
}
"""Task -> (request schema, response schema)."""
