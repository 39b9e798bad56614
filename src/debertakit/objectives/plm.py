"""Permutation language modelling (XLNet), with partial prediction.

    z: a random order of the sequence; its last 1 / K are the targets
    loss = - sum over targets t of  log softmax(E g_t + b)[token_t],   g_t sees z_<t and only the position of t

The targets are the tokens that the masking strategy would mask at rate 1 / K, in random order. No token is replaced by
[MASK]. With strategy ``token`` the targets are the last 1 / K of a uniform permutation; ``ngram`` and ``span`` give
XLNet's span-based prediction. All other tokens come first in the order and see one another, as in the released code:
no loss depends on their order. The random order depends on (seed, chunk, epoch).
"""

from itertools import pairwise

import numpy as np
import torch

from debertakit.objectives.base import Context, View
from debertakit.objectives.mlm import MaskedLanguageModelling
from debertakit.objectives.random_streams import PERMUTATION, chunk_generator
from debertakit.text.masking import apply
from debertakit.text.packing import PackedBatch


class PermutationLanguageModelling(MaskedLanguageModelling):
    view = "permuted"
    attention = "permuted"
    decodes = False
    needs_row_per_token = True
    pipeline_tag = "text-generation"

    def build_view(self, batch: PackedBatch, context: Context, progress: float) -> View:
        targets = apply(batch, context.masking, context.shards.vocabulary, seed=context.seed, progress=progress)
        order = np.zeros(len(batch.input_ids), np.int64)
        bounds = np.searchsorted(targets.positions, [0, *np.cumsum(batch.lengths)])
        for (low, high), chunk, epoch in zip(pairwise(bounds), batch.chunks, batch.epochs, strict=True):
            rng = chunk_generator(context.seed, chunk, epoch, PERMUTATION)
            order[targets.positions[low:high]] = 1 + rng.permutation(high - low)
        ids, lengths = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.lengths)
        return View(ids, lengths, masked=targets, order=torch.from_numpy(order), text_tokens=len(ids))
