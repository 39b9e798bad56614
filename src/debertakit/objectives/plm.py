"""Permutation language modelling (XLNet), with partial prediction. For XLNet and DeBERTa (two_streams.py).

    z: a random order of the sequence; its last 1 / K are the targets
    loss = - sum over targets t of  log softmax(E g_t + b)[token_t],   g_t sees z_<t and only the position of t

The targets are the tokens that the masking strategy would mask at rate 1 / K, in random order. No token of the text is
replaced by [MASK]; DeBERTa's query stream starts from [MASK] instead. With strategy ``token`` the targets are the last
1 / K of a uniform permutation; ``ngram`` and ``span`` give XLNet's span-based prediction. All other tokens come first
in the order and see one another, as in the released code: no loss depends on their order. The random order depends on
(seed, chunk, epoch).
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from debertakit.objectives.base import Backbone, Context, View, masked_view
from debertakit.objectives.mlm import MaskedLanguageModelling
from debertakit.objectives.random_streams import PERMUTATION, chunk_generator
from debertakit.text.packing import PackedBatch


class PermutationLanguageModelling(MaskedLanguageModelling):
    view = "permuted"
    attention = "permuted"
    decodes = False
    needs_row_per_token = True

    def __init__(self, backbone: Backbone):
        super().__init__(backbone)
        # a model that can also attend in both directions fills masks: its query stream has read [MASK]
        self.pipeline_tag = "fill-mask" if "bidirectional" in backbone.attention else "text-generation"

    def build_view(self, batch: PackedBatch, context: Context, progress: float) -> View:
        masked = masked_view(batch, replace(context, masking=replace(context.masking, mask=1.0, random=0.0)), progress)
        targets = masked.masked
        assert targets is not None
        order = np.zeros(len(batch.input_ids), np.int64)
        bounds = np.searchsorted(targets.positions, [0, *np.cumsum(batch.lengths)])
        for (low, high), chunk, epoch in zip(pairwise(bounds), batch.chunks, batch.epochs, strict=True):
            rng = chunk_generator(context.seed, chunk, epoch, PERMUTATION)
            order[targets.positions[low:high]] = 1 + rng.permutation(high - low)
        return replace(masked, ids=torch.from_numpy(batch.input_ids), order=torch.from_numpy(order))
