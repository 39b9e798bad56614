"""Mask refinement: the model reads its own predictions and predicts again.

    x_0 = the masked text;   x_r = x_0 with every masked token replaced by argmax P(. | x_{r-1})
    loss = 1 / k * sum over rounds r = 0 .. k - 1 of  MLM loss of x_r against the original tokens

From the second round on, the input contains no [MASK], as in fine-tuning. No gradient flows through the argmax. Round 0
is masked language modelling, so this objective replaces it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from debertakit.objectives.base import Backbone, Outcome, Targets, View
from debertakit.objectives.mlm import MaskedLanguageModelling


class MaskRefinement(MaskedLanguageModelling):
    needs_row_per_token = True

    def __init__(self, backbone: Backbone, rounds: int = 2):
        super().__init__(backbone)
        self.rounds = rounds

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        logits = backbone.word_logits(hidden)
        total = self.outcome(logits, targets.labels).loss
        for _ in range(self.rounds - 1):
            view = replace(view, ids=view.ids.index_copy(0, targets.rows, logits.detach().argmax(-1)))
            decoded, _ = backbone.hidden_rows(view, torch.unique(targets.rows), None)
            assert decoded is not None
            logits = backbone.word_logits(decoded)
            total = total + self.outcome(logits, targets.labels).loss
        return Outcome(total / self.rounds, self.outcome(logits, targets.labels).correct)
