"""The result of a run in words: the score, a baseline, its 95 % interval, and warnings.

    86.7 % accuracy (majority class: 54.7 %), 95 % interval 82-90

The interval shows how much the score would vary on other dev examples of the same kind. For accuracies it is Wilson's:

    (p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n),  z = 1.96

For other metrics it comes from ``RESAMPLES`` bootstrap samples of the examples.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from debertakit.data.examples import Choice, Example, Tagged, TextExample, gold
from debertakit.finetuning.evaluation import Evaluation
from debertakit.tasks.features import TokenRow
from debertakit.tasks.metrics import entity_places
from debertakit.tasks.task import Task
from debertakit.text.statistics import scripts

RESAMPLES = 200
UNCOVERED = 0.1
"""Warn if a larger share of the tokens is unknown or a single byte."""
Z = 1.959964


@dataclass(frozen=True)
class Verdict:
    metric: str
    score: float
    low: float
    high: float
    examples: int
    baseline: float | None = None
    """Score without a model: the majority class, or chance."""
    baseline_name: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        percent = self.metric in ("accuracy", "exact")
        name = self.metric.replace("_", " ")
        shown = f"{self.score:.1f} % {name}" if percent else f"{name} {self.score:.1f}"
        compared = "" if self.baseline is None else f" ({self.baseline_name}: {self.baseline:.1f} %)"
        return f"{shown}{compared}, 95 % interval {self.low:.0f}-{self.high:.0f} ({self.examples:,} examples)"

    def __str__(self) -> str:
        return "\n".join([self.line, *(f"warning: {warning}" for warning in self.warnings)])


def verdict(task: Task, evaluation: Evaluation, trained_on: Sequence[Example] = ()) -> Verdict | None:
    """Judge an evaluation on its task's metric. Returns None if there are no labels. ``trained_on``: training examples,
    from which the majority class is taken."""
    if not evaluation.scores:
        return None
    score, examples = evaluation.scores[task.metric], evaluation.examples
    if task.metric == "accuracy" and task.kind != "tagging":
        low, high = wilson(score / 100, len(examples))
    else:
        low, high = bootstrap(task, evaluation)
    found = Verdict(task.metric, score, low, high, len(examples))
    if task.metric == "accuracy" and task.kind == "choice":
        options = [len(example.options) for example in examples if isinstance(example, Choice)]
        baseline, name = 100 * float(np.mean([1 / count for count in options])), "chance"
    elif task.metric == "accuracy" and task.kind == "tagging" and trained_on:
        baseline, name = _usual_tags(trained_on, examples), "each word's most frequent tag"
    elif task.metric == "accuracy" and task.kind != "tagging":
        (label, _), *_ = Counter(map(gold, trained_on or examples)).most_common(1)
        baseline, name = 100 * sum(gold(example) == label for example in examples) / len(examples), "majority class"
    else:
        return replace(found, warnings=_one_class(task, evaluation))
    warnings = _one_class(task, evaluation)
    if not warnings and score <= baseline:
        warnings = [f"the model is no better than {_without_model(name)}"]
    elif not warnings and low <= baseline:
        warnings = [f"the model may be no better than {_without_model(name)}: the interval includes {baseline:.1f} %"]
    return replace(found, baseline=baseline, baseline_name=name, warnings=warnings)


def _without_model(baseline: str) -> str:
    return {"chance": "guessing", "majority class": "always answering the majority class"}.get(baseline, baseline)


def _usual_tags(trained_on: Sequence[Any], examples: Sequence[Any]) -> float:
    """Accuracy if every word gets its most frequent tag in the training data (a new word: the most frequent of all)."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for example in trained_on:
        for word, tag in zip(example.words, example.tags, strict=True):
            counts[word][tag] += 1
    usual = {word: found.most_common(1)[0][0] for word, found in counts.items()}
    otherwise = sum(counts.values(), Counter[str]()).most_common(1)[0][0]
    right = [usual.get(word, otherwise) == tag for e in examples for word, tag in zip(e.words, e.tags, strict=True)]
    return 100 * float(np.mean(right))


def _one_class(task: Task, evaluation: Evaluation) -> list[str]:
    """Warn if every prediction is the same although the gold labels differ."""
    different = len({str(gold(example)) for example in evaluation.examples}) > 1
    if task.kind == "tagging" and task.metric == "accuracy":
        tags = {tag for value in evaluation.values for tag in value}
        if len(tags) > 1 or not different:
            return []
        return [f"the model predicts {tags.pop()!r} for every word; train longer, or with another --lr"]
    if task.kind == "tagging":
        same = all(tag == "O" for value in evaluation.values for tag in value)
        return ["the model finds no entity at all; train longer, or with a higher --lr"] if same and different else []
    values = {str(value) for value in evaluation.values}
    if task.kind == "choice" or len(values) > 1 or not different:
        return []
    return [f"the model predicts {values.pop()!r} for every example; train longer, or with another --lr"]


# ----------------------------------------------------------------------------------------------------------- intervals


def wilson(share: float, count: int) -> tuple[float, float]:
    """95 % interval of a share, in per cent."""
    middle = share + Z**2 / (2 * count)
    spread = Z * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    low, high = (middle - spread) / (1 + Z**2 / count), (middle + spread) / (1 + Z**2 / count)
    return 100 * max(float(low), 0.0), 100 * min(float(high), 1.0)


def bootstrap(task: Task, evaluation: Evaluation, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the task's metric over resampled examples."""
    count, score = len(evaluation.examples), score_of_sample(task, evaluation)
    draw = np.random.default_rng(seed)
    scores = np.array([score(draw.integers(count, size=count)) for _ in range(RESAMPLES)])
    scores = scores[np.isfinite(scores)]  # a correlation can be undefined on a resample
    if not len(scores):
        return float("nan"), float("nan")
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)


def score_of_sample(task: Task, evaluation: Evaluation) -> Callable[[np.ndarray], float]:
    """The task's metric as a function of the indices of examples. For tags without seqeval, if that gives the same."""
    examples, values = evaluation.examples, evaluation.values
    if task.kind == "tagging":
        fast = _entity_f1(evaluation) if task.metric == "f1" else _tag_accuracy(evaluation)
        if abs(fast(np.arange(len(examples))) - evaluation.scores[task.metric]) <= 1e-6:
            return fast

    def score(chosen: np.ndarray) -> float:
        places = chosen.tolist()
        return task.score([examples[i] for i in places], [values[i] for i in places])[task.metric]

    return score


def _entity_f1(evaluation: Evaluation) -> Callable[[np.ndarray], float]:
    """F1 of entities from counts per sentence: seqeval would take seconds per resample."""
    counts = []
    for example, value in zip(evaluation.examples, evaluation.values, strict=True):
        assert isinstance(example, Tagged)
        truth, guess = set(entity_places(example.tags or ())), set(entity_places(value))
        counts.append((len(truth & guess), len(guess), len(truth)))
    table = np.array(counts)

    def score(chosen: np.ndarray) -> float:
        right, guessed, there = table[chosen].sum(0).tolist()
        return 200 * right / (guessed + there) if right else 0.0

    return score


def _tag_accuracy(evaluation: Evaluation) -> Callable[[np.ndarray], float]:
    """Accuracy of tags from counts per sentence."""
    pairs = zip(evaluation.examples, evaluation.values, strict=True)
    table = np.array([(sum(a == b for a, b in zip(gold(e), v, strict=True)), len(v)) for e, v in pairs])

    def score(chosen: np.ndarray) -> float:
        right, words = table[chosen].sum(0).tolist()
        return 100 * right / words

    return score


# ---------------------------------------------------------------------------------------------------------- vocabulary


def vocabulary_warning(tokenizer: Any, rows: Sequence[TokenRow], examples: Sequence[Example]) -> str:
    """Return a warning if many tokens are unknown to the vocabulary, or single bytes. Otherwise an empty string."""
    partial = _partial_pieces(tokenizer)
    counts = Counter(token for row in rows[:1000] for ids in row.ids for token in ids)
    share = sum(count for token, count in counts.items() if token in partial) / max(counts.total(), 1)
    if share <= UNCOVERED:
        return ""
    script = next(iter(scripts(Counter("".join(_text(example) for example in examples[:200])))), "symbols")
    return (
        f"{share:.0%} of the tokens are unknown to the vocabulary (mostly {script}); "
        "choose a --model that was trained on such text"
    )


def _partial_pieces(tokenizer: Any) -> set[int]:
    """Ids of [UNK], of byte pieces (<0xE4>) and, in a byte-level vocabulary, of pieces that are no whole character."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    found = {tokenizer.unk_token_id} | {i for piece, i in vocabulary.items() if piece[:3] == "<0x" and len(piece) == 6}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and "ByteLevel" in type(backend.decoder).__name__:
        found |= {i for piece, i in vocabulary.items() if "\ufffd" in backend.decoder.decode([piece])}
    return found - {None}


def _text(example: Example) -> str:
    if isinstance(example, Tagged):
        return " ".join(example.words)
    return example.text if isinstance(example, (TextExample, Choice)) else example.context
