"""Score generated texts against references: sacreBLEU and chrF, or ROUGE."""

import re
from importlib.util import find_spec

from debertakit.text.characters import HAN, is_han

METRICS = {"bleu": "sacrebleu", "rouge": "rouge_score"}
"""Metric -> the package that it needs."""

_WORD = re.compile(f"[{HAN}]|[^\\W_{HAN}]+")


def check(metric: str) -> None:
    """Raise before the work starts if the metric is unknown or its package is missing."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    if find_spec(METRICS[metric]) is None:
        raise ImportError(f"{metric} needs {METRICS[metric]}: pip install 'debertakit[generate]'")


def text_scores(metric: str, texts: list[str], references: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the scores and sacreBLEU's signatures, which say how each score was computed."""
    check(metric)
    return (_bleu if metric == "bleu" else _rouge)(texts, references)


def _bleu(texts: list[str], references: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    from sacrebleu.metrics import BLEU, CHRF

    figures, signatures = {}, {}
    for name, metric in (("bleu", BLEU(tokenize="zh" if _is_chinese(references) else "13a")), ("chrf", CHRF())):
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
