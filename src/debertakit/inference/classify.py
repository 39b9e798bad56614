"""Predictors for sequence classifiers: text classification, zero-shot classification, and scores of pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedConfig

from debertakit.data.examples import Example, Kind, TextExample
from debertakit.data.tables import decodable
from debertakit.inference.options import ZeroShotOptions
from debertakit.inference.predictor import Input, InputField, Network, Predictor, Result
from debertakit.loading import labels_of, sequence_kind
from debertakit.protocols import Tokenizer
from debertakit.tasks.decisions import averaged, decide, softmax
from debertakit.tasks.features import TokenRow


@dataclass(frozen=True)
class Label:
    label: str
    score: float
    """Probability, 0 to 1."""


@dataclass(frozen=True)
class Classification(Result):
    labels: list[str]
    """The predicted label; multi-label: all labels with probability >= 0.5."""
    scores: list[Label]
    """All labels, most probable first."""

    def headline(self) -> str:
        return ";".join(self.labels)

    def confidence(self) -> float:
        """Of several labels, the smallest probability. Without a label, the probability that the likeliest is wrong."""
        chosen = [label.score for label in self.scores if label.label in self.labels]
        return min(chosen) if chosen else 1 - self.scores[0].score


@dataclass(frozen=True)
class Score(Result):
    score: float
    """Regression: the value. Pairs: how well the texts match; higher is better."""

    def headline(self) -> float:
        return self.score


class TextClassifier(Predictor[Classification | Score]):
    """Classify a text or a pair of texts. Regression models return their value."""

    task = "classify"
    head = "SequenceClassification"
    fields = (InputField("text", example="A warm and funny film."), InputField("pair", required=False))

    @staticmethod
    def outputs_of(config: PreTrainedConfig) -> tuple[Kind, tuple[str, ...]]:
        return sequence_kind(config), labels_of(config)

    @property
    def numeric(self) -> bool:
        return self.kind == "regression"

    def decide(
        self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]
    ) -> list[Classification | Score]:
        labels = self.encoder.labels
        predictions = decide(self.kind, self.examples(items), rows, outputs, labels)
        if self.kind == "regression":
            return [Score(prediction.value) for prediction in predictions]
        multi_label = self.kind == "multi-label"
        return [classification(labels, prediction.probabilities, multi_label) for prediction in predictions]


def classification(
    names: Sequence[str], probabilities: Sequence[float] | np.ndarray, multi_label: bool
) -> Classification:
    """Rank the labels. Choose the most probable label, or with ``multi_label`` every label with probability >= 0.5."""
    order = np.argsort(-np.asarray(probabilities), kind="stable")
    ranked = [Label(names[i], float(probabilities[i])) for i in order]
    chosen = [label for label in ranked if label.score >= 0.5] if multi_label else ranked[:1]
    return Classification([label.label for label in chosen], ranked)


class ZeroShotClassifier(Predictor[Classification]):
    """Classify with labels not seen in training: an NLI model judges "This example is {label}." for each label.

    Single label: softmax of the entailment logits over labels.
    Multi-label:  softmax over (entailment, contradiction), for each label separately.
    """

    task = "zero-shot"
    head = "SequenceClassification"
    fields = (
        InputField("text", example="The match ended in a draw."),
        InputField("labels", required=False, holds="choices", example=("sport", "politics", "music")),
    )

    def __init__(
        self,
        model: Network,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str] = (),
        template: str = ZeroShotOptions.template,
        multi_label: bool = False,
        **options: Any,
    ):
        """``labels``: for inputs without labels of their own."""
        super().__init__(model, tokenizer, **options)
        names = {name.lower(): index for index, name in model.config.id2label.items()}
        entails = [index for name, index in names.items() if name.startswith("entail")]
        contradicts = [index for name, index in names.items() if name.startswith(("contradict", "not_entail"))]
        if not entails or not contradicts:
            raise ValueError(
                f"zero-shot needs an NLI model (with an entailment label); this one has the labels {', '.join(names)}"
            )
        self.entails, self.contradicts = entails[0], contradicts[0]
        if template.count("{}") != 1:
            raise ValueError(f"template={template!r} must contain {{}} once, for the label")
        if not all(map(decodable, (template, *labels))):
            raise ValueError("the template or a label is not valid Unicode")
        self.labels, self.template, self.multi_label = tuple(labels), template, multi_label

    def check(self, item: object) -> Input:
        checked = super().check(item)
        labels = checked.get("labels") or self.labels
        if not labels:
            raise ValueError("zero-shot needs labels: a list of texts")
        return {**checked, "labels": list(dict.fromkeys(labels))}

    def examples(self, items: Sequence[Input]) -> list[Example]:
        return [
            TextExample("", item["text"], self.template.replace("{}", label))
            for item in items
            for label in item["labels"]
        ]

    def decide(
        self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]
    ) -> list[Classification]:
        logits = averaged(rows, outputs, sum(len(item["labels"]) for item in items))
        results = []
        start = 0
        for item in items:
            names = item["labels"]
            of_item = logits[start : start + len(names)]
            start += len(names)
            if self.multi_label or len(names) == 1:
                probabilities = softmax(of_item[:, [self.contradicts, self.entails]])[:, 1]
                results.append(classification(names, probabilities, multi_label=True))
            else:
                results.append(classification(names, softmax(of_item[:, self.entails]), multi_label=False))
        return results


class PairScorer(Predictor[Score]):
    """Score how well two texts match: a regression model's value, or the probability of the second label."""

    task = "score"
    head = "SequenceClassification"
    fields = (
        InputField("text", example="A man plays the guitar."),
        InputField("pair", example="Someone makes music."),
    )

    def __init__(self, model: Network, tokenizer: Tokenizer, **options: Any):
        super().__init__(model, tokenizer, **options)
        if model.config.num_labels > 2:
            raise ValueError(f"score needs a model with one or two labels; this one has {model.config.num_labels}")

    @property
    def numeric(self) -> bool:
        return True

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Score]:
        logits = averaged(rows, outputs, len(items))
        values = logits[:, 0] if logits.shape[1] == 1 else softmax(logits)[:, 1]
        return [Score(float(value)) for value in values]

    def rank(self, query: str, texts: Sequence[str], top: int | None = None) -> list[tuple[int, float]]:
        """Return (index into ``texts``, score) pairs, best first."""
        pairs: list[Input] = [{"text": query, "pair": text} for text in texts]
        scores = [result.score for result in self(pairs)]
        order = sorted(range(len(texts)), key=lambda i: -scores[i])[:top]
        return [(index, scores[index]) for index in order]
