"""Base of next-sentence and sentence-order prediction: pairs of texts with a binary label.

A sequence [CLS] x [SEP] becomes a pair, [CLS] A [SEP] B [SEP]: x is cut at a word in its middle half. The first and the
last word of x are dropped. This makes room for the second [SEP] and removes partial words at the ends of a chunk, which
would reveal the label. The objective chooses A, B and the label; both texts begin and end with whole words. Masking is
applied to the pairs, as in BERT. With h the [CLS] row, from the Enhanced Mask Decoder if the model has one:

    P(label | A, B) = softmax(W tanh(V h + v) + w)

W and V are the model's own classifier and pooler if its class has them (BERT, ALBERT), otherwise the objective's.
Random numbers depend on (seed, chunk, epoch), or on (seed, chunk) for static masking, so a pair does not depend on its
batch.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debertakit.objectives.base import Backbone, Context, Objective, Outcome, Targets, View, as_tensor, masked_view
from debertakit.objectives.random_streams import PAIRS, chunk_generator
from debertakit.text.packing import PackedBatch

NO_PAIR = -1
"""Label of a sequence of fewer than four words, which is left unchanged and not predicted."""


class Text(NamedTuple):
    ids: NDArray[np.int64]
    words: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    """Whether the token continues an entity; all False if the corpus has no entities."""


class PairPrediction(Objective):
    rearranges_text = True
    needs_documents = True
    uses_pair_head = True

    def __init__(self, backbone: Backbone):
        super().__init__(backbone)
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
        """Return A, B and their label for two consecutive texts. The total length stays the same."""
        raise NotImplementedError

    def build_view(self, batch: PackedBatch, context: Context, progress: float) -> View:
        batch, labels = self.pair_up(batch, context)
        view = masked_view(batch, context, progress)
        return replace(view, segments=segments(view, context.shards.vocabulary["sep"]), pair_labels=labels)

    def targets(self, view: View) -> Targets:
        assert view.pair_labels is not None
        labels = as_tensor(view.pair_labels)
        paired = labels != NO_PAIR
        return Targets(view.starts[paired], labels[paired])

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        if self.dense is None or self.classifier is None:
            return self.outcome(backbone.pair_logits(hidden), targets.labels)
        return self.outcome(self.classifier(torch.tanh(self.dense(hidden))), targets.labels)

    def pair_up(self, batch: PackedBatch, context: Context) -> tuple[PackedBatch, NDArray[np.int64]]:
        """Return the batch as pairs, and their labels."""
        ids, words = batch.input_ids, batch.word_starts
        inside = np.zeros(len(ids), bool) if batch.inside_entity is None else batch.inside_entity
        labels = np.full(len(batch.lengths), NO_PAIR)
        pieces: list[Text] = []
        lengths = batch.lengths.copy()

        def text(first: int, last: int) -> Text:
            return Text(ids[first:last], words[first:last], inside[first:last])

        for s, (end, length) in enumerate(zip(np.cumsum(lengths), batch.lengths, strict=True)):
            begin = end - length
            starts = np.flatnonzero(words[begin + 2 : end - 1]) + begin + 2
            if len(starts) < 3:
                pieces.append(text(begin, end))
                continue
            epoch = int(batch.epochs[s]) if context.masking.dynamic else 0
            rng = chunk_generator(context.seed, batch.chunks[s], epoch, PAIRS)
            middle = _cut(starts, begin, length, rng)
            x, y = text(starts[0], middle), text(middle, starts[-1])
            a, b, labels[s] = self.arrange(x, y, int(batch.documents[s]), context, rng)
            mark = text(end - 1, end)  # [SEP]
            pieces += [text(begin, begin + 1), a, mark, b, mark]
            lengths[s] = len(a.ids) + len(b.ids) + 3
        made = Text(*(np.concatenate(field) for field in zip(*pieces, strict=True)))
        entities = None if batch.inside_entity is None else made.inside
        return (
            replace(batch, input_ids=made.ids, word_starts=made.words, inside_entity=entities, lengths=lengths),
            labels,
        )


def segments(view: View, separator: int) -> Tensor:
    """Segment ids: 0 up to and including the first [SEP] of each sequence, 1 after it."""
    is_separator = (view.ids == separator).long()
    before = is_separator.cumsum(0) - is_separator
    return (before - before[view.starts].repeat_interleave(view.lengths)).clamp(max=1)


def _cut(starts: NDArray[np.int64], begin: int, length: int, rng: np.random.Generator) -> int:
    """Return the word start nearest to a random point in the middle half, never the first or last word start."""
    middle = begin + length * rng.uniform(0.25, 0.75)
    return int(starts[1 + np.abs(starts[1:-1] - middle).argmin()])
