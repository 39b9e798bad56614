"""Floors of a comparison: word n-gram models, which any language model should beat.

Witten-Bell smoothing. c: counts; T(h): different words after the history h; h': h without its first word.

    p(w | h) = (c(h, w) + T(h) p(w | h')) / (c(h) + T(h))
    p(w)     = (c(w) + T p_spelling(w)) / (c + T)
    p_spelling(w) = product over the characters of w, and its end, of their frequency (one is added to each count)

The trigram reads the two words on the left, like a causal model with a very short memory.
"""

import copy
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from debertakit.lab.words import HiddenWord, WordScore, word_spans

History = tuple[str, ...]
END = "\n"
ORDERS = {"unigram": 1, "trigram": 3}


class NGram:
    """Word model of order n (1: unigram, 3: trigram)."""

    def __init__(self, texts: Iterable[str], order: int):
        self.order = order
        self.after: defaultdict[History, Counter[str]] = defaultdict(Counter)
        characters: Counter[str] = Counter()
        for text in texts:
            words = _words(text)
            for place, word in enumerate(words):
                characters.update(word + END)
                for size in range(min(order, place + 1)):
                    self.after[tuple(words[place - size : place])][word] += 1
        if not self.after[()]:
            raise ValueError("the training text has no words")
        self.totals = {history: counts.total() for history, counts in self.after.items()}
        total = characters.total() + len(characters) + 1
        self.spelling = {c: math.log((n + 1) / total) for c, n in characters.items()}
        self.unseen = math.log(1 / total)
        self.first: dict[History, str] = {(): self.after[()].most_common(1)[0][0]}
        """The best word of each history that was asked for."""

    def shortened(self, order: int) -> "NGram":
        """The same counts with shorter histories."""
        shorter = copy.copy(self)
        shorter.order = order
        return shorter

    def probability(self, word: str, history: History) -> float:
        counts = self.after.get(history)
        shorter = self.probability(word, history[1:]) if history else self._spelled(word)
        if counts is None:
            return shorter
        return (counts[word] + len(counts) * shorter) / (self.totals[history] + len(counts))

    def best(self, history: History) -> str:
        """The most probable word: it follows the history, or is the best one after the shorter history."""
        if history not in self.first:
            choices = {self.best(history[1:]), *self.after.get(history, ())}
            self.first[history] = max(sorted(choices), key=lambda word: self.probability(word, history))
        return self.first[history]

    def history(self, before: str) -> History:
        words = _words(before)
        return tuple(words[max(len(words) - self.order + 1, 0) :])

    def score_words(self, hidden: Sequence[HiddenWord]) -> list[WordScore]:
        found = []
        for each in hidden:
            history = self.history(each.text[: each.start])
            bits = -math.log2(self.probability(each.word, history))
            found.append(WordScore(bits, self.best(history) == each.word))
        return found

    def text_score(self, text: str) -> float:
        words = _words(text)
        histories = [tuple(words[max(i - self.order + 1, 0) : i]) for i in range(len(words))]
        return sum(math.log(self.probability(word, h)) for word, h in zip(words, histories, strict=True))

    def _spelled(self, word: str) -> float:
        return math.exp(max(sum(self.spelling.get(character, self.unseen) for character in word + END), -600.0))


def _words(text: str) -> list[str]:
    return [text[start:end] for start, end in word_spans(text)]
