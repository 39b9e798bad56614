"""Fine-tuning: train a pretrained model on task data.

    from debertakit import finetune
    result = finetune("my-deberta", train="train.csv", dev="dev.csv", text="a", label="y", out="run")
    print(result.scores)

runs.py describes the folder of a run. Translation and summarisation are in seq2seq.py.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import AutoModel, EarlyStoppingCallback, PreTrainedModel

from debertakit.config import DebertaConfig
from debertakit.data.examples import Example, Question, gold
from debertakit.data.folders import is_hub
from debertakit.files import temporary_path, write_json
from debertakit.finetuning import report
from debertakit.finetuning.evaluation import Evaluator, check_packages, read_benchmark, write_predictions
from debertakit.finetuning.hyperparameters import hyperparameters, model_size
from debertakit.finetuning.modes import Seeds
from debertakit.finetuning.options import FinetuneOptions, resolve_options
from debertakit.finetuning.parameters import add_lora, freeze_encoder
from debertakit.finetuning.runs import (
    Record,
    RunResult,
    check_folders,
    close_run,
    open_run,
    recorded_precision,
    run_seeds,
    seed_folders,
    world_size,
)
from debertakit.finetuning.sift import Sift
from debertakit.finetuning.trainer import FinetuneTrainer, sift_overhead, training_arguments
from debertakit.loading import TaskSettings, describe, load_config, load_for_training, longest_input
from debertakit.model import DebertaModel
from debertakit.precision import best_device, precision_line, resolve_precision
from debertakit.tasks import suites
from debertakit.tasks.batches import Collator
from debertakit.tasks.features import ExampleEncoder, Features, choose_length, find_labels, long_modes
from debertakit.tasks.losses import class_weights
from debertakit.tasks.metrics import find_best_threshold
from debertakit.tasks.own import own_task
from debertakit.tasks.task import Task

HELD_OUT = 0.1
"""Share of the training examples held out as a dev set if none is given, but at most MOST_HELD_OUT examples."""
MOST_HELD_OUT = 2000
COLUMNS = ("text", "pair", "label", "options", "separator")
Place = str | Path | None
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """Data and settings shared by all seeds."""

    model: str
    task: Task
    splits: dict[str, list[Example]]
    options: FinetuneOptions
    encoder: ExampleEncoder
    train: Features
    dev: Features
    source: Record = field(default_factory=dict)
    """Where the examples came from (``source_of``)."""

    def record(self, seed: int) -> Record:
        return {
            "model": self.model,
            "task": self.task.name,
            "kind": self.task.kind,
            "metric": self.task.metric,
            "labels": list(self.encoder.labels),
            "seed": seed,
            **self.source,
            "train_examples": len(self.splits["train"]),
            "dev_examples": len(self.splits["dev"]),
            **asdict(self.options),
        }


def finetune(
    model: str | Path,
    out: str | Path,
    *,
    task: str | Task | None = None,
    data: str | Path | None = None,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    seed: int = Seeds.seed,
    seeds: int = Seeds.seeds,
    resume: bool = False,
    **others: Any,
) -> RunResult:
    """Fine-tune ``model`` (a folder or hub name) on a benchmark (``task`` and ``data``) or on your own files.

    ``others``: column names (text, pair, label, ...; see ``own.own_task``) and fields of ``FinetuneOptions``.
    """
    check_packages(task)
    if world_size() > 1:
        raise ValueError("only translation and summarisation train in several processes; start this without torchrun")
    folder, folders = Path(out), seed_folders(Path(out), seed, seeds)
    names = set(FinetuneOptions.__dataclass_fields__)
    options = FinetuneOptions(**{key: value for key, value in others.items() if key in names})
    columns = {key: value for key, value in others.items() if key not in names}
    check_folders(folder, folders.values(), resume)
    precision = resolve_precision(options.precision, best_device(), recorded_precision(folders.values()))
    options = replace(options, precision=precision)
    task, splits = open_data(task, data, train, dev, columns)
    job = replace(prepare(str(model), task, splits, options), source=source_of(data, train, dev, columns))
    print(precision_line(precision, best_device()), file=sys.stderr)
    return run_seeds(folder, folders, job.record(seed), lambda number, each: run(job, number, each, resume))


def source_of(data: Place, train: Place, dev: Place, columns: dict[str, Any]) -> Record:
    """Data paths and column names for run.json."""

    def place(path: Place) -> str | None:
        return None if path is None else str(path) if is_hub(Path(path)) else str(Path(path).resolve())

    files = {"data": place(data), "train": place(train), "dev": place(dev)}
    return files | {name: columns.get(name) for name in COLUMNS}


def open_data(
    task: str | Task | None, data: Place, train: Place, dev: Place, columns: dict[str, Any]
) -> tuple[Task, dict[str, list[Example]]]:
    """Return the task and its splits, which include at least "train" and "dev"."""
    if (task is None) == (train is None):
        raise ValueError("pass either --task and --data, or --train FILE")
    if task is not None:
        if dev is not None:
            raise ValueError("dev is not an option for a benchmark, which has its own dev set")
        if columns:
            raise ValueError(f"unknown option for a benchmark: {', '.join(columns)} (columns are for your own files)")
        chosen = suites.task(task) if isinstance(task, str) else task
        splits = read_benchmark(chosen, data)
    else:
        assert train is not None
        if data is not None:
            raise ValueError("data is only for a benchmark; it cannot be combined with train")
        try:
            chosen = own_task(Path(train), Path(dev) if dev is not None else None, **columns)
        except TypeError as error:  # an unknown keyword
            raise ValueError(str(error).replace("own_task()", "finetune()")) from None
        splits = dict(chosen.read(Path()))
    if not splits.get("train"):
        raise ValueError(f"{data or train}: no training examples")
    if not splits.get("dev"):
        splits["train"], splits["dev"] = hold_out(splits["train"])
        print(f"no dev set: {len(splits['dev'])} examples of the training data are held out", file=sys.stderr)
    return chosen, splits


def hold_out(examples: Sequence[T]) -> tuple[list[T], list[T]]:
    """Split off a dev set. The split does not depend on the seed."""
    if len(examples) < 2:
        raise ValueError("cannot hold out a dev set from a single example; pass a dev set")
    count = max(1, min(int(HELD_OUT * len(examples)), MOST_HELD_OUT))
    chosen = set(np.random.default_rng(0).permutation(len(examples))[:count].tolist())
    return [e for i, e in enumerate(examples) if i not in chosen], [examples[i] for i in sorted(chosen)]


def prepare(model: str, task: Task, splits: dict[str, list[Example]], options: FinetuneOptions) -> Job:
    """Fill in unset options, choose the maximum length, and tokenise."""
    tokenizer = describe(model).tokenizer()
    labels = task.labels if task.labels is not None else find_labels(task.kind, splits["train"])
    network = without_weights(model)
    size = model_size(model, network.config.num_hidden_layers, network.config.hidden_size)
    recommended = hyperparameters(task.name, size, sift=options.sift)
    longest, fixed = longest_input(network, tokenizer)
    if options.max_length is not None and options.max_length > longest and fixed:
        raise ValueError(f"max_length is {options.max_length}, but {model} has positions for only {longest} tokens")
    length = options.max_length or min(recommended.max_length or sys.maxsize, longest)
    if options.max_length is None and recommended.max_length is None:
        length = choose_length(task.kind, tokenizer, splits["train"], longest)
    options = replace(resolve_options(options, recommended), max_length=length)
    encoder = ExampleEncoder(task.kind, tokenizer, labels, length)
    reader = replace(encoder, long="cut") if "cut" in long_modes(task.kind) else encoder  # one row per training text
    train, dev = reader.encode(splits["train"], strict=True), encoder.encode(splits["dev"])
    truncated = f"; {train.cut:,} longer training texts are truncated" if train.cut else ""
    print(
        f"{task.name} ({task.kind}): {len(splits['train']):,} training and {len(splits['dev']):,} dev examples; "
        f"at most {length} tokens{truncated}",
        file=sys.stderr,
    )
    return Job(model, task, splits, options, encoder, train, dev)


def without_weights(model: str) -> PreTrainedModel:
    """The encoder of a model, for its size and its position table only: nothing is read but its config."""
    config = load_config(model)
    with torch.device("meta"):
        return DebertaModel(config) if isinstance(config, DebertaConfig) else AutoModel.from_config(config)


def run(job: Job, seed: int, out: Path, resume: bool) -> RunResult:
    """Train one seed and write its folder."""
    if finished := open_run(out, job.record(seed), resume):
        return finished
    options, kind = job.options, job.task.kind
    torch.manual_seed(seed)  # for the new head
    network = load_for_training(job.model, kind, job.encoder.labels, options.cls_dropout)
    if options.freeze_encoder:
        freeze_encoder(network)
    trained = network if options.lora is None else add_lora(network, options.lora)
    evaluator = Evaluator(trained, job.task, job.encoder)
    if kind == "qa" and all(gold(example) for example in job.splits["train"]):
        evaluator.threshold = float("inf")  # every training question has an answer

    def figures() -> dict[str, float]:
        evaluation = evaluator(job.splits["dev"], job.dev.rows)
        return {"loss": evaluation.loss, **evaluation.scores}

    trainer = make_trainer(job, trained, figures, seed, temporary_path(out))
    seconds = trainer.fit(temporary_path(out), total_steps(job))
    history = trainer.state.log_history
    overhead = {"sift_overhead": sift_overhead(trainer)} if trainer.sift is not None else {}
    if options.lora is not None:
        evaluator.model = trained.merge_and_unload()
    return finish(job, evaluator, seed, out, history, {"seconds": seconds, **overhead})


def total_steps(job: Job) -> int:
    options = job.options
    assert options.batch_size is not None
    assert options.epochs is not None
    return math.ceil(math.ceil(len(job.train.rows) / options.batch_size) * options.epochs)


def make_trainer(
    job: Job, network: PreTrainedModel, figures: Callable[[], dict[str, float]], seed: int, part: Path
) -> FinetuneTrainer:
    options, kind = job.options, job.task.kind
    assert options.batch_size is not None
    steps = math.ceil(len(job.train.rows) / options.batch_size)
    every = min(options.evaluate_every or steps, total_steps(job))
    arguments = training_arguments(
        part,
        seed,
        every,
        num_train_epochs=options.epochs,
        learning_rate=options.lr,
        per_device_train_batch_size=max(1, options.batch_size // options.gradient_accumulation),
        gradient_accumulation_steps=options.gradient_accumulation,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        adam_epsilon=1e-6,
        metric_for_best_model=job.task.metric,
        greater_is_better=True,
        logging_steps=max(1, every // 10),
    )
    weights = None
    if options.balanced:
        weights = class_weights(kind, [row.label for row in job.train.rows], len(job.encoder.labels))
    sift = None
    if options.sift:
        assert options.sift_lambda is not None
        sift = Sift(options.sift_lambda, options.sift_step, options.sift_init)
    stop = [EarlyStoppingCallback(options.early_stopping)] if options.early_stopping else []
    return FinetuneTrainer(
        network,
        arguments,
        kind,
        job.train.rows,
        Collator(job.encoder.tokenizer, kind),
        figures,
        weights=weights,
        sift=sift,
        layer_decay=options.layer_decay,
        precision=options.precision,
        callbacks=stop,
    )


def finish(
    job: Job, evaluator: Evaluator, seed: int, out: Path, history: list[report.Figures], figures: dict[str, float]
) -> RunResult:
    """Write the model, predictions, metrics and reports, then rename the folder to ``out``."""
    part = temporary_path(out)
    evaluator.model.save_pretrained(part)
    job.encoder.tokenizer.save_pretrained(part)
    dev = evaluator(job.splits["dev"], job.dev.rows)
    metrics: dict[str, Any] = {**figures, "dev": dev.scores}
    write_predictions(part / "predictions-dev.jsonl", dev)
    if job.task.kind == "qa" and evaluator.threshold == 0:
        answers = [p.answers[0][0] if p.answers else "" for p in dev.predictions]
        questions = [example for example in dev.examples if isinstance(example, Question)]
        best, threshold = find_best_threshold(questions, answers, [p.no_answer for p in dev.predictions])
        metrics |= {"best_f1": best, "no_answer_threshold": threshold}
    elif job.task.kind == "qa":
        metrics["no_answer_threshold"] = None
    for name in sorted(set(job.splits) - {"train", "dev"}):
        if name.startswith("dev"):
            other = evaluator(job.splits[name])
            metrics[name] = other.scores
            write_predictions(part / f"predictions-{name}.jsonl", other)
    TaskSettings(job.encoder.max_length, metrics.get("no_answer_threshold", 0.0)).save(part)
    write_json(part / "metrics.json", metrics)
    errors = report.errors(job.task.kind, dev, job.encoder.labels)
    report.write_report(part, job.record(seed), metrics, history, errors)
    close_run(out)
    return RunResult(out, dev.scores, figures["seconds"])
