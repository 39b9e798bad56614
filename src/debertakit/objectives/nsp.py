"""Next-sentence prediction, read from the mask decoder.

A sequence [CLS] x [SEP] becomes a pair of the same length, [CLS] A [SEP] B [SEP]: A is the first part of x; B is what
follows A (label 0) or, half of the time, as many tokens from another document (label 1). The masking then works on the
pairs, as in BERT. With h the [CLS] row out of the Enhanced Mask Decoder:

    P(label | A, B) = softmax(W tanh(V h + v) + w)

Everything is drawn from (seed, chunk, epoch): a pair does not depend on the batch it stands in.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debertakit.config import DebertaConfig
from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives.base import Asked, Context, Objective, Outcome, View, as_tensor
from debertakit.text.packing import PackedBatch

SHORTEST = 6  # [CLS] a a [SEP] b [SEP]; anything shorter stays as it is and is not asked about
NO_PAIR = -1


class NextSentencePrediction(Objective):
    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, 2)
        for layer in (self.dense, self.classifier):
            nn.init.normal_(layer.weight, std=config.initializer_range)
            nn.init.zeros_(layer.bias)

    def ask(self, view: View) -> Asked:
        assert view.pair_labels is not None
        labels = as_tensor(view.pair_labels)
        paired = labels != NO_PAIR
        return Asked(view.starts[paired], labels[paired])

    def loss(self, model: DebertaForMaskedLM, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        return self.outcome(self.classifier(torch.tanh(self.dense(hidden))), asked.targets)


def pair_up(batch: PackedBatch, context: Context) -> tuple[PackedBatch, NDArray[np.int64]]:
    """The batch as pairs, and their labels."""
    if len(context.shards) < 2:
        raise ValueError("next-sentence prediction needs a corpus of at least two documents")
    separator = context.shards.vocabulary["sep"]
    ids, words = batch.input_ids.copy(), batch.word_starts.copy()
    inside = None if batch.inside_entity is None else batch.inside_entity.copy()
    labels = np.full(len(batch.lengths), NO_PAIR)
    ends = np.cumsum(batch.lengths)
    for s, (end, length) in enumerate(zip(ends, batch.lengths, strict=True)):
        if length < SHORTEST:
            continue
        rng = np.random.default_rng([context.seed, int(batch.chunks[s]), int(batch.epochs[s]), 1])
        begin = end - length
        middle = _cut(words, begin, end, rng)
        second = ids[middle : end - 2].copy(), words[middle : end - 2].copy()  # one token makes room for [SEP]
        labels[s] = int(rng.random() < 0.5)
        if labels[s]:
            second = _elsewhere(context, int(batch.documents[s]), end - 2 - middle, rng)
        ids[middle], words[middle] = separator, True
        ids[middle + 1 : end - 1], words[middle + 1 : end - 1] = second
        if inside is not None:
            inside[middle + 1 : end - 1] = False if labels[s] else inside[middle : end - 2].copy()
            inside[middle] = False
    return replace(batch, input_ids=ids, word_starts=words, inside_entity=inside), labels


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


def _elsewhere(
    context: Context, own: int, length: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """``length`` tokens that begin in another document, and go on into the next if that one is short."""
    shards = context.shards
    other = (own + 1 + int(rng.integers(len(shards) - 1))) % len(shards)
    start = int(shards.ends[other])
    room = int(shards.ends[other + 1]) - start - length
    start += int(rng.integers(room + 1)) if room > 0 else 0
    positions = (start + np.arange(length)) % shards.tokens
    wrap = int((np.diff(positions) < 0).argmax()) + 1 if start + length > shards.tokens else length
    runs = [(start, start + wrap), *([(0, length - wrap)] if wrap < length else [])]
    ids, words, _ = shards.take(np.array([a for a, _ in runs]), np.array([b for _, b in runs]))
    return ids.astype(np.int64), words
