"""What next-sentence and sentence-order prediction share: pairs of texts, and one bit to be told about each.

A sequence [CLS] x [SEP] becomes a pair of the same length, [CLS] A [SEP] B [SEP]: x is cut at a word in its middle
half, and a token at its end makes room for the second [SEP]. What is put in the place of A and B, and with which label,
is the objective's own affair. The masking then works on the pairs, as in BERT. With h the [CLS] row, out of the
Enhanced Mask Decoder where there is one:

    P(label | A, B) = softmax(W tanh(V h + v) + w)

W and V are the model's own pooler and classifier where its class has them (BERT, ALBERT), else the objective's.
Everything is drawn from (seed, chunk, epoch): a pair does not depend on the batch it stands in.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debertakit.objectives.base import Asked, Backbone, Context, Objective, Outcome, View, as_tensor
from debertakit.text.packing import PackedBatch

SHORTEST = 6  # [CLS] a a [SEP] b [SEP]; anything shorter stays as it is and is not asked about
NO_PAIR = -1


class Text(NamedTuple):
    ids: NDArray[np.int64]
    words: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    """Goes on with an entity; all False where the corpus has none."""


class PairPrediction(Objective):
    def __init__(self, backbone: Backbone):
        super().__init__()
        self.dense = self.classifier = None
        if not backbone.has_pair_head:
            config = backbone.config
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.classifier = nn.Linear(config.hidden_size, 2)
            for layer in (self.dense, self.classifier):
                nn.init.normal_(layer.weight, std=config.initializer_range)
                nn.init.zeros_(layer.bias)

    def arrange(
        self, first: Text, second: Text, document: int, context: Context, rng: np.random.Generator
    ) -> tuple[Text, Text, int]:
        """A, B and their label, for two texts that follow one another; the lengths add up to the same."""
        raise NotImplementedError

    def ask(self, view: View) -> Asked:
        assert view.pair_labels is not None
        labels = as_tensor(view.pair_labels)
        paired = labels != NO_PAIR
        return Asked(view.starts[paired], labels[paired])

    def loss(self, backbone: Backbone, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        if self.dense is None or self.classifier is None:
            return self.outcome(backbone.pair_logits(hidden), asked.targets)
        return self.outcome(self.classifier(torch.tanh(self.dense(hidden))), asked.targets)

    def pair_up(self, batch: PackedBatch, context: Context) -> tuple[PackedBatch, NDArray[np.int64]]:
        """The batch as pairs, and their labels."""
        ids, words = batch.input_ids.copy(), batch.word_starts.copy()
        inside = np.zeros(len(ids), bool) if batch.inside_entity is None else batch.inside_entity.copy()
        labels = np.full(len(batch.lengths), NO_PAIR)
        ends = np.cumsum(batch.lengths)
        for s, (end, length) in enumerate(zip(ends, batch.lengths, strict=True)):
            if length < SHORTEST:
                continue
            rng = np.random.default_rng([context.seed, int(batch.chunks[s]), int(batch.epochs[s]), 1])
            begin = end - length
            middle = _cut(words, begin, end, rng)
            # without [CLS], [SEP] and the token that makes room
            x, y = (
                Text(ids[r].copy(), words[r].copy(), inside[r].copy())
                for r in (slice(begin + 1, middle), slice(middle, end - 2))
            )
            a, b, labels[s] = self.arrange(x, y, int(batch.documents[s]), context, rng)
            between = begin + 1 + len(a.ids)
            for array, first, second, mark in zip(
                (ids, words, inside), a, b, (context.shards.vocabulary["sep"], True, False), strict=True
            ):
                array[begin + 1 : between], array[between], array[between + 1 : end - 1] = first, mark, second
        entities = None if batch.inside_entity is None else inside
        return replace(batch, input_ids=ids, word_starts=words, inside_entity=entities), labels


def segments(view: View, separator: int) -> Tensor:
    """0 up to the first [SEP] of each sequence, 1 behind it."""
    is_separator = (view.ids == separator).long()
    before = is_separator.cumsum(0) - is_separator
    return (before - before[view.starts].repeat_interleave(view.lengths)).clamp(max=1)


def _cut(words: NDArray[np.bool_], begin: int, end: int, rng: np.random.Generator) -> int:
    """A word start near a place in the middle half."""
    length = int(end - begin)
    middle = int(begin) + min(max(int(length * rng.uniform(0.25, 0.75)), 2), length - 3)
    starts = np.flatnonzero(words[begin + 2 : end - 2]) + begin + 2
    return int(starts[np.abs(starts - middle).argmin()]) if len(starts) else middle
