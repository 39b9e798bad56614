"""Build a pretraining run: models, data, optimizer and progress."""

import random
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from debertakit.objectives import DISTILLATION
from debertakit.objectives.base import Context
from debertakit.objectives.teacher import Teacher
from debertakit.objectives.training_module import TrainingModule
from debertakit.precision import Resolved, autocast, make_scaler, resolve_precision
from debertakit.pretraining import continued, distributed
from debertakit.pretraining.distributed import World
from debertakit.pretraining.models import make_models, make_module, unigram_bias
from debertakit.pretraining.settings import PretrainConfig
from debertakit.pretraining.state import Progress
from debertakit.protocols import Tokenizer
from debertakit.text.masking import relative_information
from debertakit.text.packing import Packing
from debertakit.text.shards import Corpus
from debertakit.training.optim import make_optimizer
from debertakit.training.sharding import layers


@dataclass
class Run:
    config: PretrainConfig
    world: World
    module: TrainingModule
    wrapped: nn.Module
    """The module to call: ``module``, or DDP around it."""
    optimizer: torch.optim.Optimizer
    packing: Packing
    context: Context
    validation: Packing | None
    validation_context: Context
    progress: Progress
    precision: Resolved
    scaler: torch.amp.GradScaler
    stopping: bool = False
    """Whether any rank has received SIGINT or SIGTERM; the same on all ranks."""

    @property
    def done(self) -> float:
        """Completed fraction of the run."""
        if self.config.minutes is not None:
            return self.progress.elapsed / (60 * self.config.minutes)
        return self.progress.step / self.config.steps

    def autocast(self) -> AbstractContextManager[object]:
        return autocast(self.precision, self.world.device)


def make_run(config: PretrainConfig, corpus: Corpus, tokenizer: Tokenizer, world: World, *, fresh: bool = True) -> Run:
    """Build a run at step 0. If not ``fresh``, the weights will be loaded from a checkpoint of the run."""
    _seed(config.seed)
    models = make_models(config, tokenizer)
    init = config.init if fresh else None
    if init is not None:
        lines = continued.load(models, init, config.init_generator, config.data.max_length)
        if world.main:
            print("\n".join(lines), file=sys.stderr)
    elif fresh and config.unigram_bias:
        unigram_bias(config, models, corpus.train)
    if config.teacher is not None and not any(name in config.objectives.weights for name in DISTILLATION):
        names = ", ".join(f"objectives.{name}" for name in DISTILLATION)
        raise ValueError(f"a run with a teacher needs one of {names}")
    teacher = None if config.teacher is None else Teacher.load(config.teacher, tokenizer)
    module = make_module(config, models, corpus.train, new=init is None, teacher=teacher)
    for half, name in ((corpus.train, "training"), (corpus.validation, "validation")):
        for length in {config.data.length_at(0.0), config.data.max_length}:
            module.check_corpus(half, name, length)
    if config.gradient_checkpointing:
        for model in models:
            model.gradient_checkpointing_enable()
    wrapped = distributed.wrap_distributed(module, world)
    if config.compile:
        for layer in layers(module):
            layer.compile(dynamic=True)  # packed batches differ in length
    optimizer = make_optimizer(module, config.optimizer, fused=not world.sharded)
    _seed(config.seed + 1 + world.rank)  # dropout differs between ranks
    data = config.data
    weights = data.weights()
    packing = Packing(corpus.train, data.length_at(0.0), data.step_tokens, config.seed, data.mode, weights=weights)
    validation = None
    if corpus.validation.tokens:
        validation = Packing(corpus.validation, data.max_length, 1, 0, data.mode, weights=weights)
        tokens = min(world.size * data.micro_tokens, max(validation.epoch_tokens, world.size * data.max_length))
        validation.step_tokens = tokens
    special = corpus.train.vocabulary["special"]
    information = relative_information(corpus.train.token_counts(), special) if config.masking.density else None
    context = Context(corpus.train, config.masking, config.seed, information)
    # The same seed for all runs makes them comparable. A scheduled rate is evaluated at its end.
    at_end = replace(config.masking, rate=config.masking.final_rate or config.masking.rate, final_rate=None)
    validation_context = Context(corpus.validation, at_end, 0, information)
    precision = resolve_precision(config.precision, world.device)
    return Run(
        config=config,
        world=world,
        module=module,
        wrapped=wrapped,
        optimizer=optimizer,
        packing=packing,
        context=context,
        validation=validation,
        validation_context=validation_context,
        progress=Progress(),
        precision=precision,
        scaler=make_scaler(precision, world.device),
    )


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
