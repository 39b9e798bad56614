"""Autoregressive language modelling with the encoder and a triangular mask, as in UniLM.

    loss = - sum over rows t, except the last of each sequence, of  log softmax(E head(h_t) + b)[token_{t+1}]

Row t sees positions 0 to t. The head is the masked model's. The mask decoder is used only if the config enables it
(causal_emd), because its queries are made for the position to predict, while here row t predicts the next position.
The final [SEP] of a sequence is predicted too.
"""

import torch
from torch import Tensor

from debertakit.objectives.base import Asked, Backbone, Objective, Outcome, View, ViewName


class AutoregressiveLanguageModelling(Objective):
    view: ViewName = "causal"

    def __init__(self, decodes: bool = False):
        super().__init__()
        self.decodes = decodes

    def ask(self, view: View) -> Asked:
        has_next = torch.ones(view.ids.shape[0], dtype=torch.bool)
        has_next[view.lengths.cumsum(0).long() - 1] = False
        rows = has_next.nonzero().squeeze(-1)
        return Asked(rows, view.ids[rows + 1])

    def loss(self, backbone: Backbone, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        return self.outcome(backbone.word_logits(hidden), asked.targets)
