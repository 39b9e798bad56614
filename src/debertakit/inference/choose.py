"""Predictor for multiple choice."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedConfig

from debertakit.data.examples import Choice, Example, Kind
from debertakit.inference.predictor import Input, InputField, Predictor, Result
from debertakit.tasks.decisions import decide
from debertakit.tasks.features import TokenRow


@dataclass(frozen=True)
class Chosen(Result):
    index: int
    option: str
    scores: list[float]
    """Probability of each option, in the order of the input."""

    def headline(self) -> str:
        return self.option

    def confidence(self) -> float:
        return self.scores[self.index]


class OptionChooser(Predictor[Chosen]):
    """Choose the option that fits a text best."""

    task = "choose"
    head = "MultipleChoice"
    fields = (
        InputField("text", example="It began to rain, so she"),
        InputField("options", holds="choices", at_least=2, example=("opened her umbrella.", "watered the flowers.")),
        InputField("pair", required=False),
    )

    @staticmethod
    def outputs_of(config: PreTrainedConfig) -> tuple[Kind, tuple[str, ...]]:
        return "choice", ()

    def examples(self, items: Sequence[Input]) -> list[Example]:
        return [Choice("", item["text"], item.get("pair") or "", tuple(item["options"])) for item in items]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Chosen]:
        predictions = decide("choice", self.examples(items), rows, outputs, ())
        return [
            Chosen(prediction.value, item["options"][prediction.value], prediction.probabilities)
            for item, prediction in zip(items, predictions, strict=True)
        ]
