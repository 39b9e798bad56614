"""Train an encoder-decoder on text pairs with the HF Trainer.

    loss = mean over target tokens of  (1 - s) * -ln p(token)  +  s * mean over the vocabulary of -ln p
    lr   = peak * min(1, (step + 1) / warm-up) * (1 - p)

where s is the label smoothing and p the completed share of the steps, or of the minutes if the run has a time limit.
A step is a batch of pairs of similar length, filled up to a budget of source and target tokens. With several processes,
each process gets its share of the budget. The pairs in a step depend only on (seed, epoch, step).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import Dataset, Sampler
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from debertakit.data.pairs import Pair
from debertakit.finetuning.options import Seq2SeqOptions
from debertakit.finetuning.runs import world_size
from debertakit.finetuning.trainer import Batch, RunTrainer, training_arguments
from debertakit.model import IGNORED
from debertakit.precision import autocast
from debertakit.protocols import Tokenizer

NO_LIMIT = 10**9
"""Steps of a run that ends after some minutes."""


@dataclass(frozen=True)
class PairRow:
    source: list[int]
    labels: list[int]
    """Target tokens without [CLS], which is given and not predicted."""

    @property
    def tokens(self) -> int:
        return len(self.source) + len(self.labels)


class PairRows(Dataset[list[PairRow]]):
    """Encoded pairs. An item is a batch: the rows at a list of indices."""

    def __init__(self, rows: Sequence[PairRow]):
        self.rows = rows

    @classmethod
    def encode(cls, pairs: Sequence[Pair], tokenizer: Tokenizer, options: Seq2SeqOptions) -> "PairRows":
        def ids(texts: list[str], longest: int) -> list[list[int]]:
            return tokenizer(texts, truncation=True, max_length=longest)["input_ids"]

        sources = ids([pair.source for pair in pairs], options.max_source)
        targets = ids([pair.target for pair in pairs], options.max_target)
        return cls([PairRow(source, target[1:]) for source, target in zip(sources, targets, strict=True)])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: list[int]) -> list[PairRow]:
        return [self.rows[i] for i in indices]


class BudgetBatches(Sampler[list[int]]):
    """Batches of pairs of similar length, up to ``budget`` tokens. Every pair comes once per epoch."""

    def __init__(self, sizes: Sequence[int], budget: int, seed: int):
        self.sizes, self.seed, self.epoch = np.asarray(sizes), seed, 0
        ends = np.cumsum(np.sort(self.sizes))
        cuts = np.searchsorted(ends, np.arange(budget, ends[-1], budget), side="right")
        self.cuts = np.setdiff1d(cuts, [0])  # a pair longer than the budget is a batch of its own

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.cuts) + 1

    def __iter__(self) -> Iterator[list[int]]:
        draw = np.random.default_rng((self.seed, self.epoch))
        shuffled = draw.permutation(len(self.sizes))
        by_size = shuffled[np.argsort(self.sizes[shuffled], kind="stable")]
        batches = np.split(by_size, self.cuts)
        return iter([batches[i].tolist() for i in draw.permutation(len(batches))])


class PairCollator:
    """Pads one batch of rows. The DataLoader passes it as a list with one item."""

    def __init__(self, pad: int):
        self.pad = pad

    def __call__(self, batches: Sequence[Sequence[PairRow]]) -> Batch:
        rows = [row for batch in batches for row in batch]
        sources = [torch.tensor(row.source) for row in rows]
        return {
            "input_ids": pad_sequence(sources, batch_first=True, padding_value=self.pad),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in sources], batch_first=True),
            "labels": pad_sequence([torch.tensor(row.labels) for row in rows], batch_first=True, padding_value=IGNORED),
        }


class Seq2SeqTrainer(RunTrainer):
    """Accepts our encoder-decoder and those of transformers."""

    lr_scheduler: LRScheduler | None

    def __init__(
        self,
        model: PreTrainedModel,
        rows: PairRows,
        dev: PairRows,
        tokenizer: Tokenizer,
        options: Seq2SeqOptions,
        seed: int,
        folder: Path,
    ):
        self.options = options
        self.order = BudgetBatches([row.tokens for row in rows.rows], options.step_tokens // world_size() or 1, seed)
        self.steps = NO_LIMIT
        if options.minutes is None:
            self.steps = max(1, math.ceil(options.epochs * math.ceil(len(self.order) / world_size())))
        elif world_size() > 1:
            raise ValueError("minutes works in one process only; with torchrun, use --epochs")
        every = min(options.evaluate_every, self.steps)
        args = training_arguments(
            folder,
            seed,
            every,
            max_steps=self.steps,
            learning_rate=options.lr,
            per_device_train_batch_size=1,  # an item is a batch
            weight_decay=options.weight_decay,
            adam_beta2=0.98,
            metric_for_best_model="loss",
            greater_is_better=False,
            logging_steps=max(1, min(100, every // 10)),
        )
        stop = [EarlyStoppingCallback(options.early_stopping)] if options.early_stopping else []
        collate = PairCollator(tokenizer.pad_token_id)
        super().__init__(
            model, args, rows, collate, self.dev_figures, precision=options.precision, callbacks=[LastStep(self), *stop]
        )
        self.dev = dev

    def _get_train_sampler(self, train_dataset: object = None) -> Sampler[list[int]]:
        return self.order

    def done(self) -> float:
        return self.state.global_step if self.options.minutes is None else self.elapsed

    @property
    def total(self) -> float:
        """Length of the run, in steps or seconds."""
        return self.steps if self.options.minutes is None else 60 * self.options.minutes

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        if self.lr_scheduler is None:
            warmup = warmup_steps(self.options, self.steps)

            def factor(step: int) -> float:
                done = step if self.options.minutes is None else self.elapsed
                return min(1.0, (step + 1) / warmup) * max(0.0, 1 - done / self.total)

            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        labels = inputs["labels"]
        decoder_ids = self.model.prepare_decoder_input_ids_from_labels(labels)
        with autocast(self.precision, self.args.device):
            logits = labelled_logits(model, inputs, decoder_ids)
        smoothing = self.options.label_smoothing
        total = F.cross_entropy(logits.float(), labels[labels != IGNORED], reduction="sum", label_smoothing=smoothing)
        loss = self.mean(total, labels, num_items_in_batch)
        return (loss, {"logits": logits}) if return_outputs else loss

    @torch.inference_mode()
    def dev_figures(self) -> dict[str, float]:
        """Mean dev loss over target tokens, in fp32 and without label smoothing, and its perplexity."""
        model = self.model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.args.device)  # loss, tokens
        batches = list(BudgetBatches([row.tokens for row in self.dev.rows], self.options.step_tokens, 0))
        for indices in batches[self.args.process_index :: self.args.world_size]:
            inputs = self._prepare_inputs(self.data_collator([self.dev[indices]]))
            labels = inputs["labels"]
            logits = labelled_logits(model, inputs, model.prepare_decoder_input_ids_from_labels(labels)).float()
            targets = labels[labels != IGNORED]
            sums += torch.tensor([F.cross_entropy(logits, targets, reduction="sum").item(), len(targets)]).to(sums)
        loss, tokens = self.accelerator.reduce(sums).tolist()
        return {"loss": loss / tokens, "perplexity": math.exp(min(loss / tokens, 50))}


class LastStep(TrainerCallback):
    """Evaluates and saves the last step, and ends a run whose minutes are over."""

    def __init__(self, trainer: Seq2SeqTrainer):
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # With several processes, the Trainer does not set the epoch of the order when it resumes within an epoch.
        self.trainer.order.set_epoch(int(state.epoch or 0))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.trainer.done() >= self.trainer.total:
            control.should_log = control.should_evaluate = control.should_save = control.should_training_stop = True


def labelled_logits(model: nn.Module, inputs: Batch, decoder_ids: Tensor) -> Tensor:
    """Logits of the labelled tokens: [labelled tokens, vocabulary]."""
    wanted = inputs["labels"] != IGNORED
    logits = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        decoder_input_ids=decoder_ids,
        decoder_attention_mask=wanted.long(),
    ).logits
    return logits[wanted]


def warmup_steps(options: Seq2SeqOptions, steps: int) -> float:
    """Warm-up in steps, at least 1."""
    warmup = options.warmup * steps if options.warmup < 1 else options.warmup
    return max(1.0, warmup if options.minutes is not None else min(warmup, math.ceil(steps / 10)))
