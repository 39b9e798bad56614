"""Base class of all predictors. A predictor is the whole description of a task: a new one is a new module with a
result type and a predictor class, and an entry in PREDICTORS (tasks.py). From its class attributes follow the command
line, the columns that a file needs, the HTTP endpoint with its schema, and the form on the web page.

Prediction has four steps:

    check    validate an input; raise ValueError if it is not usable
    encode   inputs -> rows of tokens; one input may become several rows (windows, labels, options)
    run      rows -> model outputs, in batches sorted by length and limited by a token budget
    decide   inputs, rows and outputs -> one result per input

Calling a predictor runs all four steps. The HTTP server runs the third step for many callers at once. Encoding and
deciding are those of evaluation (tasks/features.py, tasks/decisions.py): a predictor answers what ``evaluate`` scored.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, overload

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.utils import ModelOutput

from debertakit.data.examples import Example, Kind, TextExample
from debertakit.data.tables import decodable
from debertakit.loading import SavedModel, longest_input
from debertakit.protocols import Tokenizer
from debertakit.tasks.batches import Collator, batches_of
from debertakit.tasks.decisions import BUDGET, unpadded
from debertakit.tasks.features import ExampleEncoder, Long, TokenRow, long_modes
from debertakit.tasks.losses import task_logits

LOOK_AHEAD = 4096
"""Number of inputs that are sorted by length together, unless they have more than ``CHARACTERS`` characters."""
CHARACTERS = 4_000_000
"""Bounds the memory for tokens: about 600 bytes per character if every character is a token, so 2.4 GB."""


class Network(Protocol):
    """A network to predict with: our class, a class of transformers, or an ONNX graph."""

    config: PreTrainedConfig

    @property
    def device(self) -> torch.device: ...

    def eval(self) -> "Network": ...

    def __call__(self, **inputs: Tensor) -> ModelOutput: ...


@dataclass(frozen=True)
class InputField:
    """A field of an input."""

    name: str
    required: bool = True
    holds: Literal["text", "words", "choices"] = "text"
    """text: one text
    words: a list of words, read together
    choices: a list of texts; the model reads the input once for each of them
    """
    at_least: int = 1
    """Smallest number of words or choices."""
    instead_of: str | None = None
    """Required field that this optional one may replace."""
    example: str | tuple[str, ...] = ""
    """Value that the form on the web page starts with."""

    def check(self, value: object) -> None:
        if self.holds == "text":
            if not isinstance(value, str):
                raise ValueError(f"{self.name} must be text, not {type(value).__name__}")
            if self.required and not value.strip():
                raise ValueError(f"{self.name} is empty")
            _check_unicode(self.name, value)
            return
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{self.name} must be a list of texts, not {type(value).__name__}")
        if len(value) < self.at_least or not all(isinstance(text, str) for text in value):
            raise ValueError(f"{self.name} must be a list of at least {self.at_least} texts")
        if self.holds == "choices" and not all(text.strip() for text in value):
            raise ValueError(f"{self.name} has an empty text")
        for text in value:
            _check_unicode(self.name, text)


def _check_unicode(name: str, text: str) -> None:
    if not decodable(text):
        raise ValueError(f"{name} is not valid Unicode: it has a lone surrogate, or bytes that are not UTF-8")


Input = Mapping[str, Any]
"""Field name -> text or list of texts."""


@dataclass(frozen=True)
class Result(ABC):
    """Base class of result types. A result is the same in Python, in files (as JSON) and over HTTP."""

    @abstractmethod
    def headline(self) -> str | float:
        """The short answer: what the command line prints and the column ``prediction`` holds."""

    def confidence(self) -> float | None:
        """The model's probability for its short answer, 0 to 1. None if the task has none."""
        return None


R = TypeVar("R", bound=Result, covariant=True)
Item = TypeVar("Item", str, Input)


class Predictor(ABC, Generic[R]):
    """``Predictor[R]`` returns results of type R. The first docstring line is shown in the API documentation."""

    task: ClassVar[str]
    """Name on the command line and path of the HTTP endpoint."""
    head: ClassVar[str]
    """Head that the task needs: "SequenceClassification". "": the encoder of any model."""
    fields: ClassVar[tuple[InputField, ...]]
    """Fields of an input. A plain string is taken as the first field."""

    def __init__(
        self,
        model: Network,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = None,
        long: Long | None = None,
        budget: int | None = None,
    ):
        """``max_length``: tokens; None: the longest input that the model takes. ``long``: how to read longer texts
        (tasks/features.py). ``budget``: tokens per batch."""
        kind, labels = self.outputs_of(model.config)
        if tokenizer.pad_token_id is None:
            raise ValueError("this tokenizer has no padding token")
        longest, absolute = longest_input(model, tokenizer)
        if long == "whole" and absolute:
            raise ValueError(
                f"long='whole': this model has absolute positions for {longest} tokens; choose another mode"
            )
        if max_length is not None and (max_length < 8 or (max_length > longest and absolute)):
            raise ValueError(f"max_length={max_length}: this model reads 8 to {longest} tokens")
        self.model, self.tokenizer, self.kind = model.eval(), tokenizer, kind
        self.max_length, self.long = max_length or longest, long or long_modes(kind)[0]
        self.encoder = ExampleEncoder(kind, tokenizer, labels, self.max_length, self.long)
        self.device = model.device
        self.backend = ""
        """What ``backend="auto"`` chose, with the measured speeds."""
        self.budget = budget or BUDGET[self.device.type == "cuda"]

    @staticmethod
    def outputs_of(config: PreTrainedConfig) -> tuple[Kind, tuple[str, ...]]:
        """Kind of the model's logits (tasks/losses.py), and its labels if the task has labels."""
        return "single-label", ()

    @classmethod
    def options_from(cls, saved: SavedModel, given: dict[str, Any]) -> dict[str, Any]:
        """Complete the options ``given`` with those that the model folder stores."""
        return {"max_length": saved.settings.max_length, **given}

    @property
    def numeric(self) -> bool:
        """Whether the short answer is a number."""
        return False

    def settings(self) -> dict[str, object]:
        """JSON-serialisable options, stored in the job record."""
        plain, machine = (str, int, float, tuple, type(None)), ("budget", "backend")
        return {name: value for name, value in vars(self).items() if isinstance(value, plain) and name not in machine}

    @overload
    def __call__(self, inputs: str | Input) -> R: ...

    @overload
    def __call__(self, inputs: list[Item] | tuple[Item, ...]) -> list[R]: ...

    def __call__(self, inputs: str | Input | list[Item] | tuple[Item, ...]) -> R | list[R]:
        """Predict on one input (a string, or a mapping with ``fields``) or on a list of inputs."""
        if isinstance(inputs, (str, Mapping)):
            return self._predict([inputs])[0]
        return self._predict(inputs)

    def _predict(self, inputs: Sequence[str | Input]) -> list[R]:
        results: list[R] = []
        for items in self._together([self.check(item) for item in inputs]):
            rows = self.encode(items)
            results += self.decide(items, rows, self.run(rows))
        return results

    def _together(self, items: Sequence[Input]) -> Iterator[list[Input]]:
        """Yield the items that are sorted by length together."""
        together: list[Input] = []
        characters = 0
        for item in items:
            more = self._characters(item)
            if together and (len(together) == LOOK_AHEAD or characters + more > CHARACTERS):
                yield together
                together, characters = [], 0
            together.append(item)
            characters += more
        if together:
            yield together

    def _characters(self, item: Input) -> int:
        """Number of characters that the model reads: the text once for each choice."""
        texts = sum(len(item.get(field.name) or "") for field in self.fields if field.holds == "text")
        choices = [len(item.get(field.name) or ()) for field in self.fields if field.holds == "choices"]
        return texts * max([1, *choices])

    # ------------------------------------------------------------------------------------------------ the four steps

    def check(self, item: object) -> Input:
        """Return the input as a mapping. Raise if a field is missing or has the wrong type."""
        if isinstance(item, str):
            item = {self.fields[0].name: item}
        needed = ", ".join(field.name for field in self.fields if field.required)
        if not isinstance(item, Mapping):
            raise ValueError(f"an input is a text or a mapping with {needed}; got {type(item).__name__}")
        replaced = {field.instead_of for field in self.fields if item.get(field.name) is not None}
        for field in self.fields:
            value = item.get(field.name)
            if value is not None:
                field.check(value)
            elif field.required and field.name not in replaced:
                raise ValueError(f"an input needs {needed}; {field.name} is missing")
        return item

    def encode(self, items: Sequence[Input]) -> list[TokenRow]:
        return self.encoder.encode(self.examples(items)).rows

    def examples(self, items: Sequence[Input]) -> list[Example]:
        """Return the inputs as examples without labels."""
        return [TextExample("", item["text"], item.get("pair")) for item in items]

    def masks(self, row: TokenRow) -> int:
        """Masks to fill in a row. The logits of a mask are as wide as the vocabulary, so the server limits them."""
        return 0

    @torch.inference_mode()
    def run(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        collate = Collator(self.tokenizer, self.kind)
        for indices, batch in batches_of(rows, collate, self.budget, self.device):
            outputs = self.forward(batch, [rows[i] for i in indices])
            for index, output in zip(indices, outputs, strict=True):
                found[index] = output
        return found

    def forward(self, batch: dict[str, Tensor], rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Run one batch and return one array per row."""
        logits = task_logits(self.model, batch, self.kind).cpu().numpy()
        return [unpadded(self.kind, values, row) for values, row in zip(logits, rows, strict=True)]

    @abstractmethod
    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[R]:
        """Return one result per input. ``outputs``: what ``forward`` returned for each row."""
