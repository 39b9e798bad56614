"""Masked language modelling: predict the masked tokens.

    loss = - sum over masked tokens i of  log softmax(E head(h_i) + b)[token_i]

h comes from the Enhanced Mask Decoder if the config has one (emd_steps > 0), otherwise from the last layer.
"""

from torch import Tensor

from debertakit.objectives.base import Asked, Backbone, Objective, Outcome, View, as_tensor


class MaskedLanguageModelling(Objective):
    def ask(self, view: View) -> Asked:
        assert view.masked is not None
        return Asked(as_tensor(view.masked.positions), as_tensor(view.masked.targets))

    def loss(self, backbone: Backbone, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        return self.outcome(backbone.word_logits(hidden), asked.targets)
