"""Next-sentence prediction (BERT): does B follow A?

B is the text after A (label 0) or, half of the time, the same number of tokens from another document (label 1). B
always begins and ends with whole words, because a partial word would reveal the label.
"""

import numpy as np

from debertakit.objectives.base import Context
from debertakit.objectives.pairs import PairPrediction, Text
from debertakit.text.shards import Shards

LOOK = 32  # number of tokens searched for a word start


class NextSentencePrediction(PairPrediction):
    def check_corpus(self, shards: Shards, half: str, max_length: int) -> None:
        """The corpus must be large enough to take a text from another document."""
        if shards.tokens and (len(shards) < 2 or shards.tokens < max_length + LOOK):
            raise ValueError(
                f"next-sentence prediction needs two documents and {max_length + LOOK} tokens in each half of the "
                f"corpus; {half} has {len(shards)} documents and {shards.tokens} tokens: use a larger corpus, or hold "
                "out more documents (data.validation=2)"
            )

    def arrange(
        self, first: Text, second: Text, document: int, context: Context, rng: np.random.Generator
    ) -> tuple[Text, Text, int]:
        if rng.random() >= 0.5:
            return first, second, 0
        return first, _elsewhere(context, document, len(second.ids), rng), 1


def _elsewhere(context: Context, own: int, length: int, rng: np.random.Generator) -> Text:
    """Take ``length`` tokens of whole words from another document, and from the next one if that document is short."""
    shards = context.shards
    other = (own + 1 + int(rng.integers(len(shards) - 1))) % len(shards)
    begin, end = int(shards.ends[other]), int(shards.ends[other + 1])
    start = begin + int(rng.integers(max(end - begin - length - LOOK, 0) + 1))
    stop = start + length + LOOK
    # the first token of a range always counts as a word start: begin the range one token earlier
    before = int(start > begin)
    runs = [(start - before, min(stop, shards.tokens)), *([(0, stop - shards.tokens)] if stop > shards.tokens else [])]
    ids, words, _ = shards.take(np.array([a for a, _ in runs]), np.array([b for _, b in runs]))
    opens = words[before : before + LOOK]
    whole = opens & words[before + length : before + length + LOOK]  # and a word begins right after the text
    skip = before + int((whole if whole.any() else opens).argmax())
    ids, words = ids[skip : skip + length].astype(np.int64), words[skip : skip + length].copy()
    words[0] = True
    return Text(ids, words, np.zeros(length, bool))
