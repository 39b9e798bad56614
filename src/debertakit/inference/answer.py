"""Predictor for extractive question answering."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedConfig

from debertakit.data.examples import Example, Kind, Question
from debertakit.inference.predictor import Input, InputField, Network, Predictor, Result
from debertakit.loading import SavedModel
from debertakit.protocols import Tokenizer
from debertakit.tasks.decisions import decide, softmax
from debertakit.tasks.features import TokenRow


@dataclass(frozen=True)
class Answer:
    text: str
    start: int
    end: int
    """Character offsets: the answer is context[start:end]."""
    score: float


@dataclass(frozen=True)
class Answers(Result):
    answer: str
    """Empty if the context has no answer."""
    no_answer: float
    """Probability that the context has no answer."""
    answers: list[Answer]
    """Most probable first."""

    def headline(self) -> str:
        return self.answer

    def confidence(self) -> float:
        return self.answers[0].score if self.answer and self.answers else self.no_answer


class QuestionAnswerer(Predictor[Answers]):
    """Find the span of the context that answers a question, over all windows, or report that there is no answer."""

    task = "answer"
    head = "QuestionAnswering"
    fields = (
        InputField("question", example="Where was Ada Lovelace born?"),
        InputField("context", example="Ada Lovelace was born in London in 1815."),
    )

    def __init__(
        self,
        model: Network,
        tokenizer: Tokenizer,
        *,
        top: int = 5,
        no_answer: bool = True,
        threshold: float | None = 0.0,
        **options: Any,
    ):
        """``threshold``: how far "no answer" must beat the best answer. None, or ``no_answer=False``: always answer."""
        super().__init__(model, tokenizer, **options)
        self.top, self.threshold = top, np.inf if threshold is None or not no_answer else threshold

    @staticmethod
    def outputs_of(config: PreTrainedConfig) -> tuple[Kind, tuple[str, ...]]:
        return "qa", ()

    @classmethod
    def options_from(cls, saved: SavedModel, given: dict[str, Any]) -> dict[str, Any]:
        return {"threshold": saved.settings.no_answer_threshold, **super().options_from(saved, given)}

    def examples(self, items: Sequence[Input]) -> list[Example]:
        return [Question("", item["question"], item["context"]) for item in items]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Answers]:
        results = []
        for prediction in decide("qa", self.examples(items), rows, outputs, (), self.threshold):
            scores = np.array([answer.score for answer in prediction.answers])
            # Subtract the threshold, so that "no answer" is the most probable result exactly if it is the prediction.
            none = scores[0] + prediction.no_answer - self.threshold if len(scores) else 0.0
            probabilities = softmax([*scores, none])
            answers = [
                Answer(answer.text, answer.start, answer.start + len(answer.text), float(probability))
                for answer, probability in zip(prediction.answers[: self.top], probabilities, strict=False)
            ]
            results.append(Answers(prediction.value, float(probabilities[-1]), answers))
        return results
