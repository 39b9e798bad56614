"""Predictor for named entities."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from transformers import PreTrainedConfig

from debertakit.data.examples import Example, Kind, Tagged
from debertakit.inference.predictor import Input, InputField, Predictor, Result
from debertakit.loading import labels_of
from debertakit.tasks.decisions import decide
from debertakit.tasks.features import TokenRow
from debertakit.text.characters import HAN

WORD = re.compile(rf"[{HAN}]|[^\W{HAN}]+|[^\w\s]")
"""A word for tagging: one Chinese character, a run of letters, digits and underscores, or one other symbol."""


@dataclass(frozen=True)
class Entity:
    type: str
    text: str
    start: int
    end: int
    """Character offsets: the entity is text[start:end] of the input."""
    score: float


@dataclass(frozen=True)
class Entities(Result):
    entities: list[Entity]

    def headline(self) -> str:
        return ";".join(f"{entity.type}:{entity.text}" for entity in self.entities)


class EntityTagger(Predictor[Entities]):
    """Find named entities and their character offsets. Words are split by WORD; Chinese is split by character.

    An input may hold ``words`` instead of ``text``. They are tagged as they are, and offsets count in the words joined
    by spaces.
    """

    task = "ner"
    head = "TokenClassification"
    fields = (
        InputField("text", example="Ada Lovelace was born in London."),
        InputField("words", required=False, holds="words", instead_of="text"),
    )

    @staticmethod
    def outputs_of(config: PreTrainedConfig) -> tuple[Kind, tuple[str, ...]]:
        return "tagging", labels_of(config)

    def check(self, item: object) -> Input:
        checked = super().check(item)
        words = checked.get("words")
        if words is None:
            return checked
        text = " ".join(words)
        if checked.get("text") not in (None, text):  # equal if the input was checked before
            raise ValueError("give either text or words, not both")
        return {**checked, "text": text}

    def examples(self, items: Sequence[Input]) -> list[Example]:
        return [Tagged("", tuple(word for word, _ in _words(item)) or ("",)) for item in items]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Entities]:
        predictions = decide("tagging", self.examples(items), rows, outputs, self.encoder.labels)
        results = []
        for item, prediction in zip(items, predictions, strict=True):
            places = [place for _, place in _words(item)]
            results.append(Entities(entities(item["text"], places, prediction.value, prediction.probabilities)))
        return results


def _words(item: Input) -> list[tuple[str, tuple[int, int]]]:
    """Words to tag and their character offsets."""
    if item.get("words") is None:
        return [(match.group(), match.span()) for match in WORD.finditer(item["text"])]
    starts = accumulate((len(word) + 1 for word in item["words"]), initial=0)
    return [(word, (start, start + len(word))) for word, start in zip(item["words"], starts, strict=False)]


def entities(
    text: str, places: list[tuple[int, int]], tags: Sequence[str], probabilities: Sequence[float]
) -> list[Entity]:
    """Merge tagged words B-X I-X ... into entities. The score of an entity is the mean over its words.

    An I-X without a preceding X starts a new entity. Tags without a prefix (X X ...) are merged like I-X.
    """
    found: list[tuple[str, int, int, list[float]]] = []
    before = "O"
    for (start, end), tag, probability in zip(places, tags, probabilities, strict=False):
        kind = tag[2:] if tag[1:2] == "-" else tag
        if tag != "O":
            if tag.startswith("B-") or before != kind:
                found.append((kind, start, end, [probability]))
            else:
                found[-1] = (kind, found[-1][1], end, [*found[-1][3], probability])
        before = kind
    return [Entity(kind, text[a:b], a, b, float(np.mean(scores))) for kind, a, b, scores in found]
