"""The pretraining loop.

    prepare the parts of step s       batch (seed, step) -> corrupted views              text/packing.py, objectives/
    in each phase of the step:
      forward, backward, accumulate   loss = sum of weighted terms / terms of the step   objectives/joint.py, rtd.py
      clip, AdamW                                                                        training/optim.py
    periodically: log, evaluate, write a checkpoint                                      training/log.py, state.py

A step is a pure function of the state and the step number, so a resumed run computes exactly what the uninterrupted
run does (with the same precision and number of processes).
"""

import math
import random
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from debertakit.files import write_text
from debertakit.objectives.base import Context
from debertakit.objectives.training_module import Part, TrainingModule
from debertakit.precision import Resolved, autocast, precision_line, resolve_precision
from debertakit.pretraining import continued, distributed, report, settings, state
from debertakit.pretraining.distributed import World
from debertakit.pretraining.models import make_models, make_module
from debertakit.pretraining.settings import PretrainConfig
from debertakit.pretraining.state import Progress
from debertakit.protocols import Tokenizer
from debertakit.text.packing import Packing
from debertakit.text.shards import Corpus
from debertakit.training.log import Log
from debertakit.training.optim import clip_gradients, learning_rate, make_optimizer


class Diverged(ValueError):
    """Too many consecutive steps with a non-finite loss or gradient."""


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

    @property
    def done(self) -> float:
        """Completed fraction of the run."""
        if self.config.minutes is not None:
            return self.progress.elapsed / (60 * self.config.minutes)
        return self.progress.step / self.config.steps

    def autocast(self) -> AbstractContextManager[object]:
        return autocast(self.precision, self.world.device)


def start(config: PretrainConfig, folder: Path, resume: bool) -> World:
    """Join the other processes of the run. Raise if the folder has checkpoints and ``resume`` is False."""
    if not resume and any((folder / "checkpoints").glob("step-*")):
        raise ValueError(f"{folder} already contains a run. Use --resume to continue it, or choose another --out.")
    return distributed.start(config.parallel)


def pretrain(
    config: PretrainConfig,
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    resume: bool = False,
    world: World | None = None,
) -> dict[str, float]:
    """Train, and write a model to ``out`` that transformers can load. Returns the last validation metrics.

    ``world``: the result of ``start``, if it was called already.
    """
    folder = Path(out)
    checkpoints = folder / "checkpoints"
    world = start(config, folder, resume) if world is None else world
    config = replace(config, precision=_precision(folder, config, world, resume))
    found = world.gather(state.newest(checkpoints) if resume and world.main else None)[0]
    run = make_run(config, corpus, tokenizer, world, fresh=found is None)
    world.barrier()
    if world.main:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "run.json", config.to_json())
    if found is not None:
        run.progress = state.load(found[1], run.module, run.optimizer, world)
    log = None
    if world.main:
        print(precision_line(run.precision, world.device), file=sys.stderr)
        total, unit = (config.steps, "steps") if config.minutes is None else (60 * config.minutes, "seconds")
        log = Log(folder, config.tracker, total, unit, run.progress.step)
    try:
        metrics = _train(run, checkpoints, tokenizer, log)
    finally:
        if log is not None:
            log.close()
    if world.main:
        newest = state.newest(checkpoints)
        assert newest is not None  # written at the end of _train
        report.finish(folder, newest[1], config, run.progress, metrics, corpus, run.module)
    world.barrier()
    distributed.stop(world)
    return metrics


def _train(run: Run, checkpoints: Path, tokenizer: Tokenizer, log: Log | None) -> dict[str, float]:
    config, progress = run.config, run.progress
    began, before = time.monotonic(), progress.elapsed
    window = Window()
    metrics: dict[str, float] = {}

    def save_checkpoint() -> None:
        state.save(checkpoints, run.module, run.optimizer, progress, run.world, tokenizer)
        if run.world.main:
            state.prune(checkpoints, config.keep_last)

    if run.done >= 1:  # resumed a finished run
        metrics = evaluate(run)
    while run.done < 1:
        result = train_step(run, before + time.monotonic() - began)
        if progress.bad_steps >= config.max_bad_steps:
            # Weights and data position are those of the last good step. (If only the later phases of the steps failed,
            # the updates of the earlier phases are kept, which does no harm.)
            progress.step -= progress.bad_steps
            save_checkpoint()
            raise Diverged(
                f"loss or gradient was not finite for {progress.bad_steps} consecutive steps. Saved step "
                f"{progress.step} and stopped; resume with a lower learning rate: --resume --set optimizer.lr=..."
            )
        window.add(result)
        last = run.done >= 1
        step = progress.step
        if log is not None:
            log.advance(step if config.minutes is None else progress.elapsed, step, result["loss"])
            if step % config.log_every == 0 or last:
                log.write("train", step, **window.means(), lr=result["lr"])
        if step % config.evaluate_every == 0 or last:
            metrics = evaluate(run)
            if log is not None and metrics:
                log.write("validation", step, **metrics, elapsed=progress.elapsed)
        # No checkpoint during bad steps: if they continue, the run returns to the state before them.
        if (step % config.checkpoint_every == 0 and not progress.bad_steps) or last:
            save_checkpoint()
    return metrics


def train_step(run: Run, elapsed: float) -> dict[str, float]:
    """Run one training step. ``elapsed``: seconds of the run before this step."""
    config, world, progress = run.config, run.world, run.progress
    parts_in_step = config.data.parts(world.size)
    own = parts_in_step // world.size
    first = world.rank * own
    batches = [run.packing.batch(progress.step, first + i, parts_in_step) for i in range(own)]
    parts = [run.module.prepare(batch, run.context, run.done).to(world.device) for batch in batches]
    counts = [sum(values) for values in zip(*(part.counts() for part in parts), strict=True)]
    tokens = sum(part.tokens for part in parts)
    totals = world.sum(torch.tensor([*counts, tokens, elapsed if world.main else 0.0], dtype=torch.float64))
    lr = learning_rate(config.optimizer, progress.step, run.done)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    terms, norms = totals[:-2], []
    sums = torch.zeros(len(terms), dtype=torch.float64)
    for phase in run.module.phases(progress.step):
        sums += _backward(run, parts, terms.float().to(world.device), phase)
        norms.append(float(clip_gradients(run.module, config.optimizer.clip)))
        good = bool(sums.isfinite().all()) and math.isfinite(norms[-1])
        if good:
            run.optimizer.step()  # updates only parameters with a gradient in this phase
        run.optimizer.zero_grad(set_to_none=True)
        if not good:
            break
    progress.bad_steps = 0 if good else progress.bad_steps + 1
    means, norm = (sums / terms.clamp(min=1)).tolist(), math.hypot(*norms)
    loss = sum(weight * mean for weight, mean in zip(run.module.weights.values(), means, strict=True))
    progress.step += 1
    progress.tokens += int(totals[-2])
    progress.elapsed = float(totals[-1])
    each = {name: mean for name, mean in zip(run.module.weights, means, strict=True) if len(means) > 1}
    return {"loss": loss, **each, "grad_norm": norm, "tokens": float(totals[-2]), "lr": lr}


def _backward(run: Run, parts: list[Part], totals: Tensor, phase: str) -> Tensor:
    """Accumulate the gradients of all parts. Returns the summed losses of the whole step, [objectives]."""
    run.wrapped.train()
    sums = torch.zeros(len(totals), dtype=torch.float64)
    for number, part in enumerate(parts):
        with distributed.gradient_sync(run.wrapped, enabled=number == len(parts) - 1):
            with run.autocast():
                loss, results = run.wrapped(part, totals, phase)
            (loss * run.world.size).backward()  # ranks average gradients, but the loss is a sum over ranks
        sums += results[:, 0].double().cpu()
    return run.world.sum(sums)


@torch.no_grad()
def evaluate(run: Run) -> dict[str, float]:
    """Compute the validation metrics of every loss on held-out text, always with the same masks."""
    if run.validation is None:
        return {}
    packing, world = run.validation, run.world
    steps = max(1, min(run.config.evaluate_tokens, packing.epoch_tokens) // packing.step_tokens)
    run.wrapped.eval()
    ones = torch.ones(len(run.module.weights), device=world.device)
    sums = torch.zeros(len(run.module.weights), 3, dtype=torch.float64)
    parts: list[Part] = []
    for step in range(steps):
        batch = packing.batch(step, world.rank, world.size)
        part = run.module.prepare(batch, run.validation_context, 0.0).to(world.device)
        with run.autocast():
            _, results = run.wrapped(part, ones)
        parts.append(part)
        sums += torch.cat([results.double().cpu(), torch.tensor(part.counts(), dtype=torch.float64)[:, None]], 1)
    loss_sum, correct, count = world.sum(sums).clamp(min=0).unbind(1)
    losses, accuracies = (loss_sum / count.clamp(min=1)).tolist(), (correct / count.clamp(min=1)).tolist()
    weights = run.module.weights
    metrics = {"loss": sum(w * value for w, value in zip(weights.values(), losses, strict=True))}
    for name, loss, accuracy in zip(weights, losses, accuracies, strict=True):
        prefix = "" if len(weights) == 1 else f"{name}_"
        metrics |= {f"{prefix}{key}": value for key, value in run.module.metrics(name, loss, accuracy).items()}
    run.progress.validation = metrics["loss"]
    return metrics | run.module.extra_metrics(parts, world.gather)


# ------------------------------------------------------------------------------------------------------- setting up


def make_run(config: PretrainConfig, corpus: Corpus, tokenizer: Tokenizer, world: World, *, fresh: bool = True) -> Run:
    """Build a run at step 0. If not ``fresh``, the weights will be loaded from a checkpoint of the run."""
    _seed(config.seed)
    models = make_models(config, tokenizer)
    init = config.init if fresh else None
    if init is not None:
        summary = continued.load(models, init, config.init_generator)
        if world.main:
            print(summary, file=sys.stderr)
    module = make_module(config, models, corpus.train, new=init is None)
    for half, name in ((corpus.train, "training"), (corpus.validation, "validation")):
        module.check_corpus(half, name, config.data.max_length)
    if config.gradient_checkpointing:
        for model in models:
            model.gradient_checkpointing_enable()
    wrapped = distributed.wrap_distributed(module, world)
    if config.compile:
        for layer in distributed.layers(module):
            layer.compile(dynamic=True)  # packed batches differ in length
    optimizer = make_optimizer(module, config.optimizer, fused=not world.sharded)
    _seed(config.seed + 1 + world.rank)  # dropout differs between ranks
    data = config.data
    packing = Packing(corpus.train, data.max_length, data.step_tokens, config.seed, data.mode)
    validation = None
    if corpus.validation.tokens:
        validation = Packing(corpus.validation, data.max_length, 1, 0, data.mode)
        tokens = min(world.size * data.micro_tokens, max(validation.epoch_tokens, world.size * data.max_length))
        validation.step_tokens = tokens
    context = Context(corpus.train, config.masking, config.seed)
    # the same seed for all runs makes them comparable
    validation_context = Context(corpus.validation, config.masking, 0)
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
    )


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _precision(folder: Path, config: PretrainConfig, world: World, resume: bool) -> Resolved:
    """Choose one precision for all ranks, on the main process: the machines of a run may differ."""
    path = folder / "run.json"
    recorded = settings.load(path).precision if world.main and resume and path.exists() else None
    recorded = world.gather(recorded)[0]
    return world.gather(resolve_precision(config.precision, world.device, recorded))[0]


class Window:
    """Mean metrics over the steps since the last log line."""

    def __init__(self) -> None:
        self.results: list[dict[str, float]] = []
        self.began = time.monotonic()

    def add(self, result: dict[str, float]) -> None:
        self.results.append(result)

    def means(self) -> dict[str, float]:
        """Compute the means and start the next window."""
        now = time.monotonic()
        names = [name for name in self.results[0] if name not in ("tokens", "lr")]
        means = {name: sum(r[name] for r in self.results) / len(self.results) for name in names}
        means["tokens_per_second"] = sum(r["tokens"] for r in self.results) / max(now - self.began, 1e-9)
        self.results, self.began = [], now
        return means
