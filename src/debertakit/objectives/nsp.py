"""Next-sentence prediction (BERT): does B follow A?

B is what follows A in the text (label 0) or, half of the time, as many tokens from another document (label 1).
Either begins with a word: half a word would give the answer away.
"""

import numpy as np

from debertakit.objectives.base import Context
from debertakit.objectives.pairs import PairPrediction, Text

LONGEST_WORD = 32  # tokens looked through for the beginning of a word


class NextSentencePrediction(PairPrediction):
    def arrange(
        self, first: Text, second: Text, document: int, context: Context, rng: np.random.Generator
    ) -> tuple[Text, Text, int]:
        if rng.random() >= 0.5:
            return first, second, 0
        return first, _elsewhere(context, document, len(second.ids), rng), 1


def _elsewhere(context: Context, own: int, length: int, rng: np.random.Generator) -> Text:
    """``length`` tokens from a word of another document on; into the next document if that one is short."""
    shards = context.shards
    if len(shards) < 2:
        raise ValueError("next-sentence prediction needs a corpus of at least two documents")
    other = (own + 1 + int(rng.integers(len(shards) - 1))) % len(shards)
    begin, end = int(shards.ends[other]), int(shards.ends[other + 1])
    start = begin + int(rng.integers(max(end - begin - length - LONGEST_WORD, 0) + 1))
    stop = start + length + LONGEST_WORD
    # a range's first token counts as the beginning of a word: look from the one before it
    before = int(start > begin)
    runs = [(start - before, min(stop, shards.tokens)), *([(0, stop - shards.tokens)] if stop > shards.tokens else [])]
    ids, words, _ = shards.take(np.array([a for a, _ in runs]), np.array([b for _, b in runs]))
    skip = before + int(words[before : before + LONGEST_WORD].argmax())
    ids, words = ids[skip : skip + length].astype(np.int64), words[skip : skip + length].copy()
    words[0] = True
    return Text(ids, words, np.zeros(length, bool))
