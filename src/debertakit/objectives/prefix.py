"""Prefix language modelling (UniLM, T5): the prefix attends in both directions, the rest of the text is generated.

    p ~ uniform over 1 .. n - 1          length of the prefix of a sequence of n tokens, with [CLS]
    row t sees the rows 0 .. max(p - 1, t)
    loss = - sum over rows t = p - 1 .. n - 2 of  log softmax(E head(h_t) + b)[token_{t+1}]

The last row of the prefix predicts the first token after it. The prefix itself is not predicted. p depends on (seed,
chunk, epoch), so it changes with every epoch and not with the batch.
"""

from dataclasses import replace

import torch

from debertakit.objectives.arlm import AutoregressiveLanguageModelling
from debertakit.objectives.base import AttentionMode, Context, Targets, View, causal_view
from debertakit.objectives.random_streams import PREFIX, chunk_generator
from debertakit.text.packing import PackedBatch


class PrefixLanguageModelling(AutoregressiveLanguageModelling):
    view = "prefix"
    attention: AttentionMode = "prefix"

    def build_view(self, batch: PackedBatch, context: Context, progress: float) -> View:
        sequences = zip(batch.chunks, batch.epochs, batch.lengths, strict=True)
        drawn = [int(chunk_generator(context.seed, c, e, PREFIX).integers(1, n)) for c, e, n in sequences]
        return replace(causal_view(batch), prefix=torch.tensor(drawn, dtype=torch.int32))

    def targets(self, view: View) -> Targets:
        assert view.prefix is not None
        rows, labels, _ = super().targets(view)
        sequence = view.sequence_of(rows)
        predicted = rows - view.starts[sequence] >= view.prefix[sequence] - 1
        return Targets(rows[predicted], labels[predicted])
