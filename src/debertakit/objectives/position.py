"""Relative-position prediction: predict the position of each masked token.

    P(r_i | x) = softmax(W_r h_i + b_r)

r_i is the position of masked token i relative to the first token of its sequence. h_i comes from the ordinary last
layer: the encoder knows only distances and must infer the position from them. The mask decoder has the absolute
position in its query and could simply copy it.
"""

import torch
from torch import Tensor, nn

from debertakit.objectives.base import Asked, Backbone, Objective, Outcome, View, as_tensor


class PositionPrediction(Objective):
    decodes = False

    def __init__(self, backbone: Backbone):
        super().__init__()
        if backbone.knows_positions:
            raise ValueError("position prediction with absolute positions would copy its answer from the input")
        config = backbone.config
        self.classifier = nn.Linear(config.hidden_size, config.max_position_embeddings)
        nn.init.normal_(self.classifier.weight, std=config.initializer_range)
        nn.init.zeros_(self.classifier.bias)

    def ask(self, view: View) -> Asked:
        assert view.masked is not None
        rows = as_tensor(view.masked.positions)
        positions = rows - view.starts[_sequence_of(rows, view)]
        return Asked(rows, positions.clamp(max=self.classifier.out_features - 1))

    def loss(self, backbone: Backbone, hidden: Tensor, asked: Asked, view: View) -> Outcome:
        return self.outcome(self.classifier(hidden), asked.targets)


def _sequence_of(rows: Tensor, view: View) -> Tensor:
    return torch.searchsorted(view.lengths.cumsum(0), rows, right=True)
