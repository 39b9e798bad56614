"""One model, trained on the weighted sum of its objectives."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debertakit.objectives import Objectives, build
from debertakit.objectives.base import Backbone, Context, Objective, Targets, View
from debertakit.objectives.teacher import Teacher
from debertakit.objectives.training_module import TrainingModule
from debertakit.text.packing import PackedBatch
from debertakit.text.shards import Shards


@dataclass(frozen=True)
class JointPart:
    views: dict[str, View]
    targets: dict[str, Targets]
    """By objective."""

    @property
    def tokens(self) -> int:
        *_, last = self.views.values()
        return last.text_tokens

    def counts(self) -> list[int]:
        return [len(targets.labels) for targets in self.targets.values()]

    def to(self, device: torch.device) -> "JointPart":
        views = {name: view.to(device) for name, view in self.views.items()}
        return JointPart(views, {name: targets.to(device) for name, targets in self.targets.items()})


class JointObjectives(TrainingModule[JointPart]):
    def __init__(self, backbone: Backbone, objectives: Objectives, teacher: Teacher | None = None):
        super().__init__()
        self.model = backbone.model
        self.backbone = backbone
        self.weights = objectives.weights
        built = build(objectives, backbone, teacher)
        self.objectives = nn.ModuleDict(built)
        for name, objective in built.items():
            if objective.attention not in backbone.attention:
                raise ValueError(
                    f"{type(self.model).__name__} cannot be trained on {name}: {name} needs {objective.attention} "
                    f"attention, and the model has {' and '.join(backbone.attention)} attention"
                )
        backbone.train_mask_decoder(any(objective.decodes for objective in built.values()))
        tags = {objective.pipeline_tag for objective in built.values()}
        self.pipeline_tag = "text-generation" if "text-generation" in tags else min(tags)
        # Views run in alphabetical order. A fixed order keeps the random numbers of dropout the same.
        self.sharing: dict[str, dict[str, Objective]] = {}
        """Objectives by view."""
        for view in sorted({objective.view for objective in built.values()}):
            self.sharing[view] = {name: objective for name, objective in built.items() if objective.view == view}

    @property
    def trains_all_parameters(self) -> bool:
        """Distillation alone does not train the language-model head."""
        return any(objective.trains_all_parameters for each in self.sharing.values() for objective in each.values())

    def check_corpus(self, shards: Shards, half: str, max_length: int) -> None:
        for sharing in self.sharing.values():
            for objective in sharing.values():
                objective.check_corpus(shards, half, max_length)

    def prepare(self, batch: PackedBatch, context: Context, progress: float) -> JointPart:
        views: dict[str, View] = {}
        targets: dict[str, Targets] = {}
        for name, sharing in self.sharing.items():
            builder = max(sharing.values(), key=lambda objective: objective.rearranges_text)
            views[name] = builder.build_view(batch, context, progress)
            targets |= {key: objective.targets(views[name]) for key, objective in sharing.items()}
        return JointPart(views, {name: targets[name] for name in self.weights})

    def forward(self, part: JointPart, totals: Tensor, phase: str = "all") -> tuple[Tensor, Tensor]:
        loss = totals.new_zeros(())
        sums = {}
        counts = dict(zip(self.weights, totals.clamp(min=1).unbind(), strict=True))
        for view_name, view in part.views.items():
            sharing = self.sharing[view_name]
            decoded = _unique_rows(part.targets[name].rows for name, o in sharing.items() if o.decodes)
            plain = _unique_rows(part.targets[name].rows for name, o in sharing.items() if not o.decodes)
            from_decoder, from_last = self.backbone.hidden_rows(view, decoded, plain)
            for name, objective in sharing.items():
                rows, hidden = (decoded, from_decoder) if objective.decodes else (plain, from_last)
                assert rows is not None
                assert hidden is not None
                targets = part.targets[name]
                own = hidden[torch.searchsorted(rows, targets.rows)]
                outcome = objective.loss(self.backbone, own, targets, view)
                loss = loss + self.weights[name] * outcome.loss / counts[name]
                sums[name] = torch.stack([outcome.loss.detach(), outcome.correct])
        return loss, torch.stack([sums[name] for name in self.weights])

    def metrics(self, name: str, loss: float, accuracy: float) -> dict[str, float]:
        (objective,) = (sharing[name] for sharing in self.sharing.values() if name in sharing)
        return objective.metrics(loss, accuracy)


def _unique_rows(rows: Iterable[Tensor]) -> Tensor | None:
    """Merge the rows that objectives request: unique and ascending. None if there are no requests."""
    requested = list(rows)
    return torch.unique(torch.cat(requested)) if requested else None
