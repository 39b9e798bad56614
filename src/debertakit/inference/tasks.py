"""One predictor per task. ``load`` chooses the predictor from the model's head.

predict = load("my-model")                       # classify, tag, answer, ..., depending on the head
predict("a text"); predict(["many", "texts"])
load("my-nli-model", "zero-shot", labels=["sport", "politics"])("the match ended in a draw")
"""

import difflib
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from debertakit.attention.projections import freeze_positions
from debertakit.data.examples import Choice, Example, Question, Tagged, Text
from debertakit.inference.fill import MaskFiller
from debertakit.inference.predictor import Input, Predictor
from debertakit.inference.results import (
    Answer,
    Answers,
    Chosen,
    Classification,
    Embedding,
    Entities,
    Entity,
    Label,
    Result,
    Score,
)
from debertakit.loading import SavedModel, describe, labels_of, sequence_kind
from debertakit.precision import best_device
from debertakit.tasks.decisions import averaged, decide, softmax
from debertakit.tasks.features import TokenRow

# A word for tagging: a run of letters, digits and underscores, one Chinese character, or one other symbol.
WORD = re.compile(r"[\u3400-\u9fff\U00020000-\U0003ffff]|[^\W\u3400-\u9fff\U00020000-\U0003ffff]+|[^\w\s]")


class TextClassifier(Predictor):
    """Classify a text or a pair of texts. Regression models return their value."""

    optional = ("pair",)

    def __init__(self, model: Any, tokenizer: Any, **options: Any):
        kind = sequence_kind(model.config)
        super().__init__(model, tokenizer, kind=kind, labels=labels_of(model.config), **options)

    @property
    def numeric(self) -> bool:
        return self.kind == "regression"

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
        labels = self.encoder.labels
        predictions = decide(self.kind, self.examples(items), rows, outputs, labels)
        if self.kind == "regression":
            return [Score(prediction.value) for prediction in predictions]
        several = self.kind == "multi-label"
        return [classification(labels, prediction.probabilities, several) for prediction in predictions]


def classification(names: Sequence[str], chances: Sequence[float] | np.ndarray, several: bool) -> Classification:
    """Rank the labels. ``several``: choose every label with probability >= 0.5 instead of the most probable one."""
    order = np.argsort(-np.asarray(chances), kind="stable")
    ranked = [Label(names[i], float(chances[i])) for i in order]
    chosen = [label for label in ranked if label.score >= 0.5] if several else ranked[:1]
    return Classification([label.label for label in chosen], ranked)


class ZeroShotClassifier(Predictor):
    """Classify with labels not seen in training: an NLI model judges "This example is {label}." for each label.

    Single label: softmax of the entailment logits over labels.
    Multi-label:  softmax over (entailment, contradiction), for each label separately.
    """

    optional = ("labels",)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        labels: Sequence[str] = (),
        template: str = "This example is {}.",
        multi_label: bool = False,
        **options: Any,
    ):
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
        self.labels, self.template, self.multi_label = tuple(labels), template, multi_label

    def check(self, item: Any) -> Input:
        item = super().check(item)
        given = item.get("labels")
        labels = self.labels if given is None else given
        if not labels or not all(isinstance(x, str) and x.strip() for x in labels):
            raise ValueError("zero-shot needs labels: a list of non-empty texts")
        return {**item, "labels": list(dict.fromkeys(labels))}

    def examples(self, items: Sequence[Input]) -> list[Example]:
        return [Text("", item["text"], self.template.replace("{}", x)) for item in items for x in item["labels"]]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
        logits = averaged(rows, outputs, sum(len(item["labels"]) for item in items))
        found: list[Result] = []
        start = 0
        for item in items:
            names = item["labels"]
            own = logits[start : start + len(names)]
            start += len(names)
            if self.multi_label or len(names) == 1:
                chances = softmax(own[:, [self.contradicts, self.entails]])[:, 1]
                found.append(classification(names, chances, several=True))
            else:
                found.append(classification(names, softmax(own[:, self.entails]), several=False))
        return found


class EntityTagger(Predictor):
    """Find named entities and their character offsets. Words are split by WORD; Chinese is split by character.

    An input may hold ``words`` instead of ``text``. They are tagged as they are, and offsets count in the words joined
    by spaces.
    """

    optional = ("words",)
    instead = MappingProxyType({"text": "words"})

    def __init__(self, model: Any, tokenizer: Any, **options: Any):
        super().__init__(model, tokenizer, kind="tagging", labels=labels_of(model.config), **options)

    def check(self, item: Any) -> Input:
        item = super().check(item)
        words = item.get("words")
        if words is None:
            return item
        if not words or not all(isinstance(word, str) for word in words):
            raise ValueError("words must be a non-empty list of texts")
        text = " ".join(words)
        if item.get("text") not in (None, text):  # equal if the input was checked before
            raise ValueError("give either text or words, not both")
        return {**item, "text": text}

    def examples(self, items: Sequence[Input]) -> list[Example]:
        return [Tagged("", tuple(word for word, _ in _words(item)) or ("",)) for item in items]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
        predictions = decide("tagging", self.examples(items), rows, outputs, self.encoder.labels)
        found: list[Result] = []
        for item, prediction in zip(items, predictions, strict=True):
            places = [place for _, place in _words(item)]
            found.append(Entities(entities(item["text"], places, prediction.value, prediction.probabilities)))
        return found


def _words(item: Input) -> list[tuple[str, tuple[int, int]]]:
    """Words to tag and their character offsets."""
    if item.get("words") is None:
        return [(match.group(), match.span()) for match in WORD.finditer(item["text"])]
    starts = accumulate((len(word) + 1 for word in item["words"]), initial=0)
    return [(word, (start, start + len(word))) for word, start in zip(item["words"], starts, strict=False)]


def entities(text: str, places: list[tuple[int, int]], tags: Sequence[str], chances: Sequence[float]) -> list[Entity]:
    """Merge tagged words B-X I-X ... into entities. The score of an entity is the mean over its words.

    An I-X without a preceding X starts a new entity. Tags without a prefix (X X ...) are merged like I-X.
    """
    found: list[tuple[str, int, int, list[float]]] = []
    before = "O"
    for (start, end), tag, chance in zip(places, tags, chances, strict=False):
        kind = tag[2:] if tag[1:2] == "-" else tag
        if tag != "O":
            if tag.startswith("B-") or before != kind:
                found.append((kind, start, end, [chance]))
            else:
                found[-1] = (kind, found[-1][1], end, [*found[-1][3], chance])
        before = kind
    return [Entity(kind, text[a:b], a, b, float(np.mean(chance))) for kind, a, b, chance in found]


class QuestionAnswerer(Predictor):
    """Find the span of the context that answers a question, over all windows, or report that there is no answer."""

    fields = ("question", "context")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        top: int = 5,
        no_answer: bool = True,
        threshold: float | None = 0.0,
        **options: Any,
    ):
        """``threshold``: how far "no answer" must beat the best answer. None, or ``no_answer=False``: always answer."""
        super().__init__(model, tokenizer, kind="qa", **options)
        self.top, self.threshold = top, np.inf if threshold is None or not no_answer else threshold

    def examples(self, items: Sequence[Input]) -> list[Example]:
        return [Question("", item["question"], item["context"]) for item in items]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
        found: list[Result] = []
        for prediction in decide("qa", self.examples(items), rows, outputs, (), self.threshold):
            scores = np.array([answer.score for answer in prediction.answers])
            # With the threshold taken off, "no answer" is the most probable result exactly if it is the prediction.
            nothing = scores[0] + prediction.no_answer - self.threshold if len(scores) else 0.0
            chances = softmax([*scores, nothing])
            answers = [
                Answer(answer.text, answer.start, answer.start + len(answer.text), float(chance))
                for answer, chance in zip(prediction.answers[: self.top], chances, strict=False)
            ]
            found.append(Answers(prediction.value, float(chances[-1]), answers))
        return found


class OptionChooser(Predictor):
    """Choose the option that fits a text best."""

    fields = ("text", "options")
    optional = ("pair",)

    def __init__(self, model: Any, tokenizer: Any, **options: Any):
        super().__init__(model, tokenizer, kind="choice", **options)

    def check(self, item: Any) -> Input:
        item = super().check(item)
        options = item["options"]
        if len(options) < 2 or not all(isinstance(x, str) and x.strip() for x in options):
            raise ValueError("options must be a list of two or more non-empty texts")
        return item

    def examples(self, items: Sequence[Input]) -> list[Example]:
        return [Choice("", item["text"], item.get("pair") or "", tuple(item["options"])) for item in items]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
        predictions = decide("choice", self.examples(items), rows, outputs, ())
        return [
            Chosen(prediction.value, item["options"][prediction.value], prediction.probabilities)
            for item, prediction in zip(items, predictions, strict=True)
        ]


class PairScorer(Predictor):
    """Score how well two texts match: a regression model's value, or the probability of the second label."""

    fields = ("text", "pair")

    @property
    def numeric(self) -> bool:
        return True

    def __init__(self, model: Any, tokenizer: Any, **options: Any):
        super().__init__(model, tokenizer, **options)
        if model.config.num_labels > 2:
            raise ValueError(f"score needs a model with one or two labels; this one has {model.config.num_labels}")

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
        logits = averaged(rows, outputs, len(items))
        values = logits[:, 0] if logits.shape[1] == 1 else softmax(logits)[:, 1]
        return [Score(float(value)) for value in values]

    def rank(self, query: str, texts: Sequence[str], top: int | None = None) -> list[tuple[int, float]]:
        """Return (index into ``texts``, score) pairs, best first."""
        scores = [result.score for result in self([{"text": query, "pair": text} for text in texts])]
        order = sorted(range(len(texts)), key=lambda i: -scores[i])[:top]
        return [(index, scores[index]) for index in order]


class Embedder(Predictor):
    """Embed a text as a unit vector: the mean of its last hidden states, or the hidden state of [CLS]."""

    def __init__(self, model: Any, tokenizer: Any, *, pooling: Literal["mean", "cls"] = "mean", **options: Any):
        super().__init__(model, tokenizer, **options)
        if pooling not in ("mean", "cls"):
            raise ValueError(f"unknown pooling {pooling!r}; choose mean or cls")
        self.pooling = pooling

    def forward(self, batch: dict[str, Any], rows: Sequence[TokenRow]) -> list[np.ndarray]:
        hidden = self.model(**batch).last_hidden_state.float()
        if self.pooling == "cls":
            return list(hidden[:, 0].cpu().numpy())
        mask = batch["attention_mask"][..., None].to(hidden.dtype)
        return list((hidden * mask).sum(1).cpu().numpy())  # a sum weights windows by their number of tokens

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
        pooled = averaged(rows, outputs, len(items))
        unit = pooled / np.linalg.norm(pooled, axis=-1, keepdims=True).clip(1e-12)
        return [Embedding(vector.tolist()) for vector in unit]


PREDICTORS: dict[str, type[Predictor]] = {
    "classify": TextClassifier,
    "zero-shot": ZeroShotClassifier,
    "ner": EntityTagger,
    "answer": QuestionAnswerer,
    "choose": OptionChooser,
    "fill": MaskFiller,
    "score": PairScorer,
    "embed": Embedder,
}
"""Predictor of each task."""
NEEDED_HEADS = {
    "classify": "SequenceClassification",
    "zero-shot": "SequenceClassification",
    "ner": "TokenClassification",
    "answer": "QuestionAnswering",
    "choose": "MultipleChoice",
    "fill": "MaskedLM",
    "score": "SequenceClassification",
}
"""Head that each task needs. ``embed`` takes any model."""


def load(
    model: str | Path, task: str | None = None, *, backend: Literal["torch", "onnx"] = "torch", **options: Any
) -> Predictor:
    """Load a predictor from a folder or hub name. ``task``: a name in PREDICTORS; default: the task of the head.

    The folder's own settings (maximum length, no-answer threshold, pooling) apply unless ``options`` change them.
    """
    if backend not in ("torch", "onnx"):
        raise ValueError(f"unknown backend {backend!r}; choose torch or onnx")
    saved = describe(model)
    chosen = task or next((name for name, head in NEEDED_HEADS.items() if head == saved.head), "embed")
    if chosen not in PREDICTORS:
        close = difflib.get_close_matches(chosen, PREDICTORS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(PREDICTORS)}"
        raise ValueError(f"unknown task {chosen!r}; {hint}")
    needed = NEEDED_HEADS.get(chosen, saved.head)
    if saved.head != needed:
        raise ValueError(f"{model} has {saved.head_name}, but {chosen} needs a {needed} head (see deberta finetune)")
    given = {name: value for name, value in options.items() if value is not None}
    stored: dict[str, Any] = {"max_length": saved.settings.max_length}
    if chosen == "answer":
        stored["threshold"] = saved.settings.no_answer_threshold
    if chosen == "embed" and "pooling" not in given:
        stored["pooling"] = saved.pooling
    return PREDICTORS[chosen](_network(saved, chosen, backend), saved.tokenizer(), **{**stored, **given})


def _network(saved: SavedModel, task: str, backend: str) -> Any:
    if backend == "torch":
        network = saved.network("" if task == "embed" else None).to(best_device())
        freeze_positions(network)  # nobody else can change this model
        return network
    from debertakit.inference.onnx import OnnxModel

    graph = OnnxModel(saved.name)
    if task == "embed" and "last_hidden_state" not in graph.outputs:
        found = ", ".join(graph.outputs)
        raise ValueError(f"{saved}: embed needs the graph of a bare encoder; this graph outputs {found}")
    return graph
