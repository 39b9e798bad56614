"""Base class of all predictors. Prediction has four steps:

    check    validate an input; raise ValueError if it is not usable
    encode   inputs -> rows of tokens; one input may become several rows (windows, labels, options)
    run      rows -> model outputs, in batches sorted by length and limited by a token budget
    decide   inputs, rows and outputs -> one result per input

Calling a predictor runs all four steps. The HTTP server runs the third step for many callers at once.

``long`` says how to read a text longer than ``max_length``:

    windows  overlapping windows; their outputs are averaged
    whole    in one pass; distant relative positions share buckets (not for models with absolute positions)
    cut      truncated to max_length
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch

from debertakit.finetuning.batches import Collator, batches_of
from debertakit.finetuning.examples import Kind
from debertakit.finetuning.features import Row
from debertakit.finetuning.losses import task_logits
from debertakit.finetuning.models import longest_input
from debertakit.finetuning.predict import BUDGET, unpadded
from debertakit.inference.results import Result

Input = Mapping[str, Any]
Long = Literal["windows", "whole", "cut"]
LISTS = ("labels", "options")
"""Fields that hold a list of texts; the other fields hold one text."""
LOOK_AHEAD = 4096
"""Number of inputs that are sorted by length together."""


class Predictor:
    kind: ClassVar[Kind] = "single-label"
    """Kind of the model's logits (finetuning/losses.py)."""
    fields: ClassVar[tuple[str, ...]] = ("text",)
    """Required fields of an input. A plain string is taken as the first field."""
    optional: ClassVar[tuple[str, ...]] = ()
    longs: ClassVar[tuple[Long, ...]] = get_args(Long)
    """Supported values of ``long``."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_length: int | None = None,
        long: Long = "windows",
        budget: int | None = None,
    ):
        if long not in self.longs:
            raise ValueError(f"long={long!r} does not work for this task: {', '.join(self.longs)}")
        longest, ends_there = longest_input(model, tokenizer)
        if long == "whole" and ends_there:
            raise ValueError(
                f"long='whole': this model has absolute positions for {longest} tokens; take windows or cut"
            )
        if max_length is not None and (max_length < 8 or (max_length > longest and ends_there)):
            raise ValueError(f"max_length={max_length}: from 8 to {longest} for this model")
        self.model, self.tokenizer, self.long = model.eval(), tokenizer, long
        self.max_length = max_length or longest
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
                if name in self.fields:
                    raise ValueError(f"an input needs {', '.join(self.fields)}; {name} is missing")
            elif name in LISTS:
                if not isinstance(value, (list, tuple)):
                    raise ValueError(f"{name} must be a list of texts, not {type(value).__name__}")
            elif not isinstance(value, str):
                raise ValueError(f"{name} must be text, not {type(value).__name__}")
            elif not value.strip() and name in self.fields:
                raise ValueError(f"{name} is empty")
        return item

    def encode(self, items: Sequence[Input]) -> list[Row]:
        return self.text_rows([(item["text"], item.get("pair")) for item in items])

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        collate = Collator(self.tokenizer, self.kind)
        for indices, batch in batches_of(rows, collate, self.budget, self.device):
            outputs = self.forward(batch, [rows[i] for i in indices])
            for index, output in zip(indices, outputs, strict=True):
                found[index] = output
        return found

    def forward(self, batch: dict[str, Any], rows: Sequence[Row]) -> list[np.ndarray]:
        """Run one batch and return one array per row."""
        logits = task_logits(self.model, batch, self.kind).cpu().numpy()
        return [unpadded(self.kind, values, row) for values, row in zip(logits, rows, strict=True)]

    def decide(self, items: Sequence[Input], rows: Sequence[Row], outputs: Sequence[np.ndarray]) -> list[Result]:
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------- encoding texts

    def text_rows(self, texts: Sequence[tuple[str, str | None]]) -> list[Row]:
        """Encode each text or pair as one row, or as several windows if it is too long."""
        encoded = self.tokenizer([text if pair is None else (text, pair) for text, pair in texts])
        segments = encoded.get("token_type_ids") or [None] * len(texts)
        rows = []
        for index, (ids, segment) in enumerate(zip(encoded["input_ids"], segments, strict=True)):
            if len(ids) <= self.max_length or self.long == "whole":
                rows.append(Row(index, [ids], segment and [segment]))
            else:
                rows += self._windows(index, *texts[index])
        return rows

    def _windows(self, index: int, text: str, pair: str | None) -> Iterator[Row]:
        """Encode a text that is too long: as windows, or truncated for ``long="cut"``.

        Windows overlap by max_length / 4. In a pair, only the longer text is split, and its windows overlap by
        max_length / 8.
        """
        kept = self.max_length // 2
        given: tuple[str, ...] = (text,)
        which = "only_first"
        if pair is not None:
            sizes = [len(ids) for ids in self.tokenizer([text, pair], add_special_tokens=False)["input_ids"]]
            longer = int(sizes[1] >= sizes[0])
            both = [text, pair]
            if sizes[1 - longer] > kept:  # both are long: truncate the shorter one
                both[1 - longer] = self._beginning(both[1 - longer], kept)
            given, which = tuple(both), ("only_first", "only_second")[longer]
        encoded = self.tokenizer(
            *given,
            truncation=which,
            max_length=self.max_length,
            stride=self.max_length // 8 if pair is not None else self.max_length // 4,
            return_overflowing_tokens=self.long == "windows",
        )
        if self.long == "cut":
            encoded = {key: [value] for key, value in encoded.items()}
        segments = encoded.get("token_type_ids") or [None] * len(encoded["input_ids"])
        for ids, segment in zip(encoded["input_ids"], segments, strict=True):
            yield Row(index, [ids], segment and [segment])

    def _beginning(self, text: str, tokens: int) -> str:
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return text[: offsets[tokens - 1][1]]


def averaged(rows: Sequence[Row], outputs: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Average the windows of each input: [count, ...]."""
    windows: dict[int, list[np.ndarray]] = defaultdict(list)
    for row, output in zip(rows, outputs, strict=True):
        windows[row.example].append(output)
    return np.stack([np.mean(windows[index], axis=0, dtype=np.float64) for index in range(count)])
