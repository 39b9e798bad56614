"""Predictor for named entities and other tags of words."""

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
from debertakit.tasks.tagging import marks_entities, merge_tags, split_words


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

    def confidence(self) -> float | None:
        """Of the least certain entity."""
        return min((entity.score for entity in self.entities), default=None)


class EntityTagger(Predictor[Entities]):
    """Find named entities and their character offsets, or tag every word. Chinese is split by character
    (tasks/tagging.py).

    If the model's labels mark no entities (parts of speech), the result has an entry for each word, with its tag as
    ``type``.

    An input may hold ``words`` instead of ``text``. They are tagged as they are, and offsets count in the words joined
    by spaces.
    """

    task = "ner"
    head = "TokenClassification"
    fields = (
        InputField("text", example="Ada Lovelace was born in London."),
        InputField("words", required=False, holds="words", instead_of="text"),
    )

    @property
    def merges(self) -> bool:
        """Whether neighbouring words with the same tag are one entity."""
        return marks_entities(self.encoder.labels)

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
            found = entities(item["text"], places, prediction.value, prediction.probabilities, self.merges)
            results.append(Entities(found))
        return results


def _words(item: Input) -> list[tuple[str, tuple[int, int]]]:
    """Words to tag and their character offsets."""
    if item.get("words") is None:
        return split_words(item["text"])
    starts = accumulate((len(word) + 1 for word in item["words"]), initial=0)
    return [(word, (start, start + len(word))) for word, start in zip(item["words"], starts, strict=False)]


def entities(
    text: str,
    places: list[tuple[int, int]],
    tags: Sequence[str],
    probabilities: Sequence[float],
    merge: bool = True,
) -> list[Entity]:
    """Merge tagged words into entities (tasks/tagging.py). The score of an entity is the mean over its words.

    Without ``merge``, every word keeps its own tag.
    """
    tags = tags[: len(places)]
    spans = merge_tags(tags) if merge else [(tag, word, word + 1) for word, tag in enumerate(tags)]
    found = []
    for kind, first, end in spans:
        start, stop = places[first][0], places[end - 1][1]
        found.append(Entity(kind, text[start:stop], start, stop, float(np.mean(probabilities[first:end]))))
    return found
