"""Sentence-order prediction (ALBERT): are the two texts in their original order?

A and B are consecutive texts of one document (label 0) or, half of the time, swapped (label 1). Unlike in next-sentence
prediction, the topic does not reveal the label.
"""

import numpy as np

from debertakit.objectives.base import Context
from debertakit.objectives.pairs import PairPrediction, Text


class SentenceOrderPrediction(PairPrediction):
    def arrange(
        self, first: Text, second: Text, document: int, context: Context, rng: np.random.Generator
    ) -> tuple[Text, Text, int]:
        return (first, second, 0) if rng.random() >= 0.5 else (second, first, 1)
