"""Score generated texts against references: sacreBLEU and chrF, or ROUGE."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU

from debertakit.installation import install
from debertakit.text.characters import HAN, is_han

METRICS = {"bleu": "sacrebleu", "rouge": "rouge_score"}
"""Metric -> the package that it needs."""

_WORD = re.compile(f"[{HAN}]|[^\\W_{HAN}]+")


def check(metric: str) -> None:
    """Raise before the work starts if the metric is unknown or its package is missing."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    if find_spec(METRICS[metric]) is None:
        raise ImportError(f"{metric} needs {METRICS[metric]}: {install('generate')}")


def text_scores(metric: str, texts: list[str], references: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the scores and sacreBLEU's signatures, which say how each score was computed."""
    check(metric)
    return (_bleu if metric == "bleu" else _rouge)(texts, references)


def resampled_score(name: str, references: Sequence[str]) -> Callable[[Sequence[str], Sequence[str]], float]:
    """Return a function (texts, references) -> score "bleu", "rouge1", ... for many samples of the same texts.

    It counts the n-grams of each text and reference once. ``references``: all of them, which choose the tokenizer.
    """
    rouge = name.startswith("rouge")
    check("rouge" if rouge else name)
    if rouge:
        count = cache(lambda text, reference: _rouge([text], [reference])[0][name])
        return lambda texts, chosen: sum(map(count, texts, chosen)) / len(texts)
    from sacrebleu.metrics import BLEU

    metric = _bleu_metric(list(references))

    @cache
    def statistics(text: str, reference: str) -> np.ndarray:
        found = metric.corpus_score([text], [[reference]])
        return np.array([found.sys_len, found.ref_len, *found.counts, *found.totals])

    def score(texts: Sequence[str], chosen: Sequence[str]) -> float:
        system, reference, *counts = np.sum(list(map(statistics, texts, chosen)), axis=0).tolist()
        half = len(counts) // 2
        return BLEU.compute_bleu(counts[:half], counts[half:], system, reference, smooth_method="exp").score

    return score


def _bleu_metric(references: list[str]) -> "BLEU":
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize="zh" if _is_chinese(references) else "13a")


def _bleu(texts: list[str], references: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    from sacrebleu.metrics import CHRF

    figures, signatures = {}, {}
    for name, metric in (("bleu", _bleu_metric(references)), ("chrf", CHRF())):
        figures[name] = metric.corpus_score(texts, [references]).score
        signatures[name] = str(metric.get_signature())
    return figures, signatures


def _rouge(texts: list[str], references: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Mean F1 of ROUGE-1, -2 and -L, times 100."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=Words())
    rows = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {name: 100 * sum(row[name].fmeasure for row in rows) / len(rows) for name in rows[0]}, {}


class Words:
    """Tokenizer for ROUGE. ASCII words are split and stemmed as in rouge-score. rouge-score drops all other letters;
    here, words with such letters stay whole, and every Chinese character is a word."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stemmer = PorterStemmer()

    def tokenize(self, text: str) -> list[str]:
        words = _WORD.findall(text.lower())
        return [self.stemmer.stem(word) if len(word) > 3 and word.isascii() else word for word in words]


def _is_chinese(texts: list[str]) -> bool:
    """Whether more than half of the words are Chinese characters."""
    words = [word for text in texts[:1000] for word in _WORD.findall(text)]
    return sum(is_han(word[0]) for word in words) > len(words) / 2
