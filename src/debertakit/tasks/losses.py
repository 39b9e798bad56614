"""Logits and losses for each kind of task, as sums over the label cells of a batch.

    kind          logits                        cells        loss of a cell                       divergence of a cell
    single-label  [batch, labels]               batch        -w_y log softmax(z)_y                symmetric KL
    choice        [batch, options]              batch        the same, w = 1                      symmetric KL
    tagging       [batch, length, tags]         tagged words the same                             symmetric KL
    qa            [batch, 2, length]            start, end   -log softmax(z)_y                    symmetric KL
    multi-label   [batch, labels]               each label   -w y log s(z) - (1 - y) log s(-z)    symmetric KL, two-way
    regression    [batch]                       batch        (z - y)^2                            (z - z')^2

Losses are sums because a step may consist of several batches (gradient accumulation, several GPUs). The sum is divided
by the number of cells in the whole step, so the gradient does not depend on how the step is split.

SiFT's divergence between the predictions for a text (p) and for the perturbed text (q):

    KL(sg(p) || q) + KL(sg(q) || p)        sg: stop-gradient

Its value is the symmetric KL divergence. Its gradients are those of Microsoft's trainer, which omits both entropies.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from debertakit.data.examples import Kind
from debertakit.ensembles import Ensemble, combined
from debertakit.model import IGNORED
from debertakit.tasks.features import RowLabel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
NOWHERE = -1e4
"""Logit of padding and of missing options. Finite, so that 0 * log 0 stays 0."""


def task_logits(model: "PreTrainedModel", batch: Mapping[str, Tensor], kind: Kind) -> Tensor:
    """Run one forward pass. Shapes as above, always fp32. The members of an ensemble run one after the other."""
    if isinstance(model, Ensemble):
        return combined(kind, torch.stack([task_logits(each, batch, kind) for each in model.members]), model.combine)
    inputs = {key: batch[key] for key in INPUTS if key in batch}
    match kind:
        case "single-label" | "multi-label" | "tagging":
            return model(**inputs).logits.float()
        case "regression":
            return model(**inputs).logits.float().squeeze(-1)
        case "qa":
            output = model(**inputs)
            both = torch.stack([output.start_logits, output.end_logits], 1).float()  # [batch, 2, length]
            return both.masked_fill(batch["attention_mask"][:, None] == 0, NOWHERE)
        case "choice":  # examples differ in number of options, so pass all options as the choices of one example
            scores = model(**{key: value[None] for key, value in inputs.items()}).logits[0]  # [all options]
            per_example = scores.float().split(batch["options"].tolist())
            return torch.nn.utils.rnn.pad_sequence(list(per_example), batch_first=True, padding_value=NOWHERE)


def task_loss(kind: Kind, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    match kind:
        case "single-label" | "choice" | "tagging" | "qa":
            flat = logits.flatten(0, -2)
            return F.cross_entropy(flat, labels.flatten(), weight=weights, ignore_index=IGNORED, reduction="sum")
        case "multi-label":
            return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights, reduction="sum")
        case "regression":
            return F.mse_loss(logits, labels, reduction="sum")


def divergence(kind: Kind, clean: Tensor, perturbed: Tensor, labels: Tensor) -> Tensor:
    """Divergence over the same cells as the loss."""
    match kind:
        case "single-label" | "choice" | "qa":
            return _symmetric_kl(clean, perturbed)
        case "tagging":
            tagged = labels != IGNORED
            return _symmetric_kl(clean[tagged], perturbed[tagged])
        case "multi-label":  # each label is a choice between z and 0
            return _symmetric_kl(*(torch.stack([z, torch.zeros_like(z)], -1) for z in (clean, perturbed)))
        case "regression":
            return F.mse_loss(perturbed, clean, reduction="sum")


def _symmetric_kl(clean: Tensor, perturbed: Tensor) -> Tensor:
    p, q = clean.log_softmax(-1), perturbed.log_softmax(-1)
    return _kl(p.detach(), q) + _kl(q.detach(), p)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return F.kl_div(q, p, reduction="sum", log_target=True)


def cells(labels: Tensor) -> int:
    return int((labels != IGNORED).sum())


def class_weights(kind: Kind, targets: Sequence[RowLabel | None], count: int) -> Tensor:
    """Give rare classes more weight: n / (count * n_c). Multi-label: examples without the label / examples with it."""
    match kind:
        case "single-label":
            return _inverse_frequencies(torch.tensor(targets), count)
        case "tagging":
            return _inverse_frequencies(torch.cat([torch.tensor(target) for target in targets]), count)
        case "multi-label":
            given = torch.tensor(targets).sum(0)
            return (len(targets) - given).clamp(min=1) / given.clamp(min=1)
        case "regression" | "qa" | "choice":
            raise ValueError(f"--balanced needs classes, and a {kind} task has none")


def _inverse_frequencies(labels: Tensor, count: int) -> Tensor:
    found = torch.bincount(labels[labels != IGNORED], minlength=count).float()
    return found.sum() / (count * found.clamp(min=1))
