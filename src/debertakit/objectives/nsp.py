"""Next-sentence prediction (BERT): does B follow A?

B is what follows A in the text (label 0) or, half of the time, as many tokens from another document (label 1).
Either begins and ends with whole words: half a word would give the answer away.
"""

import numpy as np

from debertakit.objectives.base import Context
from debertakit.objectives.pairs import PairPrediction, Text
from debertakit.text.shards import Shards

LOOK = 32  # tokens looked through for a word to begin with


def check(shards: Shards, half: str, max_length: int) -> None:
    """Refuses a corpus in which there is no other document to take a text from."""
    if shards.tokens and (len(shards) < 2 or shards.tokens < max_length + LOOK):
        raise ValueError(
            f"next-sentence prediction needs two documents and {max_length + LOOK} tokens in each half of the corpus; "
            f"{half} has {len(shards)} and {shards.tokens}: take a larger corpus, or hold out more (data.validation=2)"
        )


class NextSentencePrediction(PairPrediction):
    def arrange(
        self, first: Text, second: Text, document: int, context: Context, rng: np.random.Generator
    ) -> tuple[Text, Text, int]:
        if rng.random() >= 0.5:
            return first, second, 0
        return first, _elsewhere(context, document, len(second.ids), rng), 1


def _elsewhere(context: Context, own: int, length: int, rng: np.random.Generator) -> Text:
    """``length`` tokens of whole words out of another document; into the next document if that one is short."""
    shards = context.shards
    other = (own + 1 + int(rng.integers(len(shards) - 1))) % len(shards)
    begin, end = int(shards.ends[other]), int(shards.ends[other + 1])
    start = begin + int(rng.integers(max(end - begin - length - LOOK, 0) + 1))
    stop = start + length + LOOK
    # a range's first token counts as the beginning of a word: look from the one before it
    before = int(start > begin)
    runs = [(start - before, min(stop, shards.tokens)), *([(0, stop - shards.tokens)] if stop > shards.tokens else [])]
    ids, words, _ = shards.take(np.array([a for a, _ in runs]), np.array([b for _, b in runs]))
    opens = words[before : before + LOOK]
    whole = opens & words[before + length : before + length + LOOK]  # and a word begins right behind the last
    skip = before + int((whole if whole.any() else opens).argmax())
    ids, words = ids[skip : skip + length].astype(np.int64), words[skip : skip + length].copy()
    words[0] = True
    return Text(ids, words, np.zeros(length, bool))
