"""The HF Trainer with additions: losses per kind (losses.py), SiFT, layer-wise learning rates, our own batching, and
evaluation with the task's own metric. The Trainer still provides the schedule, gradient accumulation, checkpoints,
resuming, early stopping and best-model selection.

``RunTrainer`` is shared with translation and summarisation (seq2seq_trainer.py). Its autocast is our own: the Trainer's
(``bf16=True``) would wrap the model's forward, and therefore every evaluation.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from debertakit.data.examples import Kind
from debertakit.files import flush_all
from debertakit.finetuning.parameters import parameter_groups
from debertakit.finetuning.runs import (
    CHECKPOINTS,
    checkpoint_step,
    delete_old_checkpoints,
    newest_checkpoint,
    on_main,
    seconds_before,
    writing,
)
from debertakit.finetuning.sift import Sift, perturbed_logits, watching
from debertakit.model import DebertaPreTrainedModel
from debertakit.precision import autocast, best_device, make_scaler, resolve_precision
from debertakit.tasks.batches import SORTED_STEPS, Collator, ProcessShare, TrainingOrder
from debertakit.tasks.features import TokenRow
from debertakit.tasks.losses import cells, divergence, task_logits, task_loss
from debertakit.training.checksums import write_checksums
from debertakit.training.log import Log

Batch = dict[str, Tensor]
MOST_SKIPPED = 10
"""Stop after this many consecutive steps whose gradient is not finite."""


def training_arguments(folder: Path, seed: int, every: int, **own: object) -> TrainingArguments:
    """Evaluate and save every ``every`` steps, keep the best checkpoint, print nothing. ``own``: more arguments."""
    return TrainingArguments(
        output_dir=str(folder / CHECKPOINTS),
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=every,
        save_steps=every,
        load_best_model_at_end=True,
        report_to="none",
        seed=seed,
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=best_device().type == "cpu",  # accelerate needs it to connect processes without GPUs
        dataloader_pin_memory=torch.cuda.is_available(),
        log_level="error",
        **own,
    )


class RunTrainer(Trainer):
    """A Trainer with our evaluation, precision and log. Subclasses define the order of the examples and the loss."""

    optimizer: Any
    control: TrainerControl

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        rows: Sequence[TokenRow] | Dataset,
        collate: Callable[[Any], Batch],
        evaluator: Callable[[], dict[str, float]],
        *,
        precision: str = "fp32",
        callbacks: Sequence[TrainerCallback] = (),
    ):
        args._n_gpu = min(args.n_gpu, 1)  # no DataParallel: it would copy the model at every step
        args.mixed_precision = "no"  # even if ACCELERATE_MIXED_PRECISION is set: see the module docstring
        # The evaluator has its own rows. The Trainer only checks that eval_dataset is set.
        super().__init__(model, args, collate, rows, eval_dataset=rows, callbacks=[FiniteGradients(), *callbacks])
        self.remove_callback(PrinterCallback)
        self.evaluator = evaluator
        self.precision = resolve_precision(precision, args.device)
        if self.precision == "fp16":  # accelerate scales the loss with it, and the Trainer saves it in checkpoints
            self.accelerator.scaler = make_scaler(self.precision, args.device)
        self.began = time.monotonic()
        """Start of training. A resumed run moves it back by the time already spent."""
        self.model_accepts_loss_kwargs = True  # makes the Trainer count the label cells of a whole step

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, over all sessions."""
        return time.monotonic() - self.began

    def mean(self, total: Tensor, labels: Tensor, step_cells: Tensor | int | None) -> Tensor:
        """Divide the sum of the losses in a batch by the number of label cells in the whole step.

        DDP averages gradients over processes, but the sum is needed: the cells are those of all processes.
        """
        if step_cells is None:
            return total / cells(labels)
        return total / step_cells * self.args.world_size

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        began = time.monotonic()
        figures = self.evaluator()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        metrics[f"{metric_key_prefix}_seconds"] = time.monotonic() - began
        metrics[f"{metric_key_prefix}_elapsed"] = self.elapsed
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        self._unscale()
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Any:
        if grad_norm is None:  # not clipped, so not unscaled yet
            self._unscale()
        return super()._get_grad_norm(model, grad_norm)

    def _unscale(self) -> None:
        """Divide the gradients by the scale of the loss. accelerate does this only with its own autocast."""
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.unscale_(self.optimizer.optimizer)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint. It counts once its checksums are there; only then are older ones deleted."""
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with writing(f"the checkpoint of step {self.state.global_step}", folder.parent):
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # every process writes its random generators
            if self.is_world_process_zero():
                write_checksums(folder)
                flush_all(folder)
                delete_old_checkpoints(folder)

    def done(self) -> float:
        """Completed part of the run, in the unit of the progress bar."""
        return self.state.global_step

    def fit(self, folder: Path, total: float, unit: str = "steps") -> float:
        """Train from the newest checkpoint in ``folder``, or from the start. Returns the seconds of all sessions."""
        checkpoint = on_main(lambda: newest_checkpoint(folder / CHECKPOINTS))
        self.began = time.monotonic() - seconds_before(checkpoint)
        log = None
        if self.is_world_process_zero():
            log = Log(folder, "none", total, unit, checkpoint_step(checkpoint) if checkpoint else -1)
            self.add_callback(LogCallback(log, self.done))
        try:
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            return self.elapsed
        finally:
            if log is not None:
                log.close()


class FinetuneTrainer(RunTrainer):
    """For models with a task head."""

    def __init__(
        self,
        model: PreTrainedModel,
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
        callbacks: Sequence[TrainerCallback] = (),
    ):
        super().__init__(model, args, rows, collate, evaluator, precision=precision, callbacks=callbacks)
        self.kind, self.sift, self.layer_decay = kind, sift, layer_decay
        self.weights = None if weights is None else weights.to(args.device)

    def _get_train_sampler(self, train_dataset: object = None) -> Sampler[int]:
        padded = not any(isinstance(module, DebertaPreTrainedModel) for module in self.model.modules())
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps
        lengths = [row.tokens for row in self.train_dataset]
        return TrainingOrder(lengths, step, self.args.seed, SORTED_STEPS if padded else 1)

    def get_train_dataloader(self) -> DataLoader:
        """With several processes, each process gets its share of every batch. The steps are those of one process."""
        if self.args.world_size == 1:
            return super().get_train_dataloader()
        order = self._get_train_sampler()
        assert isinstance(order, TrainingOrder)
        share = ProcessShare(order, self.args.train_batch_size, self.args.process_index, self.args.world_size)
        return SharedLoader(self.train_dataset, batch_sampler=share, collate_fn=self.data_collator)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            trained = self.model if model is None else model
            decayed = set(self.get_decay_parameter_names(trained))
            args = self.args
            groups = parameter_groups(trained, decayed, args.learning_rate, args.weight_decay, self.layer_decay)
            cls, options = self.get_optimizer_cls_and_kwargs(args, trained)
            self.optimizer = cls(groups, **options)
        return self.optimizer

    def logits(self, model: nn.Module, inputs: Batch) -> Tensor:
        with autocast(self.precision, self.args.device):
            return task_logits(model, inputs, self.kind)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
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
        loss = self.mean(total, labels, num_items_in_batch)
        return (loss, {"logits": logits}) if return_outputs else loss


class SharedLoader(DataLoader):
    def set_epoch(self, epoch: int) -> None:
        assert isinstance(self.batch_sampler, ProcessShare)
        self.batch_sampler.set_epoch(epoch)


class FiniteGradients(TrainerCallback):
    """Skips the update if a gradient is not finite: one NaN would make every weight NaN."""

    def __init__(self) -> None:
        self.skipped = 0

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        gradients = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        if all_finite(gradients):
            self.skipped = 0
            return
        self.skipped += 1
        if self.skipped == MOST_SKIPPED:
            raise ValueError(
                f"the gradient was not finite for {MOST_SKIPPED} consecutive steps (last: {state.global_step + 1}); "
                "start again with a lower learning rate (--lr)"
            )
        for parameter in kwargs["model"].parameters():
            parameter.grad = None


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether all gradients are finite. Under FSDP2, every process looks at its share and hears of the others'."""
    shares = [each.to_local() if isinstance(each, DTensor) else each for each in gradients]
    finite = all(bool(share.isfinite().all()) for share in shares)
    if not any(isinstance(each, DTensor) for each in gradients):
        return finite
    everywhere = torch.tensor(float(finite), device=shares[0].device)
    distributed.all_reduce(everywhere, distributed.ReduceOp.MIN)
    return bool(everywhere)


class LogCallback(TrainerCallback):
    """Writes the Trainer's metrics to our log: log.jsonl and the terminal."""

    def __init__(self, log: Log, done: Callable[[], float]):
        self.log, self.done, self.loss = log, done, float("nan")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.log.advance(self.done(), state.global_step, self.loss)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
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
