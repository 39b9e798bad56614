"""Autoregressive language modelling with the encoder and a triangular mask, as in UniLM.

    loss = - sum over rows t, except the last of each sequence, of  log softmax(E head(h_t) + b)[token_{t+1}]

Row t sees positions 0 to t. The head is the masked model's. The mask decoder is used only if the config enables it
(causal_emd), because its queries are made for the position to predict, while here row t predicts the next position.
The final [SEP] of a sequence is predicted too.
"""

import torch
from torch import Tensor

from debertakit.objectives.base import AttentionMode, Backbone, Context, Objective, Outcome, Targets, View, causal_view
from debertakit.text.packing import PackedBatch


class AutoregressiveLanguageModelling(Objective):
    view = "causal"
    attention: AttentionMode = "causal"
    pipeline_tag = "text-generation"

    def __init__(self, backbone: Backbone):
        super().__init__(backbone)
        self.decodes = backbone.decodes_causal_rows

    def build_view(self, batch: PackedBatch, context: Context, progress: float) -> View:
        return causal_view(batch)

    def targets(self, view: View) -> Targets:
        has_next = torch.ones(view.ids.shape[0], dtype=torch.bool)
        has_next[view.lengths.cumsum(0).long() - 1] = False
        rows = has_next.nonzero().squeeze(-1)
        return Targets(rows, view.ids[rows + 1])

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        return self.outcome(backbone.word_logits(hidden), targets.labels)
