"""Base class of all predictors. Prediction has four steps:

    check    validate an input; raise ValueError if it is not usable
    encode   inputs -> rows of tokens; one input may become several rows (windows, labels, options)
    run      rows -> model outputs, in batches sorted by length and limited by a token budget
    decide   inputs, rows and outputs -> one result per input

Calling a predictor runs all four steps. The HTTP server runs the third step for many callers at once. Encoding and
deciding are those of evaluation (tasks/features.py, tasks/decisions.py): a predictor answers what ``evaluate`` scored.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from debertakit.data.examples import Example, Kind, TextExample
from debertakit.inference.results import Result
from debertakit.loading import longest_input
from debertakit.tasks.batches import Collator, batches_of
from debertakit.tasks.decisions import BUDGET, unpadded
from debertakit.tasks.features import ExampleEncoder, Long, TokenRow, long_modes
from debertakit.tasks.losses import task_logits

Input = Mapping[str, Any]
LISTS = ("labels", "options", "words")
"""Fields that hold a list of texts; the other fields hold one text."""
LOOK_AHEAD = 4096
"""Number of inputs that are sorted by length together."""


class Predictor:
    fields: ClassVar[tuple[str, ...]] = ("text",)
    """Required fields of an input. A plain string is taken as the first field."""
    optional: ClassVar[tuple[str, ...]] = ()
    instead: ClassVar[Mapping[str, str]] = {}
    """Optional field that may replace a required one."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        kind: Kind = "single-label",
        labels: tuple[str, ...] = (),
        max_length: int | None = None,
        long: Long | None = None,
        budget: int | None = None,
    ):
        """``kind``: of the model's logits (tasks/losses.py). ``long``: how to read long texts (tasks/features.py)."""
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
        self.budget = budget or BUDGET[self.device.type == "cuda"]

    @property
    def numeric(self) -> bool:
        """Whether the prediction is a number."""
        return False

    def settings(self) -> dict[str, Any]:
        """JSON-serialisable options, stored in the job record."""
        plain = (str, int, float, tuple, type(None))
        return {name: value for name, value in vars(self).items() if isinstance(value, plain) and name != "budget"}

    def __call__(self, inputs: Any) -> Any:
        """Predict on one input (a string, or a mapping with ``fields``) or on a list of inputs."""
        if isinstance(inputs, (str, Mapping)):
            return self([inputs])[0]
        return [
            result for start in range(0, len(inputs), LOOK_AHEAD) for result in self._some(inputs[start:][:LOOK_AHEAD])
        ]

    def _some(self, inputs: Sequence[Any]) -> list[Result]:
        items = [self.check(item) for item in inputs]
        rows = self.encode(items)
        return self.decide(items, rows, self.run(rows))

    # ------------------------------------------------------------------------------------------------ the four steps

    def check(self, item: Any) -> Input:
        """Return the input as a mapping. Raise if a field is missing or has the wrong type."""
        if isinstance(item, str):
            item = {self.fields[0]: item}
        if not isinstance(item, Mapping):
            raise ValueError(
                f"an input is a text or a mapping with {', '.join(self.fields)}; got {type(item).__name__}"
            )
        for name in (*self.fields, *self.optional):
            value = item.get(name)
            if value is None:
                if name in self.fields and item.get(self.instead.get(name, "")) is None:
                    raise ValueError(f"an input needs {', '.join(self.fields)}; {name} is missing")
            elif name in LISTS:
                if not isinstance(value, (list, tuple)):
                    raise ValueError(f"{name} must be a list of texts, not {type(value).__name__}")
            elif not isinstance(value, str):
                raise ValueError(f"{name} must be text, not {type(value).__name__}")
            elif not value.strip() and name in self.fields:
                raise ValueError(f"{name} is empty")
        return item

    def encode(self, items: Sequence[Input]) -> list[TokenRow]:
        return self.encoder.encode(self.examples(items)).rows

    def examples(self, items: Sequence[Input]) -> list[Example]:
        """Return the inputs as examples without labels."""
        return [TextExample("", item["text"], item.get("pair")) for item in items]

    @torch.inference_mode()
    def run(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        collate = Collator(self.tokenizer, self.kind)
        for indices, batch in batches_of(rows, collate, self.budget, self.device):
            outputs = self.forward(batch, [rows[i] for i in indices])
            for index, output in zip(indices, outputs, strict=True):
                found[index] = output
        return found

    def forward(self, batch: dict[str, Any], rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Run one batch and return one array per row."""
        logits = task_logits(self.model, batch, self.kind).cpu().numpy()
        return [unpadded(self.kind, values, row) for values, row in zip(logits, rows, strict=True)]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
        raise NotImplementedError
