"""The pretraining loop.

    prepare the parts of step s       batch (seed, step) -> corrupted views              text/packing.py, objectives/
    in each phase of the step:
      forward, backward, accumulate   loss = sum of weighted terms / terms of the step   objectives/joint.py, rtd.py
      clip, AdamW (fp16: with a scaled loss, see precision.py)                           training/optim.py
    periodically: log, evaluate, write a checkpoint                                      training/log.py, state.py

A step is a pure function of the state and the step number, so a resumed run computes exactly what the uninterrupted
run does (with the same precision and number of processes).
"""

import math
import random
import signal
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from debertakit.files import write_text
from debertakit.objectives import DISTILLATION
from debertakit.objectives.base import Context
from debertakit.objectives.teacher import Teacher
from debertakit.objectives.training_module import Part, TrainingModule
from debertakit.precision import Resolved, autocast, make_scaler, precision_line, resolve_precision
from debertakit.pretraining import continued, distributed, report, settings, state
from debertakit.pretraining.distributed import World
from debertakit.pretraining.models import make_models, make_module, unigram_bias
from debertakit.pretraining.settings import PretrainConfig
from debertakit.pretraining.state import Progress
from debertakit.protocols import Tokenizer
from debertakit.text.masking import Masking, relative_information
from debertakit.text.packing import Packing
from debertakit.text.shards import Corpus
from debertakit.training import signals
from debertakit.training.log import Log
from debertakit.training.optim import clip_gradients, learning_rate, make_optimizer
from debertakit.training.ranks import naming_lost_ranks
from debertakit.training.sharding import layers


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
    with naming_lost_ranks():
        world = start(config, folder, resume) if world is None else world
        metrics = _pretrain(config, corpus, tokenizer, folder, checkpoints, resume, world)
    distributed.stop(world)
    return metrics


def _pretrain(
    config: PretrainConfig,
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    checkpoints: Path,
    resume: bool,
    world: World,
) -> dict[str, float]:
    config = replace(config, precision=_precision(folder, config, world, resume))
    if world.main:
        state.remove_unfinished(checkpoints)
    found = _find_checkpoint(config, folder, checkpoints, world) if resume else None
    run = make_run(config, corpus, tokenizer, world, fresh=found is None)
    if found is not None:
        run.progress = state.load(found, run.module, run.optimizer, world)
        if run.progress.scaler:
            run.scaler.load_state_dict(run.progress.scaler)
    world.barrier()
    log = None
    if world.main:
        folder.mkdir(parents=True, exist_ok=True)
        print(precision_line(run.precision, world.device), file=sys.stderr)
        total, unit = (config.steps, "steps") if config.minutes is None else (60 * config.minutes, "seconds")
        log = Log(folder, config.tracker, total, unit, run.progress.step)
        write_text(folder / state.CONFIG, config.to_json())  # only now: everything that the config asks for works
    try:
        with signals.deferred():
            metrics = _train(run, checkpoints, tokenizer, log)
    finally:
        if log is not None:
            log.close()
    if world.main:
        newest = state.newest(checkpoints)
        if newest is None or newest[0] != run.progress.step:
            raise OSError(
                f"the last checkpoint in {checkpoints} was damaged after it was written; repeat with --resume"
            )
        report.finish(folder, newest[1], config, run.progress, metrics, corpus, run.module)
    world.barrier()
    return metrics


def _find_checkpoint(config: PretrainConfig, folder: Path, checkpoints: Path, world: World) -> Path | None:
    """Find the newest intact checkpoint, and check that ``config`` may continue it."""
    found = world.gather(state.newest(checkpoints) if world.main else None)[0]
    if found is None:
        if state.has_checkpoints(checkpoints):
            raise ValueError(
                f"every checkpoint in {checkpoints} is damaged, so the run cannot resume. Restore one from a backup, "
                "or start a new run in another --out."
            )
        return None
    recorded = found[1] / state.CONFIG
    if not recorded.exists():  # a checkpoint of version 1
        recorded = folder / state.CONFIG
    changes = settings.check_resumed(settings.load(recorded), config, folder) if recorded.exists() else []
    if world.main and changes:
        print("\n".join(changes), file=sys.stderr)
    return found[1]


def _train(run: Run, checkpoints: Path, tokenizer: Tokenizer, log: Log | None) -> dict[str, float]:
    config, progress = run.config, run.progress
    began, before = time.monotonic(), progress.elapsed
    window = Window()
    metrics: dict[str, float] = {}
    good = replace(progress)  # the last step without a skipped update
    saved = progress.step

    def save_checkpoint() -> None:
        nonlocal saved
        progress.scaler = run.scaler.state_dict()
        state.save(checkpoints, run.module, run.optimizer, progress, run.world, tokenizer, config.to_json())
        saved = progress.step
        if run.world.main:
            state.prune(checkpoints, config.keep_last)

    if run.done >= 1:  # resumed a finished run
        metrics = evaluate(run)
    while run.done < 1:
        result = train_step(run, before + time.monotonic() - began)
        if progress.bad_steps >= config.max_bad_steps:
            # Weights and data position are those of the last good step. (If only the later phases of the steps failed,
            # the updates of the earlier phases are kept, which does no harm.)
            bad, run.progress = progress.bad_steps, good
            progress = good
            if saved != progress.step or not saved:
                save_checkpoint()
            raise Diverged(
                f"loss or gradient was not finite for {bad} consecutive steps. Saved step "
                f"{progress.step} and stopped; resume with a lower learning rate: --resume --set optimizer.lr=..."
            )
        if not progress.bad_steps:
            good = replace(progress)
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
        if ((step % config.checkpoint_every == 0 or run.stopping) and not progress.bad_steps) or last:
            save_checkpoint()
        if run.stopping:
            kept = f" after step {step}; step {saved} is saved" if saved else f" after step {step}; no step is saved"
            raise signals.Stopped(signals.received() or signal.SIGTERM, kept)
    return metrics


def train_step(run: Run, elapsed: float) -> dict[str, float]:
    """Run one training step. ``elapsed``: seconds of the run before this step."""
    config, world, progress = run.config, run.world, run.progress
    parts_in_step = config.data.parts(world.size)
    own = parts_in_step // world.size
    first = world.rank * own
    length = config.data.length_at(run.done)
    if run.packing.max_length != length:
        run.packing = replace(run.packing, max_length=length)
    batches = [run.packing.batch(progress.step, first + i, parts_in_step) for i in range(own)]
    parts = [run.module.prepare(batch, run.context, run.done).to(world.device) for batch in batches]
    counts = [sum(values) for values in zip(*(part.counts() for part in parts), strict=True)]
    tokens = sum(part.tokens for part in parts)
    shared = [*counts, tokens, elapsed if world.main else 0.0, signals.received() is not None]
    totals = world.sum(torch.tensor(shared, dtype=torch.float64))
    run.stopping = bool(totals[-1])  # every rank stops after the same step
    lr = learning_rate(config.optimizer, progress.step, run.done)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    terms, norms = totals[:-3], []
    sums = torch.zeros(len(terms), dtype=torch.float64)
    for phase in run.module.phases(progress.step):
        sums += _backward(run, parts, terms.float().to(world.device), phase)
        run.scaler.unscale_(run.optimizer)
        norms.append(float(clip_gradients(run.module, config.optimizer.clip)))
        good = bool(sums.isfinite().all()) and math.isfinite(norms[-1])
        if good:
            run.optimizer.step()  # updates only parameters with a gradient in this phase
        run.scaler.update()  # after an overflow: half the scale
        run.optimizer.zero_grad(set_to_none=True)
        if not good:
            break
    progress.bad_steps = 0 if good else progress.bad_steps + 1
    means, norm = (sums / terms.clamp(min=1)).tolist(), math.hypot(*norms)
    loss = sum(weight * mean for weight, mean in zip(run.module.weights.values(), means, strict=True))
    progress.step += 1
    progress.tokens += int(totals[-3])
    progress.elapsed = float(totals[-2])
    each = {name: mean for name, mean in zip(run.module.weights, means, strict=True) if len(means) > 1}
    return {"loss": loss, **each, "grad_norm": norm, "tokens": float(totals[-3]), "lr": lr}


def _backward(run: Run, parts: list[Part], totals: Tensor, phase: str) -> Tensor:
    """Accumulate the gradients of all parts. Returns the summed losses of the whole step, [objectives]."""
    run.wrapped.train()
    sums = torch.zeros(len(totals), dtype=torch.float64)
    for number, part in enumerate(parts):
        with distributed.gradient_sync(run.wrapped, enabled=number == len(parts) - 1):
            with run.autocast():
                loss, results = run.wrapped(part, totals, phase)
            # ranks average gradients, but the loss is a sum over ranks
            run.scaler.scale(loss * run.world.size).backward()
        sums += results[:, 0].double().cpu()
    return run.world.sum(sums)


@torch.no_grad()
def evaluate(run: Run) -> dict[str, float]:
    """Compute the validation metrics of every loss on held-out text, always with the same masks.

    Losses under different masks do not compare. If the run has other masks than 15 % of the single tokens, the masked
    LM is evaluated with those too.
    """
    if run.validation is None:
        return {}
    metrics, parts = _validate(run, run.validation, run.validation_context)
    run.progress.validation = metrics["loss"]
    metrics |= run.module.extra_metrics(parts, run.world.gather)
    standard = replace(run.validation_context, masking=Masking("token"))
    if "mlm" in run.module.weights and standard != run.validation_context:
        found, _ = _validate(run, run.validation, standard, phase="generator")
        prefix = "" if len(run.module.weights) == 1 else "mlm_"
        metrics |= {f"token_mask_{key}": found[f"{prefix}{key}"] for key in ("loss", "accuracy")}
    return metrics


def _validate(run: Run, packing: Packing, context: Context, phase: str = "all") -> tuple[dict[str, float], list[Part]]:
    """Compute the metrics with the masks of ``context``. Returns them and the parts, which hold RTD's predictions."""
    world = run.world
    steps = max(1, min(run.config.evaluate_tokens, packing.epoch_tokens) // packing.step_tokens)
    run.wrapped.eval()
    ones = torch.ones(len(run.module.weights), device=world.device)
    sums = torch.zeros(len(run.module.weights), 3, dtype=torch.float64)
    parts: list[Part] = []
    for step in range(steps):
        batch = packing.batch(step, world.rank, world.size)
        part = run.module.prepare(batch, context, 0.0).to(world.device)
        with run.autocast():
            _, results = run.wrapped(part, ones, phase)
        parts.append(part)
        sums += torch.cat([results.double().cpu(), torch.tensor(part.counts(), dtype=torch.float64)[:, None]], 1)
    loss_sum, correct, count = world.sum(sums).clamp(min=0).unbind(1)
    losses, accuracies = (loss_sum / count.clamp(min=1)).tolist(), (correct / count.clamp(min=1)).tolist()
    weights = run.module.weights
    metrics = {"loss": sum(w * value for w, value in zip(weights.values(), losses, strict=True))}
    for name, loss, accuracy in zip(weights, losses, accuracies, strict=True):
        prefix = "" if len(weights) == 1 else f"{name}_"
        metrics |= {f"{prefix}{key}": value for key, value in run.module.metrics(name, loss, accuracy).items()}
    return metrics, parts


# ------------------------------------------------------------------------------------------------------- setting up


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
