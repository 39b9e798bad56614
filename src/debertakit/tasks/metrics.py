"""Official metrics, in per cent. Each function takes examples and predictions, and returns scores by name.

An undefined metric (no entity, constant predictions) is 0, as scikit-learn defines MCC. Scores of single answers are
cached, because a comparison of two runs scores the same answers thousands of times.
"""

import re
import string
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from debertakit.data.examples import Choice, Question, Tagged, TextExample

Scores = dict[str, float]
T = TypeVar("T")

KEPT = 1 << 18
"""Maximum entries in each cache."""


def accuracy(examples: Sequence[TextExample | Choice], predictions: Sequence[str | int]) -> Scores:
    gold = _gold(examples, predictions)
    return {"accuracy": _mean([g == p for g, p in zip(gold, predictions, strict=True)])}


def matthews(examples: Sequence[TextExample], predictions: Sequence[str]) -> Scores:
    """Matthews correlation (CoLA)."""
    from sklearn.metrics import matthews_corrcoef

    gold = _gold(examples, predictions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "a single label was found": MCC is then 0, as stated above
        mcc = float(matthews_corrcoef(gold, predictions))
    return {"mcc": 100 * mcc, **accuracy(examples, predictions)}


def accuracy_and_f1(examples: Sequence[TextExample], predictions: Sequence[str]) -> Scores:
    """Accuracy and F1 of class "1" (MRPC, QQP)."""
    scores = {**accuracy(examples, predictions), "f1": _binary_f1(_gold(examples, predictions), predictions)}
    return _with_average(scores)


def accuracy_and_macro_f1(examples: Sequence[TextExample], predictions: Sequence[str]) -> Scores:
    """Accuracy and macro F1 over the classes that occur in gold labels or predictions (CB)."""
    from sklearn.metrics import f1_score

    gold = _gold(examples, predictions)
    f1 = 100 * float(f1_score(gold, predictions, average="macro", zero_division=0))
    return _with_average({**accuracy(examples, predictions), "f1": f1})


def classification(examples: Sequence[TextExample], predictions: Sequence[str]) -> Scores:
    """Metrics for the user's own classes."""
    scores = accuracy_and_macro_f1(examples, predictions)
    return {
        "accuracy": scores["accuracy"],
        "macro_f1": scores["f1"],
        "mcc": matthews(examples, predictions)["mcc"],
    }


def multi_label(examples: Sequence[TextExample], predictions: Sequence[Sequence[str]]) -> Scores:
    """Micro F1 over all (example, label) pairs, macro F1 over labels, and exact match."""
    gold = _gold(examples, predictions)
    right: Counter[str] = Counter()
    guessed: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for labels, prediction in zip(gold, predictions, strict=True):
        there.update(set(labels))
        guessed.update(set(prediction))
        right.update(set(labels) & set(prediction))
    return {
        "micro_f1": 100 * _f1(right.total(), guessed.total(), there.total()),
        "macro_f1": _mean([_f1(right[label], guessed[label], there[label]) for label in there | guessed]),
        "exact": _mean([set(g) == set(p) for g, p in zip(gold, predictions, strict=True)]),
    }


def correlation(examples: Sequence[TextExample], predictions: Sequence[float]) -> Scores:
    """Pearson and Spearman correlation (STS-B)."""
    from scipy.stats import pearsonr, spearmanr

    gold = _gold(examples, predictions)
    if len(set(gold)) < 2 or len(set(predictions)) < 2:
        return {"pearson": 0.0, "spearman": 0.0, "average": 0.0}
    scores = {
        "pearson": 100 * float(pearsonr(gold, predictions).statistic),
        "spearman": 100 * float(spearmanr(gold, predictions).statistic),
    }
    return _with_average(scores)


def multirc(examples: Sequence[TextExample], predictions: Sequence[str]) -> Scores:
    """F1a over all answers, and the share of questions with all answers judged correctly."""
    gold = _gold(examples, predictions)
    right: dict[str | None, bool] = defaultdict(lambda: True)
    for example, prediction in zip(examples, predictions, strict=True):
        right[example.group] &= example.label == prediction
    return _with_average({"f1a": _binary_f1(gold, predictions), "exact": _mean(list(right.values()))})


def record(examples: Sequence[Choice], predictions: Sequence[int]) -> Scores:
    """Compare the names of the chosen options with the correct names."""
    pairs = []
    for example, prediction in zip(examples, predictions, strict=True):
        if example.names is None or not example.answers:
            raise ValueError(f"example {example.id} has no answers; only labelled data can be scored")
        pairs.append((example.names[prediction], example.answers))
    return _with_average({"f1": _best(word_f1, pairs), "exact": _best(exact_match, pairs)})


def squad(examples: Sequence[Question], predictions: Sequence[str]) -> Scores:
    """Exact match and F1 as in the SQuAD 2.0 script: overall, and with and without an answer if both kinds occur.

    The 1.1 script differs only for answers that normalise to nothing ("the").
    """
    gold = _gold_answers(examples, predictions)
    f1 = [_squad_best(word_f1, p, tuple(g)) for p, g in zip(predictions, gold, strict=True)]
    exact = [_squad_best(exact_match, p, tuple(g)) for p, g in zip(predictions, gold, strict=True)]
    scores = {"exact": _mean(exact), "f1": _mean(f1)}
    answerable = [bool(g) for g in gold]
    if any(answerable) and not all(answerable):
        for name, kind in (("HasAns", True), ("NoAns", False)):
            chosen = [i for i, has in enumerate(answerable) if has == kind]
            scores[f"{name}_exact"] = _mean([exact[i] for i in chosen])
            scores[f"{name}_f1"] = _mean([f1[i] for i in chosen])
    return scores


def find_best_threshold(
    examples: Sequence[Question], answers: Sequence[str], no_answer_scores: Sequence[float], metric: str = "f1"
) -> tuple[float, float]:
    """Return the best score in per cent and its threshold. A no-answer score above the threshold means answer "".

    Like SQuAD's script, with two differences, so that the threshold really gives this score: questions with equal
    no-answer scores fall on the same side, and if it is best to answer nothing, the threshold is below all scores.
    """
    gold = _gold_answers(examples, answers)
    measure = {"f1": word_f1, "exact": exact_match}[metric]
    order = sorted(range(len(gold)), key=lambda i: no_answer_scores[i])
    total = best = float(sum(not g for g in gold))  # no question answered
    threshold = no_answer_scores[order[0]] - 1.0
    for place, i in enumerate(order):
        total += _squad_best(measure, answers[i], tuple(gold[i])) - (not gold[i])
        ends_group = place + 1 == len(order) or no_answer_scores[order[place + 1]] > no_answer_scores[i]
        if ends_group and total > best:
            best, threshold = total, no_answer_scores[i]
    return 100 * best / len(gold), threshold


@lru_cache(KEPT)
def normalise(answer: str) -> str:
    """Normalise as SQuAD does: lower case, no punctuation, no articles, single spaces."""
    plain = "".join(c for c in answer.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(prediction: str, answer: str) -> float:
    return float(normalise(prediction) == normalise(answer))


@lru_cache(KEPT)
def word_f1(prediction: str, answer: str) -> float:
    guess, truth = normalise(prediction).split(), normalise(answer).split()
    if not guess or not truth:
        return float(guess == truth)
    return _f1((Counter(guess) & Counter(truth)).total(), len(guess), len(truth))


def cmrc(examples: Sequence[Question], predictions: Sequence[str]) -> Scores:
    """CMRC 2018's script: F1 over the longest common *substring* of characters (words in Latin text)."""
    gold = _gold_answers(examples, predictions)
    pairs = [(p, g or ("",)) for p, g in zip(predictions, gold, strict=True)]
    return _with_average({"exact": _best(_cmrc_exact, pairs), "f1": _best(_cmrc_f1, pairs)})


def entities(examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]) -> Scores:
    """Entity scores by seqeval, which counts like conlleval: the type and both ends must match."""
    from seqeval.metrics import f1_score, precision_score, recall_score

    gold = [list(tags) for tags in _gold_tags(examples, predictions)]
    guess = [list(tags) for tags in predictions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval's f1_score warns about zero_division even if it is given
        measures = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
        return {name: 100 * float(f(gold, guess, zero_division=0)) for name, f in measures.items()}


def tags(examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]) -> Scores:
    """Accuracy over words, and the share of sentences without an error (parts of speech)."""
    pairs = list(zip(_gold_tags(examples, predictions), predictions, strict=True))
    right = [a == b for gold, guess in pairs for a, b in zip(gold, guess, strict=True)]
    return {"accuracy": _mean(right), "exact": _mean([tuple(gold) == tuple(guess) for gold, guess in pairs])}


def cluener(examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]) -> Scores:
    """CLUENER's script: F1 per type over entity texts in a sentence, averaged over types."""
    right: Counter[str] = Counter()
    guessed: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for example, tags, guess in zip(examples, _gold_tags(examples, predictions), predictions, strict=True):
        truth, found = entity_texts(example.words, tags), entity_texts(example.words, guess)
        there.update(kind for kind, _ in truth)
        guessed.update(kind for kind, _ in found)
        right.update(kind for kind, _ in truth & found)
    kinds = sorted(there | guessed)
    f1 = _mean([_f1(right[kind], guessed[kind], there[kind]) for kind in kinds])
    by_place = entities(examples, predictions)
    return {"f1": f1, "entity_f1": by_place["f1"], "precision": by_place["precision"], "recall": by_place["recall"]}


def entity_texts(words: Sequence[str], tags: Sequence[str]) -> set[tuple[str, str]]:
    """(type, text) of each entity; ``words`` are characters."""
    return {(kind, "".join(words[begin : end + 1])) for kind, begin, end in entity_places(tags)}


def entity_places(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, last word)"""
    from seqeval.metrics.sequence_labeling import get_entities

    return get_entities(list(tags))


_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CMRC_PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CMRC_CHINESE = re.compile("[\u4e00-\u9fa5]")  # the range of the official script, not text/characters.py


@lru_cache(KEPT)
def _cmrc_exact(prediction: str, answer: str) -> float:
    left, right = (
        "".join(c for c in text.lower().strip() if c not in _CMRC_PUNCTUATION) for text in (prediction, answer)
    )
    return float(left == right)


@lru_cache(KEPT)
def _cmrc_f1(prediction: str, answer: str) -> float:
    guess, truth = _cmrc_pieces(prediction), _cmrc_pieces(answer)
    longest, ending = 0, [0] * (len(truth) + 1)  # ending[j]: length of the common run that ends at truth[j - 1]
    for piece in guess:
        ending = [0, *(ending[j] + 1 if piece == truth[j] else 0 for j in range(len(truth)))]
        longest = max(longest, *ending)
    return _f1(longest, len(guess), len(truth))


def _cmrc_pieces(text: str) -> list[str]:
    """Split into Chinese characters and the words between them. Like the script, use NLTK to find the words, but with
    ``preserve_line``: sentence splitting would need an NLTK model download, and an answer is only a phrase."""
    from nltk.tokenize import word_tokenize

    pieces: list[str] = []
    between = ""
    for character in text.lower().strip():
        if character in _CMRC_PUNCTUATION:
            continue
        if _CMRC_CHINESE.match(character):
            pieces += [*word_tokenize(between, preserve_line=True), character]
            between = ""
        else:
            between += character
    return pieces + word_tokenize(between, preserve_line=True)


def _f1(common: int, guessed: int, there: int) -> float:
    return 2 * common / (guessed + there) if common else 0.0


def _binary_f1(gold: Sequence[object], predictions: Sequence[str]) -> float:
    from sklearn.metrics import f1_score

    return 100 * float(f1_score([g == "1" for g in gold], [p == "1" for p in predictions], zero_division=0))


def _best(measure: Callable[[str, str], float], pairs: Sequence[tuple[str, Sequence[str]]]) -> float:
    """Mean over questions of the best score over answers."""
    return _mean([max(measure(prediction, answer) for answer in answers) for prediction, answers in pairs])


@lru_cache(KEPT)
def _squad_best(measure: Callable[[str, str], float], prediction: str, answers: tuple[str, ...]) -> float:
    """Ignore answers that normalise to nothing, as SQuAD does. If no answer is left, "" is correct."""
    return max(measure(prediction, answer) for answer in [a for a in answers if normalise(a)] or [""])


def _gold(examples: Sequence[TextExample | Choice], predictions: Sequence[object]) -> list[Any]:
    return _complete([(example.id, example.label) for example in examples], predictions)


def _gold_answers(examples: Sequence[Question], predictions: Sequence[object]) -> list[tuple[str, ...]]:
    return _complete([(example.id, example.answers) for example in examples], predictions)


def _gold_tags(examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    gold = _complete([(example.id, example.tags) for example in examples], predictions)
    for example, tags in zip(examples, predictions, strict=True):
        if len(tags) != len(example.words):
            raise ValueError(f"example {example.id}: {len(tags)} predicted tags for {len(example.words)} words")
    return gold


def _complete(labels: Sequence[tuple[str, T | None]], predictions: Sequence[object]) -> list[T]:
    if len(labels) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions for {len(labels)} examples")
    if not labels:
        raise ValueError("no examples to score")
    found = []
    for identity, label in labels:
        if label is None:
            raise ValueError(f"example {identity} has no label; only labelled data can be scored")
        found.append(label)
    return found


def _mean(values: Sequence[float | bool]) -> float:
    """Mean in per cent."""
    return 100 * sum(values) / len(values) if values else 0.0


def _with_average(scores: Scores) -> Scores:
    """Add the average, which the leaderboard uses for tasks with two metrics."""
    return {**scores, "average": sum(scores.values()) / len(scores)}
