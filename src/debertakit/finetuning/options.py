"""Fine-tuning options. Unless noted, None means: use the task's recipe for models of this size (recipes.py)."""

from dataclasses import dataclass, replace

from debertakit.finetuning.recipes import Hyperparameters
from debertakit.precision import PRECISIONS

LORA_RATE = 10
"""LoRA updates start at zero and need a higher learning rate: this many times the recipe's."""
HEAD_RATE = 1e-3
"""Learning rate if only the head is trained."""


@dataclass(frozen=True)
class Options:
    epochs: float | None = None
    lr: float | None = None
    batch_size: int | None = None
    """Examples per step."""
    gradient_accumulation: int = 1
    """Split each step into this many batches to save memory. The gradient is the same."""
    warmup: float | None = None
    """Steps, or a share of all steps if below 1."""
    weight_decay: float | None = None
    cls_dropout: float | None = None
    max_length: int | None = None
    """Tokens. If the recipe has no value, chosen so that 99.5 % of the training texts fit."""
    sift: bool = False
    sift_lambda: float | None = None
    sift_step: float = 1e-4
    sift_init: float = 1e-2
    balanced: bool = False
    """Give rare classes more weight."""
    layer_decay: float = 1.0
    """Learning rate of each layer relative to the layer above it."""
    lora: int | None = None
    """Rank of the LoRA updates; None: train all weights."""
    freeze_encoder: bool = False
    early_stopping: int | None = None
    """Stop after this many evaluations without improvement; None: never stop early."""
    evaluate_every: int | None = None
    """Steps between evaluations (and checkpoints); None: once per epoch."""
    precision: str = "auto"
    """auto: bf16 if the device supports it natively, else fp32. run.json records the resolved precision. Dev scores are
    always computed in fp32."""

    def __post_init__(self) -> None:
        for name in ("epochs", "lr", "batch_size", "gradient_accumulation", "max_length", "lora", "early_stopping"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; it must be > 0")
        for name in ("warmup", "weight_decay", "sift_lambda", "sift_step", "sift_init"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}; it must be >= 0")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay is {self.layer_decay}; it must be > 0 and <= 1")
        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r}; choose from {', '.join(PRECISIONS)}")
        if self.lora is not None and self.freeze_encoder:
            raise ValueError("lora already freezes the encoder's own weights; use either lora or freeze_encoder")
        if self.batch_size is not None and self.batch_size % self.gradient_accumulation:
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of gradient_accumulation={self.gradient_accumulation}"
            )


def settle(options: Options, recipe: Hyperparameters) -> Options:
    """Fill in all unset options except the maximum length, which may depend on the data."""
    lr = recipe.lr * (LORA_RATE if options.lora is not None else 1)
    recommended = {
        "epochs": recipe.epochs,
        "lr": HEAD_RATE if options.freeze_encoder else lr,
        "batch_size": recipe.batch_size,
        "warmup": recipe.warmup,
        "weight_decay": recipe.weight_decay,
        "cls_dropout": recipe.cls_dropout,
        "sift_lambda": recipe.sift_lambda,
    }
    open_ones = {name: value for name, value in recommended.items() if getattr(options, name) is None}
    return replace(options, **open_ones)  # type: ignore[arg-type]
