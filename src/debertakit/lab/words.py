"""Hidden words: the same words of the same held-out texts for every model, whatever its tokenizer.

All tokens of one word are hidden, and the model predicts them (language_models.py). A word is right if every token is
right. Bits per character compare vocabularies of any kind:

    bits per character = - sum over words of log2 p(word) / characters of these words

A masked model knows the number of tokens of the hidden word, as in whole-word masking, and predicts them independently;
a causal model reads only the text on the left. A word is used only if its first and last character are the borders of
tokens in every vocabulary.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from debertakit.lab.language_models import Answer, LanguageModel, Question, answer
from debertakit.protocols import Tokenizer
from debertakit.text.boundaries import chinese_words
from debertakit.text.characters import is_han, looks_chinese

WORD = re.compile(r"[^\W_]+")
EVERY = 7
"""Words of a text between two hidden ones, on average."""
PASSAGES = 20
"""Most passages of one document."""
SHORTEST = 5
"""Fewest words of a passage."""


@dataclass(frozen=True)
class HiddenWord:
    text: str
    start: int
    end: int
    """Characters start to end of the text are the word."""

    @property
    def word(self) -> str:
        return self.text[self.start : self.end]


@dataclass(frozen=True)
class WordScore:
    bits: float
    right: bool


def word_spans(text: str) -> list[tuple[int, int]]:
    """Runs of letters and digits; in Chinese text, jieba's words of Chinese characters too."""
    spans = [match.span() for match in WORD.finditer(text)]
    if not looks_chinese(text):
        return spans
    begins = chinese_words(text)
    cuts: list[tuple[int, int]] = []
    for start, end in spans:
        chinese = any(map(is_han, text[start:end]))
        cuts += pairwise([start, *(i for i in range(start + 1, end) if chinese and begins[i]), end])
    return cuts


def choose_words(
    texts: Iterable[str], tokenizers: Sequence[Tokenizer], count: int, max_length: int, seed: int = 0
) -> list[HiddenWord]:
    """Hide words in passages that fit into ``max_length`` tokens of every tokenizer."""
    draw = np.random.default_rng(seed)
    found: list[HiddenWord] = []
    for text in texts:
        for passage in _passages(" ".join(text.split()), tokenizers, max_length):
            encoded = [tokenizer(passage, return_offsets_mapping=True) for tokenizer in tokenizers]
            for start, end in _sample(word_spans(passage), draw):
                if all(_tokens_of(each, passage, start, end) is not None for each in encoded):
                    found.append(HiddenWord(passage, start, end))
            if len(found) >= count:
                return found[:count]
    if not found:
        raise ValueError("the held-out texts have no words to hide; is the corpus too small?")
    return found


def _passages(text: str, tokenizers: Sequence[Tokenizer], max_length: int) -> Iterator[str]:
    """Consecutive passages from the beginning of a text, cut between words."""
    for _ in range(PASSAGES):
        passage = _passage(text[: 8 * max_length], tokenizers, max_length)
        if passage is None:
            return
        yield passage
        text = text[len(passage) :].lstrip()


def _passage(text: str, tokenizers: Sequence[Tokenizer], max_length: int) -> str | None:
    """The longest beginning of a text that fits. None if fewer than ``SHORTEST`` words fit."""
    ends = [end for _, end in word_spans(text)]
    while len(ends) >= SHORTEST:
        longest = max(len(tokenizer(text[: ends[-1]])["input_ids"]) for tokenizer in tokenizers)
        if longest <= max_length:
            return text[: ends[-1]]
        ends = ends[: min(len(ends) - 1, len(ends) * max_length // longest)]
    return None


def _sample(spans: list[tuple[int, int]], draw: np.random.Generator) -> Iterator[tuple[int, int]]:
    for start, end in spans[1:]:  # a causal model has nothing to read before the first word
        if draw.random() < 1 / EVERY:
            yield start, end


def _tokens_of(encoded: dict[str, list], text: str, start: int, end: int) -> tuple[int, ...] | None:
    """Indices of the tokens of a word. None if one of them also covers a part of another word."""
    tokens = []
    for index, (low, high) in enumerate(encoded["offset_mapping"]):
        if low < end and high > start:
            if text[low:start].strip() or text[end:high].strip():
                return None
            tokens.append(index)
    return tuple(tokens) or None


def score_words(model: LanguageModel, hidden: Sequence[HiddenWord]) -> list[WordScore]:
    """Bits of each hidden word, and whether the model's first guess is right."""
    texts = list(dict.fromkeys(each.text for each in hidden))
    encoded = {text: model.tokenizer(text, return_offsets_mapping=True) for text in texts}
    questions = []
    for each in hidden:
        places = _tokens_of(encoded[each.text], each.text, each.start, each.end)
        if places is None:
            raise ValueError(f"the tokens of {each.word!r} also cover other words; these words are of other tokenizers")
        questions.append(Question(tuple(encoded[each.text]["input_ids"]), places))
    return [_score(found) for found in answer(model, questions)]


def _score(found: Answer) -> WordScore:
    return WordScore(-found.log_probability / math.log(2), found.right)
