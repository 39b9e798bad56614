"""Mask refinement: the model reads its own predictions and predicts again.

    x_0 = the masked text;   x_r = x_0 with every masked token replaced by argmax P(. | x_{r-1})
    loss = 1 / k * sum over rounds r = 0 .. k - 1 of  MLM loss of x_r against the original tokens

From the second round on, the input contains no [MASK], as in fine-tuning. No gradient flows through the argmax. Round 0
is masked language modelling, so this objective replaces it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from debertakit.objectives.base import Asked, Backbone, Outcome, View
from debertakit.objectives.mlm import MaskedLanguageModelling


class MaskRefinement(MaskedLanguageModelling):
    def __init__(self, rounds: int):
        super().__init__()
        if rounds < 1:
            raise ValueError(f"refinement_rounds={rounds}: at least 1")
        self.rounds = rounds

    def loss(self, backbone: Backbone, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        logits = backbone.word_logits(hidden)
        total = self.outcome(logits, asked.targets).loss
        for _ in range(self.rounds - 1):
            view = replace(view, ids=view.ids.index_copy(0, asked.rows, logits.detach().argmax(-1)))
            decoded, _ = backbone.hidden_rows(view, torch.unique(asked.rows), None)
            assert decoded is not None
            logits = backbone.word_logits(decoded)
            total = total + self.outcome(logits, asked.targets).loss
        return Outcome(total / self.rounds, self.outcome(logits, asked.targets).correct)
