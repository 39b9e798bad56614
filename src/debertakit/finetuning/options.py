"""Options of fine-tuning. Each default is written only here; ``deberta finetune`` makes its options from these fields.

``FinetuneOptions`` is for tasks with a head (classification, tagging, ...), ``Seq2SeqOptions`` for translation and
summarisation. ``run.json`` records all fields.
"""

from dataclasses import dataclass, replace

from debertakit.finetuning.hyperparameters import Hyperparameters
from debertakit.protocols import PRECISIONS

LORA_RATE = 10
"""LoRA updates start at zero and need a higher learning rate: this many times the recommended rate."""
HEAD_RATE = 1e-3
"""Learning rate if only the head is trained."""


@dataclass(frozen=True)
class FinetuneOptions:
    """None: use the recommended value for the task and the model size (hyperparameters.py), unless noted."""

    epochs: float | None = None
    """Training epochs."""
    lr: float | None = None
    """Peak learning rate."""
    batch_size: int | None = None
    """Examples per step."""
    gradient_accumulation: int = 1
    """Split each step into this many batches to save memory. The gradient stays the same."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass: less memory, about a third more time, the same gradient."""
    warmup: float | None = None
    """Warm-up steps, or a fraction of all steps if below 1."""
    weight_decay: float | None = None
    """AdamW weight decay."""
    cls_dropout: float | None = None
    """Dropout before the classifier."""
    max_length: int | None = None
    """Maximum tokens per input. Without a recommended value, 99.5 % of the training texts fit."""
    sift: bool = False
    """Use scale-invariant adversarial fine-tuning (SiFT)."""
    sift_lambda: float | None = None
    """Weight of the SiFT loss."""
    sift_step: float = 1e-4
    """Size of SiFT's ascent step."""
    sift_init: float = 1e-2
    """Standard deviation of SiFT's initial perturbation."""
    balanced: bool = False
    """Give rare classes more weight."""
    layer_decay: float = 1.0
    """Learning rate of each layer relative to the layer above it."""
    lora: int | None = None
    """Train only LoRA updates of this rank (8 is common). None: train all weights."""
    freeze_encoder: bool = False
    """Train only the head."""
    early_stopping: int | None = None
    """Stop after this many evaluations without improvement. None: never stop early."""
    evaluate_every: int | None = None
    """Steps between evaluations (and checkpoints). None: once per epoch."""
    precision: str = "auto"
    """fp32, bf16, fp16 (GPUs without bf16), or auto: bf16 if the hardware supports it, else fp32. Dev scores are always
    computed in fp32."""
    parallel: str = "ddp"
    """With torchrun: ddp copies the model to each process; fsdp2 shards weights, gradients and optimiser state."""

    def __post_init__(self) -> None:
        _check(
            self,
            positive=(
                *("epochs", "lr", "batch_size", "gradient_accumulation", "max_length"),
                *("lora", "early_stopping", "evaluate_every"),
            ),
            not_negative=("warmup", "weight_decay", "sift_lambda", "sift_step", "sift_init"),
        )
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay is {self.layer_decay}; it must be > 0 and <= 1")
        if self.parallel not in ("ddp", "fsdp2"):
            raise ValueError(f"unknown parallel {self.parallel!r}; choose ddp or fsdp2")
        if self.parallel == "fsdp2" and (self.lora is not None or self.precision == "fp16"):
            raise ValueError("parallel=fsdp2 does not support lora or precision=fp16; use parallel=ddp")
        if self.lora is not None and self.freeze_encoder:
            raise ValueError("lora already freezes the encoder's own weights; use either lora or freeze_encoder")
        if self.batch_size is not None and self.batch_size % self.gradient_accumulation:
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of gradient_accumulation={self.gradient_accumulation}"
            )


@dataclass(frozen=True)
class Seq2SeqOptions:
    epochs: float = 20.0
    """Training epochs."""
    minutes: float | None = None
    """Train for this many minutes instead of ``epochs`` (one process only)."""
    lr: float = 3e-4
    """Peak learning rate."""
    warmup: float = 400
    """Warm-up steps, or a fraction of all steps if below 1. With ``epochs``, at most a tenth of the steps."""
    weight_decay: float = 0.01
    """AdamW weight decay."""
    step_tokens: int = 4096
    """Source and target tokens per step."""
    label_smoothing: float = 0.1
    """Share of the probability that the loss spreads over the whole vocabulary."""
    max_source: int = 128
    """Maximum tokens per source text, including [CLS] and [SEP]. Longer texts are truncated."""
    max_target: int = 128
    """Maximum tokens per target text, including [CLS] and [SEP]. Longer texts are truncated."""
    decoder_layers: int | None = None
    """Layers of a new decoder. None: as many as the encoder has."""
    beams: int = 4
    """Beams of the beam search that writes the scored texts."""
    early_stopping: int | None = None
    """Stop after this many evaluations without a lower dev loss. None: never stop early."""
    evaluate_every: int = 1000
    """Steps between evaluations (and checkpoints)."""
    precision: str = "auto"
    """fp32, bf16, fp16 (GPUs without bf16), or auto: bf16 if the hardware supports it, else fp32. Dev scores are always
    computed in fp32."""

    def __post_init__(self) -> None:
        _check(
            self,
            positive=(
                *("epochs", "minutes", "lr", "step_tokens", "max_source", "max_target", "decoder_layers", "beams"),
                *("early_stopping", "evaluate_every"),
            ),
            not_negative=("warmup", "weight_decay"),
        )
        if self.minutes is not None and 0 < self.warmup < 1:
            raise ValueError(f"warmup is {self.warmup}; with minutes, it must be a number of steps")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; it must be >= 0 and < 1")


def _check(options: FinetuneOptions | Seq2SeqOptions, positive: tuple[str, ...], not_negative: tuple[str, ...]) -> None:
    for name in (*positive, *not_negative):
        value = getattr(options, name)
        if value is not None and (value < 0 or (value == 0 and name in positive)):
            raise ValueError(f"{name} is {value}; it must be {'>' if name in positive else '>='} 0")
    if options.precision not in PRECISIONS:
        raise ValueError(f"unknown precision {options.precision!r}; choose from {', '.join(PRECISIONS)}")


def resolve_options(options: FinetuneOptions, recommended: Hyperparameters) -> FinetuneOptions:
    """Fill in all unset options except the maximum length, which may depend on the data."""
    lr = recommended.lr * (LORA_RATE if options.lora is not None else 1)
    values = {
        "epochs": recommended.epochs,
        "lr": HEAD_RATE if options.freeze_encoder else lr,
        "batch_size": recommended.batch_size,
        "warmup": recommended.warmup,
        "weight_decay": recommended.weight_decay,
        "cls_dropout": recommended.cls_dropout,
        "sift_lambda": recommended.sift_lambda,
    }
    unset = {name: value for name, value in values.items() if getattr(options, name) is None}
    return replace(options, **unset)  # type: ignore[arg-type]
