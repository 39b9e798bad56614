"""AdamW, parameter groups, and the learning-rate schedule.

    lr(step) = peak * min(1, (step + 1) / warm-up) * shape(progress)
    shape    = 1 - p (linear),  (1 + cos(pi p)) / 2 (cosine),  1 (constant);   never below final_share

progress p is the completed fraction of the steps, or of the minutes if the run has a time limit.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Optimizer:
    lr: float = 2e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float = 1.0
    """Maximum norm of the whole gradient; 0: no clipping."""
    warmup_steps: int = 10_000
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    final_share: float = 0.0
    """Minimum learning rate after warm-up, as a fraction of the peak."""

    def __post_init__(self) -> None:
        if self.schedule not in ("linear", "cosine", "constant"):
            raise ValueError(f"optimizer.schedule must be linear, cosine or constant, not {self.schedule!r}")
        if self.lr <= 0 or self.warmup_steps < 0 or self.clip < 0:
            raise ValueError("optimizer.lr must be > 0; warmup_steps and clip must be >= 0")


def learning_rate(options: Optimizer, step: int, progress: float) -> float:
    p = min(max(progress, 0.0), 1.0)
    shape = {"linear": 1 - p, "cosine": (1 + math.cos(math.pi * p)) / 2, "constant": 1.0}[options.schedule]
    warmup = min(1.0, (step + 1) / max(options.warmup_steps, 1))
    return options.lr * max(warmup * shape, options.final_share if warmup == 1.0 else 0.0)


def decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Apply weight decay to matrices and tables, not to biases and LayerNorms, as Microsoft does."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def make_optimizer(module: nn.Module, options: Optimizer, fused: bool = True) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        decay_groups(module, options.weight_decay),
        lr=options.lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        fused=fused,
    )


def clip_gradients(module: nn.Module, largest: float) -> Tensor:
    """Clip the gradient to norm ``largest`` (0: no clipping). Returns the norm before clipping."""
    norm = nn.utils.clip_grad_norm_(module.parameters(), largest if largest > 0 else math.inf)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP2 returns a sharded tensor
