"""The HF Trainer with additions: losses per kind (losses.py), SiFT, layer-wise learning rates, our own batching, and
evaluation with the task's own metric. The Trainer still provides the schedule, gradient accumulation, checkpoints,
resuming, early stopping and best-model selection.

Autocast is also ours: the Trainer's (``bf16=True``) would wrap the model's forward, and therefore every evaluation."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from debertakit.data.examples import Kind
from debertakit.finetuning.parameters import parameter_groups
from debertakit.finetuning.sift import Sift, perturbed_logits, watching
from debertakit.model import DebertaPreTrainedModel
from debertakit.precision import autocast, resolve_precision
from debertakit.tasks.batches import SORTED_STEPS, Collator, TrainingOrder
from debertakit.tasks.features import TokenRow
from debertakit.tasks.losses import cells, divergence, task_logits, task_loss
from debertakit.training.log import Log


class FinetuneTrainer(Trainer):
    optimizer: Any
    control: Any

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        kind: Kind,
        rows: Sequence[TokenRow],
        collate: Collator,
        evaluator: Callable[[], dict[str, float]],
        *,
        weights: Tensor | None = None,
        sift: Sift | None = None,
        layer_decay: float = 1.0,
        precision: str = "fp32",
        callbacks: list[TrainerCallback] | None = None,
    ):
        args._n_gpu = min(args.n_gpu, 1)  # no DataParallel: it would copy the model at every step
        args.mixed_precision = "no"  # even if ACCELERATE_MIXED_PRECISION is set: see the module docstring
        # The evaluator has its own rows. The Trainer only checks that eval_dataset is set.
        super().__init__(model, args, collate, rows, eval_dataset=rows, callbacks=callbacks)
        self.remove_callback(PrinterCallback)
        self.kind, self.evaluator, self.sift, self.layer_decay = kind, evaluator, sift, layer_decay
        self.precision = resolve_precision(precision, args.device)
        self.weights = None if weights is None else weights.to(args.device)
        self.began = time.monotonic()
        """Start of training. A resumed run moves it back by the time already spent."""
        self.model_accepts_loss_kwargs = True  # makes the Trainer count the label cells of a whole step

    def _get_train_sampler(self, train_dataset: Any = None) -> TrainingOrder:
        padded = not any(isinstance(module, DebertaPreTrainedModel) for module in self.model.modules())
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps
        lengths = [row.tokens for row in self.train_dataset]
        return TrainingOrder(lengths, step, self.args.seed, SORTED_STEPS if padded else 1)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            trained = self.model if model is None else model
            decayed = set(self.get_decay_parameter_names(trained))
            args = self.args
            groups = parameter_groups(trained, decayed, args.learning_rate, args.weight_decay, self.layer_decay)
            cls, options = self.get_optimizer_cls_and_kwargs(args, trained)
            self.optimizer = cls(groups, **options)
        return self.optimizer

    def logits(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        with autocast(self.precision, self.args.device):
            return task_logits(model, inputs, self.kind)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Sum of the losses in a batch, divided by the number of label cells in the whole step."""
        labels = inputs["labels"]
        if self.sift is None or self.sift.strength == 0:
            logits = self.logits(model, inputs)
            total = task_loss(self.kind, logits, labels, self.weights)
        else:
            with watching(model) as perturbations:
                logits = self.logits(model, inputs)
                perturbed = perturbed_logits(
                    self.sift,
                    perturbations,
                    logits,
                    lambda: self.logits(model, inputs),
                    lambda clean, other: divergence(self.kind, clean, other, labels),
                )
            total = task_loss(self.kind, logits, labels, self.weights)
            total = total + self.sift.strength * divergence(self.kind, logits, perturbed, labels)
        loss = total / (cells(labels) if num_items_in_batch is None else num_items_in_batch)
        return (loss, {"logits": logits}) if return_outputs else loss

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        began = time.monotonic()
        figures = self.evaluator()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        metrics[f"{metric_key_prefix}_seconds"] = time.monotonic() - began
        metrics[f"{metric_key_prefix}_elapsed"] = time.monotonic() - self.began
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class LogCallback(TrainerCallback):
    """Writes the Trainer's metrics to our log: log.jsonl and the terminal."""

    def __init__(self, log: Log):
        self.log, self.loss = log, float("nan")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.log.advance(state.global_step, state.global_step, self.loss)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.loss = logs["loss"]
            figures = {"loss": logs["loss"], "lr": logs["learning_rate"], "epoch": logs["epoch"]}
            self.log.write("train", state.global_step, **figures)
        elif any(name.startswith("eval_") for name in logs):
            figures = {name.removeprefix("eval_"): value for name, value in logs.items()}
            self.log.write("dev", state.global_step, **figures)


def sift_overhead(trainer: FinetuneTrainer, batches: int = 4) -> float:
    """Ratio of the forward and backward time with SiFT to the time without, on the first training batches."""
    sift, seconds = trainer.sift, {True: 0.0, False: 0.0}
    loader = iter(trainer.get_train_dataloader())
    for _, batch in zip(range(batches), loader, strict=False):
        for on in (True, False):
            trainer.sift = sift if on else None
            began = time.perf_counter()
            trainer.model.train()
            trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch)).backward()
            seconds[on] += time.perf_counter() - began
    trainer.model.zero_grad()
    trainer.sift = sift
    return seconds[True] / seconds[False]
