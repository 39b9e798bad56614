"""Span-boundary objective (SpanBERT): predict a masked span from the two tokens around it.

For token i of a masked span s .. e, with x the rows of the last layer and p an embedding of the position in the span:

    h_0 = [x_{s-1}; x_{e+1}; p_{i-s}]
    h_1 = LayerNorm(GELU(W_1 h_0)),   y_i = LayerNorm(GELU(W_2 h_1))
    loss = - sum over i of  log softmax(E y_i + b)[token_i]

E is the word table. Adjacent spans are merged, so x_{s-1} and x_{e+1} are never masked; [CLS] and [SEP] bound the spans
at the ends of a sequence. As in the released code, positions from LONGEST on are not predicted. i - s counts tokens of
the original text, so a span that became a single [MASK] is predicted in the same way.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from debertakit.objectives.base import Backbone, Objective, Outcome, Targets, View, as_tensor

LONGEST = 20
PLACE_SIZE = 200


class SpanBoundary(Objective):
    decodes = False

    def __init__(self, backbone: Backbone):
        super().__init__(backbone)
        config = backbone.config
        words = backbone.word_table()
        self.places = nn.Embedding(LONGEST, PLACE_SIZE)
        self.dense_1 = nn.Linear(2 * config.hidden_size + PLACE_SIZE, config.hidden_size)
        self.LayerNorm_1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dense_2 = nn.Linear(config.hidden_size, words.shape[1])
        self.LayerNorm_2 = nn.LayerNorm(words.shape[1], config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(words.shape[0]))
        for module in (self.places, self.dense_1, self.dense_2):
            nn.init.normal_(module.weight, std=config.initializer_range)
        for layer in (self.dense_1, self.dense_2):
            nn.init.zeros_(layer.bias)

    def targets(self, view: View) -> Targets:
        assert view.masked is not None
        masked = view.masked.positions
        opens = np.diff(masked, prepend=-2) > 1  # 0: another token of the same [MASK]
        closes = np.diff(masked, append=len(view.ids) + 1) > 1
        span = np.cumsum(opens) - 1
        first, last = masked[opens][span], masked[closes][span]
        within = np.arange(len(masked)) - np.flatnonzero(opens)[span]
        predicted = within < LONGEST
        rows = np.concatenate([first[predicted] - 1, last[predicted] + 1])
        labels, positions = view.masked.targets[predicted], within[predicted]
        return Targets(as_tensor(rows), as_tensor(labels), as_tensor(positions))

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        assert targets.span_positions is not None
        left, right = hidden.chunk(2)
        x = torch.cat([left, right, self.places(targets.span_positions)], -1)
        x = self.LayerNorm_1(F.gelu(self.dense_1(x)))
        x = self.LayerNorm_2(F.gelu(self.dense_2(x)))
        return self.outcome(F.linear(x, backbone.word_table(), self.bias), targets.labels)
