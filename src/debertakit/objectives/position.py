"""Relative-position prediction: predict the position of each masked token.

    P(r_i | x) = softmax(W_r h_i + b_r)

r_i is the position of masked token i relative to the first token of its sequence. h_i comes from the ordinary last
layer: the encoder knows only distances and must infer the position from them. The mask decoder has the absolute
position in its query and could simply copy it.
"""

from torch import Tensor, nn

from debertakit.objectives.base import Backbone, Objective, Outcome, Targets, View, masked_targets


class PositionPrediction(Objective):
    decodes = False

    def __init__(self, backbone: Backbone):
        super().__init__(backbone)
        if backbone.knows_positions:
            raise ValueError("position prediction cannot use absolute positions: it would copy its answer from them")
        config = backbone.config
        self.classifier = nn.Linear(config.hidden_size, config.max_position_embeddings)
        nn.init.normal_(self.classifier.weight, std=config.initializer_range)
        nn.init.zeros_(self.classifier.bias)

    def targets(self, view: View) -> Targets:
        rows = masked_targets(view).rows
        positions = rows - view.starts[view.sequence_of(rows)]
        return Targets(rows, positions.clamp(max=self.classifier.out_features - 1))

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        return self.outcome(self.classifier(hidden), targets.labels)
