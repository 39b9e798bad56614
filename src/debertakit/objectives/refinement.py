"""Mask refinement: the model reads its own predictions and predicts again.

    x_0 = the masked text;   x_r = x_0 with some masked tokens i replaced by argmax P(token_i | x_{r-1})
    loss = 1 / k * sum over rounds r = 0 .. k - 1 of  MLM loss of x_r against the original tokens

``replaced`` is the share of the masked tokens that are replaced in each sequence: those that the model is most certain
of, as in Mask-Predict. The others keep their [MASK]. With 1, the input contains no [MASK] from the second round on, as
in fine-tuning. ``scored="last"`` uses only the loss of the last round. No gradient flows through the argmax. Round 0 is
masked language modelling, so this objective replaces it.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from debertakit.objectives.base import Backbone, Outcome, Targets, View
from debertakit.objectives.mlm import MaskedLanguageModelling


class MaskRefinement(MaskedLanguageModelling):
    needs_row_per_token = True

    def __init__(
        self, backbone: Backbone, rounds: int = 2, replaced: float = 1.0, scored: Literal["all", "last"] = "all"
    ):
        super().__init__(backbone)
        self.rounds, self.replaced, self.scored = rounds, replaced, scored

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        logits = backbone.word_logits(hidden)
        outcomes = [self.outcome(logits, targets.labels)]
        masked_ids, sequence = view.ids, view.sequence_of(targets.rows)
        for _ in range(self.rounds - 1):
            certainty, predicted = logits.detach().float().log_softmax(-1).max(-1)
            chosen = most_certain(certainty, sequence, self.replaced)
            view = replace(view, ids=masked_ids.index_copy(0, targets.rows[chosen], predicted[chosen]))
            decoded, _ = backbone.hidden_rows(view, targets.rows, None)
            assert decoded is not None
            logits = backbone.word_logits(decoded)
            outcomes.append(self.outcome(logits, targets.labels))
        scored = outcomes if self.scored == "all" else outcomes[-1:]
        return Outcome(torch.stack([outcome.loss for outcome in scored]).mean(), outcomes[-1].correct)


def most_certain(certainty: Tensor, sequence: Tensor, share: float) -> Tensor:
    """bool [M]: whether a masked token is in the most certain ``share`` of its sequence (rounded up)."""
    by_certainty = certainty.argsort(descending=True, stable=True)
    order = by_certainty[sequence[by_certainty].argsort(stable=True)]
    counts = torch.bincount(sequence)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - starts[sequence[order]]
    return rank < share * counts[sequence]
