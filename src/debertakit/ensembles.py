"""Several fine-tuned models that answer as one (``deberta ensemble``). An ensemble is a folder:

    ensemble.json          {"combine": "probabilities", "members": ["member-0", "member-1", ...]}
    member-0/, ...         the model folders
    config.json, task.json and the tokenizer: those that all members share

``loading.describe(folder).network()`` returns an ``Ensemble``, so evaluate, predict and serve accept the folder like
one model. The members read the same tokens and have the same labels. Their logits z_m are combined for each
row of tokens:

                    probabilities            logits      votes
    single-label,   log mean_m softmax(z_m)  mean z_m    log of the share of members for which the class is best;
    choice, tags,                                        equal shares are decided by the mean probability
    answer spans
    multi-label     the same with sigmoid    mean z_m    the same for each label
    regression      mean z_m                 mean z_m    median z_m

For answer spans, the classes are the first tokens and, separately, the last tokens. The results are logits again: their
softmax (or sigmoid) is the mean probability, or the share of votes. A single member answers with its own logits.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from debertakit.data.examples import Kind
from debertakit.protocols import Combine

COMBINE: tuple[Combine, ...] = get_args(Combine)
ENSEMBLE_FILE = "ensemble.json"
TIE = 1e-6
"""Weight of the mean probability in a vote: enough to decide between equal shares."""


class Ensemble(nn.Module):
    """The members' networks. ``tasks.losses.task_logits`` runs all of them and combines their logits."""

    def __init__(self, members: Sequence[Any], combine: Combine):
        super().__init__()
        self.members, self.combine = nn.ModuleList(members), combine
        self.config: PreTrainedConfig = members[0].config

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, *args: Any, **inputs: Any) -> Any:
        raise ValueError("an ensemble of models answers in evaluate, predict and serve; here, use one of its members")


def combined(kind: Kind, logits: Tensor, how: Combine) -> Tensor:
    """Combine the logits of the members, [members, ...], as in the module docstring."""
    if len(logits) == 1:
        return logits[0]
    if kind == "regression":
        return logits.quantile(0.5, dim=0) if how == "votes" else logits.mean(0)
    if how == "logits":
        return logits.mean(0)
    if kind == "multi-label":
        chances = logits.double().sigmoid()
        if how == "votes":
            chances = (1 - TIE) * (chances >= 0.5) + TIE * chances
        return chances.mean(0).logit(eps=1e-12).float()
    chances = logits.double().softmax(-1)
    if how == "votes":
        best = nn.functional.one_hot(chances.argmax(-1), chances.shape[-1])
        chances = (1 - TIE) * best + TIE * chances
    return chances.mean(0).clamp_min(torch.finfo(torch.float32).tiny).log().float()


def read_ensemble(folder: Path) -> tuple[list[Path], Combine] | None:
    """The members' folders and how they are combined, or None if ``folder`` is not an ensemble."""
    file = folder / ENSEMBLE_FILE
    if not file.is_file():
        return None
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        members, how = [folder / str(name) for name in stored["members"]], stored["combine"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error}") from None
    if how not in COMBINE or not members:
        raise ValueError(f"{file} is damaged: combine is {how!r}, with {len(members)} members")
    return members, how
