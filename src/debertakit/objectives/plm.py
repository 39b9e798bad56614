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
from torch import Tensor

from debertakit.objectives.base import Asked, Backbone, Context, Objective, Outcome, View, as_tensor
from debertakit.text.masking import apply
from debertakit.text.packing import PackedBatch


class PermutationLanguageModelling(Objective):
    view = "permuted"
    decodes = False

    def ask(self, view: View) -> Asked:
        assert view.masked is not None
        return Asked(as_tensor(view.masked.positions), as_tensor(view.masked.targets))

    def loss(self, backbone: Backbone, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        return self.outcome(backbone.word_logits(hidden), asked.targets)


def permuted_view(batch: PackedBatch, context: Context, progress: float) -> View:
    targets = apply(batch, context.masking, context.shards.vocabulary, seed=context.seed, progress=progress)
    order = np.zeros(len(batch.input_ids), np.int64)
    ends = np.cumsum(batch.lengths)
    bounds = np.searchsorted(targets.positions, [0, *ends])
    for s, (low, high) in enumerate(pairwise(bounds)):
        rng = np.random.default_rng([context.seed, int(batch.chunks[s]), int(batch.epochs[s]), 2])
        order[targets.positions[low:high]] = 1 + rng.permutation(high - low)
    ids, lengths = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.lengths)
    return View(ids, lengths, masked=targets, order=torch.from_numpy(order))
