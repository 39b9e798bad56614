"""SiFT, scale-invariant fine-tuning: adversarial training on normalised embeddings (DeBERTa, section 4, appendix A.5).

    n       = (x - mean(x)) / sqrt(var(x) + eps)          x: sum of a token's embeddings; no parameters
    f(n)    = model from the embedding LayerNorm upwards
    d0      ~ N(0, init^2), clipped at 2 init
    g       = gradient of D(f(n), f(n + d)) with respect to d, at d0
    d       = d0 + step * g / max_hidden |g|               one ascent step, infinity norm, per token
    loss    = task loss + strength * D(f(n), f(n + d))     D: symmetric KL; regression: squared difference (losses.py)

Embeddings are normalised because their norms differ between words and models: a perturbation of fixed size is noise for
some and negligible for others. After normalisation a step means the same for all. The perturbation is added between
this parameter-free normalisation and the model's own embedding LayerNorm, whose gain and bias then apply to it as to
the embeddings: LayerNorm(n + d). Without d nothing changes, because LayerNorm(n) = LayerNorm(x) except for eps. The
clean pass and the saved model are therefore the plain model.

As in Microsoft's trainer, n is a constant in the perturbed pass (the word embeddings learn only from the clean pass),
and each pass draws its own dropout. Cost: two more forward and two more backward passes than plain training.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-7


@dataclass(frozen=True)
class Sift:
    """SiFT settings; options.py has the defaults and checks the values."""

    strength: float
    """lambda, the weight of the divergence."""
    step: float
    init: float


class Perturbation:
    """Hook on one embedding LayerNorm: stores its normalised input n, and replaces the input with n + d if d is set."""

    def __init__(self, layer_norm: nn.Module):
        self.normal: Tensor | None = None
        self.delta: Tensor | None = None
        self.handle = layer_norm.register_forward_pre_hook(self._before)

    def _before(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self.delta is not None:
            assert self.normal is not None
            return (self.normal + self.delta,)
        x = inputs[0].detach().float()
        self.normal = F.layer_norm(x, x.shape[-1:], eps=EPS)
        return None


def embedding_norms(model: nn.Module) -> list[nn.Module]:
    """Every LayerNorm over embeddings. A model may have several embedding tables."""
    found = [module for name, module in model.named_modules() if name.endswith("embeddings.LayerNorm")]
    if not found:
        raise ValueError(f"SiFT needs a LayerNorm over the embeddings, and {type(model).__name__} has none")
    return found


@contextmanager
def watching(model: nn.Module) -> Iterator[list[Perturbation]]:
    perturbations = [Perturbation(module) for module in embedding_norms(model)]
    try:
        yield perturbations
    finally:
        for perturbation in perturbations:
            perturbation.handle.remove()


def perturbed_logits(
    sift: Sift,
    perturbations: list[Perturbation],
    clean: Tensor,
    forward: Callable[[], Tensor],
    compare: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """f(n + d), with gradients to the parameters.

    ``clean`` is f(n), computed inside ``watching``; ``forward`` runs the same batch again; ``compare`` is D.
    """
    deltas = [torch.randn_like(p.normal) for p in perturbations]  # type: ignore[arg-type]
    for perturbation, delta in zip(perturbations, deltas, strict=True):
        delta.clamp_(-2, 2).mul_(sift.init).requires_grad_()
        perturbation.delta = delta
    try:
        # Differentiate only with respect to d, so that no parameter gradient changes here.
        gradients = torch.autograd.grad(compare(clean.detach(), forward()), deltas)
        for perturbation, delta, gradient in zip(perturbations, deltas, gradients, strict=True):
            perturbation.delta = ascend(delta.detach(), gradient, sift.step)
        return forward()
    finally:
        for perturbation in perturbations:
            perturbation.delta = None


def ascend(delta: Tensor, gradient: Tensor, step: float) -> Tensor:
    """Take one ascent step, or none where the gradient is not finite."""
    norm = gradient.abs().amax(-1, keepdim=True)
    moved = delta + step * gradient / (norm + 1e-6)
    return torch.where(norm.isfinite(), moved, delta)
