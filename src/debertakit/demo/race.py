"""Pretrain a tiny DeBERTa and a BERT of the same size from scratch, one step of each in turn.

Both get the same tokenizer, batches, masks, optimiser, schedule and number of steps, so a busy machine slows both
alike. "BERT" is the model of the recipe ``tiny-absolute``: the same encoder with absolute positions added to the input
and plain content attention. Its learning rate is half of DeBERTa's; neither rate has been tuned for the masking rate of
40 % that both train with.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives.base import Context, masked_view
from debertakit.padding import PackedInput
from debertakit.pretraining import distributed
from debertakit.pretraining.loop import evaluate, make_run, train_step
from debertakit.pretraining.recipes.ablations import tiny_absolute
from debertakit.pretraining.recipes.deberta import tiny
from debertakit.pretraining.settings import PretrainConfig
from debertakit.protocols import Tokenizer
from debertakit.text.corpus import Corpus
from debertakit.text.masking import Masking
from debertakit.text.packing import PackedBatch, Packing
from debertakit.text.progress import ProgressBar

EVALUATE_EVERY = 40  # steps


@dataclass(frozen=True)
class Accuracy:
    top1: float
    top5: float


@dataclass
class Racer:
    model: DebertaForMaskedLM
    curve: list[tuple[float, float]] = field(default_factory=list)
    """(step, validation loss with 15 % token masks)"""


def contestants(minutes: float) -> dict[str, PretrainConfig]:
    """Recipes of both models. They differ only in positions and learning rate."""
    base = tiny()
    data = replace(base.data, vocab_size=4096)
    deberta = replace(base, name="DeBERTa", minutes=minutes, steps=1_000_000, data=data, evaluate_tokens=1 << 14)
    slower = replace(base.optimizer, lr=base.optimizer.lr / 2)
    bert = replace(deberta, name="BERT", model=tiny_absolute().model, optimizer=slower)
    return {"DeBERTa": deberta, "BERT": bert}


def race(configs: dict[str, PretrainConfig], corpus: Corpus, tokenizer: Tokenizer) -> dict[str, Racer]:
    """Train all models for the minutes of their config, all together. They take the same number of steps."""
    world = distributed.start("ddp")
    runs = {name: make_run(config, corpus, tokenizer, world) for name, config in configs.items()}
    racers: dict[str, Racer] = {}
    for name, run in runs.items():
        assert isinstance(run.module.model, DebertaForMaskedLM)
        racers[name] = Racer(run.module.model)
    first, *_ = runs.values()
    seconds = 60 * (first.config.minutes or 0)
    began = time.monotonic()
    with ProgressBar("training both", "steps", int(seconds)) as progress:
        while first.done < 1:
            elapsed = time.monotonic() - began  # one clock for both schedules
            for run in runs.values():
                train_step(run, elapsed)
            progress.show(first.progress.step, int(elapsed))
            if first.progress.step % EVALUATE_EVERY == 0 or first.done >= 1:
                for name, run in runs.items():
                    racers[name].curve.append((run.progress.step, evaluate(run)["token_mask_loss"]))
    for racer in racers.values():
        racer.model.cpu().eval()
    return racers


def held_out(corpus: Corpus, config: PretrainConfig) -> tuple[list[PackedBatch], Context]:
    """Held-out documents, and the masks for them."""
    data = config.data
    batches = Packing(corpus.validation, data.max_length, data.step_tokens, 0, data.mode).once(1 << 15)
    return batches, Context(corpus.validation, Masking("token"), seed=1)


@torch.inference_mode()
def mask_accuracy(model: DebertaForMaskedLM, batches: list[PackedBatch], context: Context) -> Accuracy:
    right = [
        model.predict(packed, rows).topk(5).indices == targets[:, None]
        for packed, rows, targets in _masked(batches, context)
    ]
    found = torch.cat(right).double()  # [masked words, 5]
    return Accuracy(found[:, 0].mean().item(), found.sum(1).mean().item())


def unigram_accuracy(corpus: Corpus, batches: list[PackedBatch], context: Context) -> Accuracy:
    """Accuracy of always predicting the most frequent words of the training text."""
    best = np.argsort(-corpus.train.token_counts())[:5]
    targets = torch.cat([targets for _, _, targets in _masked(batches, context)]).numpy()
    return Accuracy(float((targets == best[0]).mean()), float(np.isin(targets, best).mean()))


def _masked(batches: list[PackedBatch], context: Context) -> Iterator[tuple[PackedInput, Tensor, Tensor]]:
    """Yield each batch with masks, the rows of the masked words, and the words."""
    for batch in batches:
        view = masked_view(batch, context, 0.0)
        assert view.masked is not None
        rows, targets = torch.from_numpy(view.masked.positions), torch.from_numpy(view.masked.targets)
        yield view.packed(), rows.long(), targets.long()
