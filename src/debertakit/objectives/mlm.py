"""Masked language modelling: predict the masked tokens.

    loss = - sum over masked tokens i of  log softmax(E head(h_i) + b)[token_i]

h comes from the Enhanced Mask Decoder if the config has one (emd_steps > 0), otherwise from the last layer.
"""

from torch import Tensor

from debertakit.objectives.base import Backbone, Objective, Outcome, Targets, View, masked_targets


class MaskedLanguageModelling(Objective):
    def targets(self, view: View) -> Targets:
        return masked_targets(view)

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        return self.outcome(backbone.word_logits(hidden), targets.labels)
