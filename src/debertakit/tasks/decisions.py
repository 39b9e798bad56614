"""Convert logits to predictions.

``row_logits`` runs the model on rows. ``decide`` converts the logits to one prediction per example:

    single-label  the label with the largest logit           multi-label  every label with probability >= 1/2
    choice        the option with the largest logit          regression   the value
                  (logits are averaged over the windows of a long text, except for choice)
    tagging       per word, the tag with the largest logit, from the window with the most context around the word
    qa            the best span of all windows, or "" if "no answer" beats it by more than a threshold
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from debertakit.data.examples import Kind, Question, Tagged
from debertakit.tasks.batches import Collator, batches_of
from debertakit.tasks.features import TokenRow
from debertakit.tasks.losses import cells, task_logits, task_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BUDGET = {False: 2048, True: 32768}
"""Tokens per batch, on a CPU and on a GPU."""
CANDIDATES = 20
"""Number of starts and ends tried per window, and of answers kept per question."""
MAX_ANSWER_TOKENS = 30


class Span(NamedTuple):
    """An answer in its context."""

    text: str
    score: float
    start: int


@dataclass(frozen=True)
class Prediction:
    value: Any
    """In the form that the task's score and the leaderboard's file need (examples.py)."""
    probabilities: list[float] = field(default_factory=list)
    """One per label or option. Tagging: the probability of each word's predicted tag."""
    answers: list[Span] = field(default_factory=list)
    """Question: the best answers, best first."""
    no_answer: float = 0.0
    """Question: score of "no answer" minus that of the best answer."""


@torch.inference_mode()
def row_logits(
    model: "PreTrainedModel",
    rows: Sequence[TokenRow],
    kind: Kind,
    collate: Collator,
    show: Callable[[int], None] = lambda done: None,
) -> tuple[list[np.ndarray], float]:
    """Return the logits of each row - [labels], [] (regression), [length, tags], [2, length] or [options] - and the
    mean loss, which is NaN if a label is missing. ``show``: called with the number of rows done."""
    device = next(model.parameters()).device
    budget = BUDGET[device.type == "cuda"]
    total, count, done = 0.0, 0, 0
    was_training = model.training
    model.eval()
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    for indices, batch in batches_of(rows, collate, budget, device):
        logits = task_logits(model, batch, kind)
        labels = batch.get("labels")
        total += float("nan") if labels is None else float(task_loss(kind, logits, labels))
        count += 0 if labels is None else cells(labels)
        for index, values in zip(indices, logits.cpu().numpy(), strict=True):
            found[index] = unpadded(kind, values, rows[index])
        done += len(indices)
        show(done)
    model.train(was_training)
    return found, total / max(count, 1)


def unpadded(kind: Kind, values: np.ndarray, row: TokenRow) -> np.ndarray:
    """Remove padding from a row's logits: positions after its end, and options that it does not have."""
    match kind:
        case "single-label" | "multi-label" | "regression":
            return values.copy()
        case "tagging":
            return values[: len(row.ids[0])].copy()
        case "qa":
            return values[:, : len(row.ids[0])].copy()
        case "choice":
            return values[: len(row.ids)].copy()


def decide(
    kind: Kind,
    examples: Sequence[Any],
    rows: Sequence[TokenRow],
    logits: Sequence[np.ndarray],
    labels: tuple[str, ...],
    threshold: float = 0.0,
) -> list[Prediction]:
    """Choose predictions. ``threshold``: how far "no answer" must beat the best answer; infinity: always answer."""
    match kind:
        case "single-label":
            means = averaged(rows, logits, len(examples))
            return [Prediction(labels[int(values.argmax())], softmax(values).tolist()) for values in means]
        case "multi-label":
            return [_likely_labels(sigmoid(values), labels) for values in averaged(rows, logits, len(examples))]
        case "regression":
            return [Prediction(float(value)) for value in averaged(rows, logits, len(examples))]
        case "choice":
            return [Prediction(int(values.argmax()), softmax(values).tolist()) for values in logits]
        case "tagging":
            return _tags(examples, rows, logits, labels)
        case "qa":
            return _answers(examples, rows, logits, threshold)


def _likely_labels(probabilities: np.ndarray, labels: tuple[str, ...]) -> Prediction:
    likely = tuple(label for label, p in zip(labels, probabilities, strict=True) if p >= 0.5)
    return Prediction(likely, probabilities.tolist())


def _tags(
    examples: Sequence[Tagged], rows: Sequence[TokenRow], logits: Sequence[np.ndarray], labels: tuple[str, ...]
) -> list[Prediction]:
    tags: list[list[str]] = [[""] * len(example.words) for example in examples]
    chances: list[list[float]] = [[0.0] * len(example.words) for example in examples]
    for row, values in zip(rows, logits, strict=True):
        at_words = softmax(values[row.places[:, 1]])  # [words of this window, tags]
        for (word, _), chance in zip(row.places, at_words, strict=True):
            tags[row.example][word] = labels[int(chance.argmax())]
            chances[row.example][word] = float(chance.max())
    return [Prediction(tuple(found), chance) for found, chance in zip(tags, chances, strict=True)]


def _answers(
    examples: Sequence[Question], rows: Sequence[TokenRow], logits: Sequence[np.ndarray], threshold: float
) -> list[Prediction]:
    spans: list[dict[str, Span]] = [{} for _ in examples]
    nothing = [np.inf] * len(examples)
    for row, (starts, ends) in zip(rows, logits, strict=True):
        # Windows without the answer should score high for "no answer", so the lowest score over windows counts.
        outside = int(np.flatnonzero(row.places[:, 0] < 0)[0])  # [CLS]
        nothing[row.example] = min(nothing[row.example], float(starts[outside] + ends[outside]))
        context = examples[row.example].context
        for start, end, score in best_spans(starts, ends, row.places[:, 0] >= 0):
            begin = int(row.places[start, 0])
            found = context[begin : row.places[end, 1]]
            text = found.strip()
            known = spans[row.example].get(text)
            if text and (known is None or known.score < score):
                spans[row.example][text] = Span(text, score, begin + found.index(text))
    predictions = []
    for candidates, none in zip(spans, nothing, strict=True):
        ranked = sorted(candidates.values(), key=lambda span: -span.score)[:CANDIDATES]
        difference = none - ranked[0].score if ranked else np.inf
        value = ranked[0].text if ranked and difference <= threshold else ""
        predictions.append(Prediction(value, answers=ranked, no_answer=float(difference)))
    return predictions


def best_spans(starts: np.ndarray, ends: np.ndarray, inside: np.ndarray) -> list[tuple[int, int, float]]:
    """Best (start, end, score) inside the context, with start <= end < start + MAX_ANSWER_TOKENS."""
    first = [int(i) for i in np.argsort(-starts) if inside[i]][:CANDIDATES]
    last = [int(i) for i in np.argsort(-ends) if inside[i]][:CANDIDATES]
    pairs = [(i, j, float(starts[i] + ends[j])) for i in first for j in last if i <= j < i + MAX_ANSWER_TOKENS]
    return sorted(pairs, key=lambda span: -span[2])[:CANDIDATES]


def averaged(rows: Sequence[TokenRow], logits: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Average the windows of each example: [count, ...], in double precision."""
    windows: list[list[np.ndarray]] = [[] for _ in range(count)]
    for row, values in zip(rows, logits, strict=True):
        windows[row.example].append(values)
    return np.stack([np.mean(values, axis=0, dtype=np.float64) for values in windows])


def softmax(logits: ArrayLike) -> np.ndarray:
    """Softmax over the last axis, in double precision."""
    return torch.as_tensor(np.asarray(logits, np.float64)).softmax(-1).numpy()


def sigmoid(logits: ArrayLike) -> np.ndarray:
    return torch.as_tensor(np.asarray(logits, np.float64)).sigmoid().numpy()
