"""Sentence-order prediction (ALBERT): do the two texts stand in their own order?

A and B follow one another in one document (label 0) or, half of the time, have changed places (label 1). Unlike
next-sentence prediction, the topic says nothing about it.
"""

import numpy as np

from debertakit.objectives.base import Context
from debertakit.objectives.pairs import PairPrediction, Text


class SentenceOrderPrediction(PairPrediction):
    def arrange(
        self, first: Text, second: Text, document: int, context: Context, rng: np.random.Generator
    ) -> tuple[Text, Text, int]:
        return (first, second, 0) if rng.random() >= 0.5 else (second, first, 1)
