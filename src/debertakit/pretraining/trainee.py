"""The model and its objectives as one module: what DDP and FSDP2 wrap, what the optimiser and checkpoints hold."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives, build
from debertakit.objectives.base import Asked, Context, Objective, View, causal_view, hidden_rows, masked_view
from debertakit.objectives.nsp import NextSentencePrediction, pair_up, segments
from debertakit.text.packing import PackedBatch


@dataclass(frozen=True)
class Part:
    """One part of a step, corrupted and ready for the model."""

    views: dict[str, View]
    asked: dict[str, Asked]
    tokens: int

    def counts(self) -> list[int]:
        """Terms of each objective's loss, in the order of ``asked``."""
        return [len(asked.targets) for asked in self.asked.values()]

    def to(self, device: torch.device) -> "Part":
        views = {name: view.to(device) for name, view in self.views.items()}
        return Part(views, {name: asked.to(device) for name, asked in self.asked.items()}, self.tokens)


class Trainee(nn.Module):
    def __init__(self, model: DebertaForMaskedLM, objectives: Objectives):
        super().__init__()
        self.model = model
        self.weights = objectives.weights
        self.objectives: Any = nn.ModuleDict(build(objectives, model.config))
        positions = model.deberta.embeddings.position_embeddings
        decodes = any(objective.decodes for objective in self.objectives.values())
        if positions is not None and not model.config.position_biased_input:
            positions.requires_grad_(decodes)  # DDP waits for the gradient of every parameter that asks for one

    def prepare(self, batch: PackedBatch, context: Context, progress: float) -> Part:
        """Corrupt a batch as the objectives need it. Runs on the CPU, before the model is called."""
        objectives: dict[str, Objective] = dict(self.objectives.items())
        names = {objective.view for objective in objectives.values()}
        views: dict[str, View] = {}
        if "causal" in names:
            views["causal"] = causal_view(batch)
        if "masked" in names:
            labels = None
            if any(isinstance(objective, NextSentencePrediction) for objective in objectives.values()):
                batch, labels = pair_up(batch, context)
            view = masked_view(batch, context, progress)
            if labels is not None:
                between = segments(view, context.shards.vocabulary["sep"])
                view = View(view.ids, view.lengths, False, between, view.masked, labels)
            views["masked"] = view
        asked = {name: objective.ask(views[objective.view]) for name, objective in objectives.items()}
        return Part(views, asked, len(batch.input_ids))

    def forward(self, part: Part, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted loss of this part, and [objectives, 2]: each one's summed loss and right predictions.

        ``totals`` [objectives]: terms of each objective in the whole step.
        """
        loss = totals.new_zeros(())
        figures = {}
        shares = dict(zip(self.objectives, totals.clamp(min=1).unbind(), strict=True))
        for view_name, view in part.views.items():
            here = {name: o for name, o in self.objectives.items() if o.view == view_name}
            decoded = _rows(part.asked[name].rows for name, o in here.items() if o.decodes)
            plain = _rows(part.asked[name].rows for name, o in here.items() if not o.decodes)
            from_decoder, from_last = hidden_rows(self.model, view.packed(), decoded, plain)
            for name, objective in here.items():
                rows, hidden = (decoded, from_decoder) if objective.decodes else (plain, from_last)
                assert hidden is not None
                asked = part.asked[name]
                own = hidden if len(rows) == len(asked.rows) else hidden[torch.searchsorted(rows, asked.rows)]
                outcome = objective.loss(self.model, own, asked, view)
                loss = loss + self.weights[name] * outcome.loss / shares[name]
                figures[name] = torch.stack([outcome.loss.detach(), outcome.correct])
        return loss, torch.stack([figures[name] for name in self.objectives])


def _rows(rows: Any) -> Any:
    """The rows that several objectives ask for, each once, ascending; None if nobody asks."""
    asked = list(rows)
    return torch.unique(torch.cat(asked)) if asked else None
