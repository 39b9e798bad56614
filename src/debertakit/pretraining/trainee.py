"""The model and its objectives in one module, for DDP, FSDP2, the optimiser and checkpoints."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from debertakit.checkpoints import State
from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives, build
from debertakit.objectives.base import Asked, Context, Objective, View, causal_view, masked_view
from debertakit.objectives.infilling import infilled_view
from debertakit.objectives.pairs import PairPrediction, segments
from debertakit.objectives.plm import permuted_view
from debertakit.pretraining.backbones import make_backbone
from debertakit.text.packing import PackedBatch

Phase = Literal["all", "warmup", "generator", "discriminator"]
"""The part that one update of a step trains. All phases except ``all`` are only for replaced-token detection."""


@dataclass(frozen=True)
class Part:
    """One part of a step, corrupted and ready for the model."""

    views: dict[str, View]
    asked: dict[str, Asked]
    tokens: int

    def counts(self) -> list[int]:
        """Number of loss terms of each objective, in the order of ``asked``."""
        return [len(asked.targets) for asked in self.asked.values()]

    def to(self, device: torch.device) -> "Part":
        views = {name: view.to(device) for name, view in self.views.items()}
        return Part(views, {name: asked.to(device) for name, asked in self.asked.items()}, self.tokens)


class Trainee(nn.Module):
    def __init__(self, model: Any, objectives: Objectives):
        super().__init__()
        self.model = model
        self.backbone = make_backbone(model)
        self.weights = objectives.weights
        self.objectives: Any = nn.ModuleDict(build(objectives, self.backbone))
        for name, objective in self.objectives.items():
            if objective.view not in self.backbone.views:
                raise ValueError(
                    f"{type(model).__name__} cannot be trained on {name}: it reads {' and '.join(self.backbone.views)} "
                    f"text, and {name} needs it {objective.view}"
                )
        if isinstance(model, DebertaForMaskedLM):
            positions = model.deberta.embeddings.position_embeddings
            decodes = any(objective.decodes for objective in self.objectives.values())
            if positions is not None and not model.config.position_biased_input:
                positions.requires_grad_(decodes)  # DDP waits for the gradient of every parameter that requires one

    @property
    def models(self) -> dict[str, Any]:
        """Models to export: ``model`` to the run's folder, others to subfolders named after them."""
        return {"model": self.model}

    @property
    def trains_all(self) -> bool:
        """True if every parameter gets a gradient in every phase."""
        return True

    def phases(self, step: int) -> tuple[Phase, ...]:
        """Phases of a step, one update each."""
        return ("all",)

    def prepare(self, batch: PackedBatch, context: Context, progress: float) -> Part:
        """Corrupt a batch for the objectives. Runs on the CPU, before the model is called."""
        objectives: dict[str, Objective] = dict(self.objectives.items())
        names = {objective.view for objective in objectives.values()}
        views: dict[str, View] = {}
        if "causal" in names:
            views["causal"] = causal_view(batch)
        if "permuted" in names:
            views["permuted"] = permuted_view(batch, context, progress)
        if "infilled" in names:
            views["infilled"] = infilled_view(batch, context, progress)
        if "masked" in names:
            labels = None
            for objective in objectives.values():
                if isinstance(objective, PairPrediction):
                    batch, labels = objective.pair_up(batch, context)
            view = masked_view(batch, context, progress)
            if labels is not None:
                between = segments(view, context.shards.vocabulary["sep"])
                view = replace(view, segments=between, pair_labels=labels)
            views["masked"] = view
        asked = {name: objective.ask(views[objective.view]) for name, objective in objectives.items()}
        return Part(views, asked, len(batch.input_ids))

    def forward(self, part: Part, totals: Tensor, phase: Phase = "all") -> tuple[Tensor, Tensor]:
        """Return the weighted loss of this part, and [objectives, 2]: summed loss and number of correct predictions.

        ``totals`` [objectives]: number of loss terms of each objective in the whole step.
        """
        loss = totals.new_zeros(())
        figures = {}
        shares = dict(zip(self.objectives, totals.clamp(min=1).unbind(), strict=True))
        for view_name, view in part.views.items():
            here = {name: o for name, o in self.objectives.items() if o.view == view_name}
            decoded = _rows(part.asked[name].rows for name, o in here.items() if o.decodes)
            plain = _rows(part.asked[name].rows for name, o in here.items() if not o.decodes)
            from_decoder, from_last = self.backbone.hidden_rows(view, decoded, plain)
            for name, objective in here.items():
                rows, hidden = (decoded, from_decoder) if objective.decodes else (plain, from_last)
                assert rows is not None
                assert hidden is not None
                asked = part.asked[name]
                own = hidden[torch.searchsorted(rows, asked.rows)]
                outcome = objective.loss(self.backbone, own, asked, view)
                loss = loss + self.weights[name] * outcome.loss / shares[name]
                figures[name] = torch.stack([outcome.loss.detach(), outcome.correct])
        return loss, torch.stack([figures[name] for name in self.objectives])

    def further_figures(self, parts: list[Part], gather: Any) -> dict[str, float]:
        """Evaluation metrics other than loss and accuracy."""
        return {}

    def to_files(self, weights: State) -> dict[str, State]:
        """Split the weights into the files of a checkpoint."""
        model = {key.removeprefix("model."): value for key, value in weights.items() if key.startswith("model.")}
        heads = {key: value for key, value in weights.items() if not key.startswith("model.")}
        return {"model.safetensors": model, **({"heads.safetensors": heads} if heads else {})}

    def from_files(self, files: dict[str, State]) -> State:
        model = {f"model.{key}": value for key, value in files["model.safetensors"].items()}
        return model | files.get("heads.safetensors", {})


def _rows(rows: Iterable[Tensor]) -> Tensor | None:
    """Merge the rows that objectives request: unique and ascending. None if there are no requests."""
    asked = list(rows)
    return torch.unique(torch.cat(asked)) if asked else None
