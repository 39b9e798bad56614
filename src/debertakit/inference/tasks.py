"""One predictor per task. ``load`` chooses the predictor from the model's head.

predict = load("my-model")                       # classify, tag, answer, ..., depending on the head
predict("a text"); predict(["many", "texts"])
load("my-nli-model", "zero-shot", labels=["sport", "politics"])("the match ended in a draw")
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from debertakit.attention.projections import freeze_positions
from debertakit.checkpoints import load_whole
from debertakit.finetuning.examples import Choice, Kind, Question, Tagged
from debertakit.finetuning.features import Encoder, Row
from debertakit.finetuning.models import HEADS, labels_of, load_config, load_model, load_tokenizer_of
from debertakit.finetuning.predict import decide, sigmoid, softmax
from debertakit.inference.fill import MaskFiller
from debertakit.inference.predictor import Input, Predictor, averaged
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
from debertakit.precision import best_device

# A word for tagging: a run of letters, digits and underscores, one Chinese character, or one other symbol.
WORD = re.compile(r"[\u3400-\u9fff\U00020000-\U0003ffff]|[^\W\u3400-\u9fff\U00020000-\U0003ffff]+|[^\w\s]")


class TextClassifier(Predictor):
    """Classify a text or a pair of texts. Regression models return their value."""

    optional = ("pair",)

    @property
    def numeric(self) -> bool:
        return self.model.config.num_labels == 1

    def decide(self, items: Sequence[Input], rows: Sequence[Row], outputs: Sequence[np.ndarray]) -> list[Result]:
        logits = averaged(rows, outputs, len(items))  # [items, labels]
        config = self.model.config
        if config.num_labels == 1:
            return [Score(float(values[0])) for values in logits]
        names = labels_of(config)
        if config.problem_type == "multi_label_classification":
            return [several(names, sigmoid(values)) for values in logits]
        return [best(names, softmax(values)) for values in logits]


def best(names: Sequence[str], chances: np.ndarray) -> Classification:
    ranked = _ranked(names, chances)
    return Classification([ranked[0].label], ranked)


def several(names: Sequence[str], chances: np.ndarray) -> Classification:
    ranked = _ranked(names, chances)
    return Classification([label.label for label in ranked if label.score >= 0.5], ranked)


def _ranked(names: Sequence[str], chances: np.ndarray) -> list[Label]:
    return [Label(names[i], float(chances[i])) for i in np.argsort(-chances, kind="stable")]


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
        **others: Any,
    ):
        super().__init__(model, tokenizer, **others)
        names = {name.lower(): index for index, name in model.config.id2label.items()}
        entails = [index for name, index in names.items() if name.startswith("entail")]
        contradicts = [index for name, index in names.items() if name.startswith(("contradict", "not_entail"))]
        if not entails or not contradicts:
            raise ValueError(f"zero-shot needs a model of entailment; this one's labels are {', '.join(names)}")
        self.entails, self.contradicts = entails[0], contradicts[0]
        if template.count("{}") != 1:
            raise ValueError(f"template={template!r}: one {{}} for the label")
        self.labels, self.template, self.multi_label = tuple(labels), template, multi_label

    def check(self, item: Any) -> Input:
        item = super().check(item)
        given = item.get("labels")
        labels = self.labels if given is None else given
        if not labels or not all(isinstance(x, str) and x.strip() for x in labels):
            raise ValueError("zero-shot needs labels: a list of texts")
        return {**item, "labels": list(dict.fromkeys(labels))}

    def encode(self, items: Sequence[Input]) -> list[Row]:
        return self.text_rows(
            [(item["text"], self.template.replace("{}", x)) for item in items for x in item["labels"]]
        )

    def decide(self, items: Sequence[Input], rows: Sequence[Row], outputs: Sequence[np.ndarray]) -> list[Result]:
        logits = averaged(rows, outputs, sum(len(item["labels"]) for item in items))
        found: list[Result] = []
        start = 0
        for item in items:
            names = item["labels"]
            own = logits[start : start + len(names)]
            start += len(names)
            if self.multi_label or len(names) == 1:
                chances = softmax(own[:, [self.contradicts, self.entails]])[:, 1]
                found.append(several(names, chances))
            else:
                found.append(best(names, softmax(own[:, self.entails])))
        return found


class EntityTagger(Predictor):
    """Find named entities and their character offsets. Words are split by WORD; Chinese is split by character."""

    kind = "tagging"
    longs = ("windows", "whole")

    def __init__(self, model: Any, tokenizer: Any, **others: Any):
        super().__init__(model, tokenizer, **others)
        self.labels = labels_of(model.config)
        length = 10**6 if self.long == "whole" else self.max_length
        self.encoder = Encoder("tagging", tokenizer, self.labels, length)

    def encode(self, items: Sequence[Input]) -> list[Row]:
        return self.encoder.encode(self._examples(items)).rows

    def _examples(self, items: Sequence[Input]) -> list[Tagged]:
        return [Tagged("", tuple(match.group() for match in WORD.finditer(item["text"])) or ("",)) for item in items]

    def decide(self, items: Sequence[Input], rows: Sequence[Row], outputs: Sequence[np.ndarray]) -> list[Result]:
        predictions = decide("tagging", self._examples(items), rows, outputs, self.labels)
        found: list[Result] = []
        for item, prediction in zip(items, predictions, strict=True):
            places = [match.span() for match in WORD.finditer(item["text"])]
            found.append(Entities(entities(item["text"], places, prediction.value, prediction.probabilities)))
        return found


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

    kind = "qa"
    fields = ("question", "context")
    longs = ("windows", "whole")

    def __init__(self, model: Any, tokenizer: Any, *, top: int = 5, no_answer: bool = True, **others: Any):
        super().__init__(model, tokenizer, **others)
        self.top, self.threshold = top, 0.0 if no_answer else np.inf
        self.encoder = Encoder("qa", tokenizer, (), 10**6 if self.long == "whole" else self.max_length)

    def encode(self, items: Sequence[Input]) -> list[Row]:
        return self.encoder.encode(self._examples(items)).rows

    def _examples(self, items: Sequence[Input]) -> list[Question]:
        return [Question("", item["question"], item["context"]) for item in items]

    def decide(self, items: Sequence[Input], rows: Sequence[Row], outputs: Sequence[np.ndarray]) -> list[Result]:
        found: list[Result] = []
        for prediction in decide("qa", self._examples(items), rows, outputs, (), self.threshold):
            scores = np.array([answer.score for answer in prediction.answers])
            nothing = prediction.no_answer + scores[0] if len(scores) else np.inf
            allowed = nothing if np.isfinite(self.threshold) and np.isfinite(nothing) else -np.inf
            chances = softmax([*scores, allowed]) if len(scores) else np.array([1.0])
            answers = [
                Answer(answer.text, answer.start, answer.start + len(answer.text), float(chance))
                for answer, chance in zip(prediction.answers[: self.top], chances, strict=False)
            ]
            found.append(Answers(prediction.value, float(chances[-1]), answers))
        return found


class OptionChooser(Predictor):
    """Choose the option that fits a text best."""

    kind = "choice"
    fields = ("text", "options")
    optional = ("pair",)

    def __init__(self, model: Any, tokenizer: Any, **others: Any):
        super().__init__(model, tokenizer, **{**others, "long": others.get("long", "cut")})
        self.encoder = Encoder("choice", tokenizer, (), 10**6 if self.long == "whole" else self.max_length)

    def check(self, item: Any) -> Input:
        item = super().check(item)
        options = item["options"]
        if len(options) < 2 or not all(isinstance(x, str) and x.strip() for x in options):
            raise ValueError("options: two or more texts")
        return item

    def encode(self, items: Sequence[Input]) -> list[Row]:
        choices = [Choice("", item["text"], item.get("pair") or "", tuple(item["options"])) for item in items]
        return self.encoder.encode(choices).rows

    def decide(self, items: Sequence[Input], rows: Sequence[Row], outputs: Sequence[np.ndarray]) -> list[Result]:
        found: list[Result] = []
        for item, values in zip(items, outputs, strict=True):
            chances = softmax(values)
            index = int(chances.argmax())
            found.append(Chosen(index, item["options"][index], chances.tolist()))
        return found


class PairScorer(Predictor):
    """Score how well two texts match: a regression model's value, or the probability of the second label."""

    fields = ("text", "pair")

    @property
    def numeric(self) -> bool:
        return True

    def __init__(self, model: Any, tokenizer: Any, **others: Any):
        super().__init__(model, tokenizer, **others)
        if model.config.num_labels > 2:
            raise ValueError(f"scoring needs a model with one or two labels, and this has {model.config.num_labels}")

    def decide(self, items: Sequence[Input], rows: Sequence[Row], outputs: Sequence[np.ndarray]) -> list[Result]:
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

    def __init__(self, model: Any, tokenizer: Any, *, pooling: Literal["mean", "cls"] = "mean", **others: Any):
        super().__init__(model, tokenizer, **others)
        if pooling not in ("mean", "cls"):
            raise ValueError(f"pooling={pooling!r}: mean or cls")
        self.pooling = pooling

    def forward(self, batch: dict[str, Any], rows: Sequence[Row]) -> list[np.ndarray]:
        hidden = self.model(**batch).last_hidden_state.float()
        if self.pooling == "cls":
            return list(hidden[:, 0].cpu().numpy())
        mask = batch["attention_mask"][..., None].to(hidden.dtype)
        return list((hidden * mask).sum(1).cpu().numpy())  # a sum weights windows by their number of tokens

    def decide(self, items: Sequence[Input], rows: Sequence[Row], outputs: Sequence[np.ndarray]) -> list[Result]:
        pooled = averaged(rows, outputs, len(items))
        unit = pooled / np.linalg.norm(pooled, axis=-1, keepdims=True).clip(1e-12)
        return [Embedding(vector.tolist()) for vector in unit]


TASKS: dict[str, type[Predictor]] = {
    "classify": TextClassifier,
    "zero-shot": ZeroShotClassifier,
    "ner": EntityTagger,
    "answer": QuestionAnswerer,
    "choose": OptionChooser,
    "fill": MaskFiller,
    "score": PairScorer,
    "embed": Embedder,
}
HEAD_TASKS = {
    "SequenceClassification": "classify",
    "TokenClassification": "ner",
    "QuestionAnswering": "answer",
    "MultipleChoice": "choose",
    "MaskedLM": "fill",
}


def load(
    model: str | Path, task: str | None = None, *, backend: Literal["torch", "onnx"] = "torch", **options: Any
) -> Predictor:
    """Load a predictor from a folder or hub name. ``task``: one of TASKS; default: the task of the model's head."""
    if backend not in ("torch", "onnx"):
        raise ValueError(f"unknown backend {backend!r}: torch or onnx")
    config = load_config(model)
    head = _head(config)
    chosen = task or HEAD_TASKS.get(head, "embed")
    if chosen not in TASKS:
        close = difflib.get_close_matches(chosen, TASKS, n=1)
        raise ValueError(f"unknown task {chosen!r}; " + (f"did you mean {close[0]}?" if close else ", ".join(TASKS)))
    cls = TASKS[chosen]
    needed = {"fill": "MaskedLM", "embed": head}.get(chosen, HEADS[cls.kind])
    if head != needed:
        raise ValueError(f"{model} has {_named(head)}; {chosen} needs {_named(needed)} (deberta finetune makes one)")
    if chosen == "embed" and options.get("pooling") is None:
        options["pooling"] = _stored_pooling(Path(model))
    if backend == "onnx":
        network = _onnx(model)
        if chosen == "embed" and "last_hidden_state" not in network.outputs:
            gives = ", ".join(network.outputs)
            raise ValueError(f"{model}: its graph gives {gives}, no last_hidden_state; embed needs a bare encoder's")
    else:
        network = _network(model, chosen, cls.kind, config).to(best_device())
        freeze_positions(network)  # nobody else can change this model
    return cls(network, load_tokenizer_of(model), **options)


def _head(config: Any) -> str:
    """DebertaV2ForSequenceClassification -> "SequenceClassification"; a bare encoder -> ""."""
    architecture = (config.architectures or [""])[0]
    return architecture.rpartition("For")[2] if "For" in architecture else ""


def _named(head: str) -> str:
    return f"a head for {head}" if head else "no head"


def _network(model: str | Path, task: str, kind: Kind, config: Any) -> Any:
    if task not in ("fill", "embed"):
        network = load_model(model, kind, labels_of(config) if kind != "qa" else (), whole=True)
        network.config.problem_type = config.problem_type  # load_model sets it for training
        return network
    from debertakit.config import MODEL_TYPES

    if config.model_type in MODEL_TYPES:
        from debertakit.heads import DebertaForMaskedLM
        from debertakit.model import DebertaModel

        cls: Any = DebertaForMaskedLM if task == "fill" else DebertaModel
    else:
        import transformers

        cls = transformers.AutoModelForMaskedLM if task == "fill" else transformers.AutoModel
    if task == "fill":
        return load_whole(cls, model, dtype=torch.float32)
    return cls.from_pretrained(model, dtype=torch.float32)


def _onnx(model: str | Path) -> Any:
    from debertakit.inference.onnx import OnnxModel

    return OnnxModel(model)


def _stored_pooling(folder: Path) -> str:
    """Read the pooling mode of a sentence-transformers folder. Default: mean."""
    path = folder / "1_Pooling" / "config.json"
    stored: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    named = stored.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    modes += [key.removeprefix("pooling_mode_") for key, on in stored.items() if key.startswith("pooling_mode_") and on]
    short = {"cls_token": "cls", "mean_tokens": "mean"}
    found = {short.get(mode, mode) for mode in modes} or {"mean"}
    if len(found) > 1 or not found <= {"mean", "cls"}:
        raise ValueError(f"{folder} pools by {', '.join(sorted(found))}; embed can mean or cls")
    return found.pop()
