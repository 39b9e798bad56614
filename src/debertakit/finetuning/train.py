"""Fine-tuning: train a pretrained model on task data.

    from debertakit import finetune
    result = finetune("my-deberta", train="train.csv", dev="dev.csv", text="a", label="y", out="run")
    print(result.scores)

runs.py describes the folder of a run. Translation and summarisation are in seq2seq.py.
"""

import inspect
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
from debertakit.data.examples import Example, Question, TextExample, gold
from debertakit.data.folders import is_hub
from debertakit.data.guessing import guess_line, resolve_columns
from debertakit.files import temporary_path, write_json
from debertakit.finetuning import report, sections
from debertakit.finetuning.evaluation import Evaluator, check_packages, read_benchmark, write_predictions
from debertakit.finetuning.hyperparameters import Hyperparameters, Size, hyperparameters, model_size
from debertakit.finetuning.modes import Seeds
from debertakit.finetuning.options import FinetuneOptions, resolve_options
from debertakit.finetuning.parameters import add_lora, freeze_encoder
from debertakit.finetuning.runs import (
    Record,
    RunResult,
    check_folders,
    close_run,
    is_main,
    on_main,
    open_run,
    recorded_precision,
    run_seeds,
    seed_folders,
    world_size,
    writing,
)
from debertakit.finetuning.sharded_trainer import ShardedTrainer
from debertakit.finetuning.sift import Sift
from debertakit.finetuning.trainer import FinetuneTrainer, sift_overhead, training_arguments
from debertakit.finetuning.verdict import verdict, vocabulary_warning
from debertakit.loading import (
    TaskSettings,
    describe,
    has_head_dropout,
    load_config,
    load_for_training,
    longest_input,
)
from debertakit.model import DebertaModel
from debertakit.precision import best_device, precision_line, resolve_precision
from debertakit.tasks import suites
from debertakit.tasks.batches import Collator
from debertakit.tasks.features import ExampleEncoder, Features, choose_length, find_labels, long_modes
from debertakit.tasks.losses import class_weights
from debertakit.tasks.metrics import find_best_threshold
from debertakit.tasks.own import own_task
from debertakit.tasks.task import Task
from debertakit.text.progress import working
from debertakit.text.tokenizers import write_tokenizer
from debertakit.training.ranks import naming_lost_ranks

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
    defaults: Record = field(default_factory=dict)
    """Value of each option if the user had not set it."""
    size: Size = "base"

    def record(self, seed: int) -> Record:
        return {
            "model": self.model,
            "task": self.task.name,
            "kind": self.task.kind,
            "metric": self.task.metric,
            "labels": list(self.encoder.labels),
            "seed": seed,
            "processes": world_size(),
            **self.source,
            "train_examples": len(self.splits["train"]),
            "dev_examples": len(self.splits["dev"]),
            **asdict(self.options),
        }


@naming_lost_ranks()
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
    folder, folders = Path(out), seed_folders(Path(out), seed, seeds)
    job = open_job(
        model, list(folders.values()), folder, task=task, data=data, train=train, dev=dev, resume=resume, **others
    )
    return run_seeds(folder, folders, job.record(seed), lambda number, each: run(job, number, each, resume))


def open_job(
    model: str | Path,
    runs: Sequence[Path],
    folder: Path,
    *,
    task: str | Task | None = None,
    data: str | Path | None = None,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    resume: bool = False,
    **others: Any,
) -> Job:
    """Check the arguments of ``finetune``, read and tokenise the data, and fill in the unset options.

    ``runs``: the folder of each seed. ``folder``: the folder that contains them, or the only one.
    """
    check_packages(task)
    names = set(FinetuneOptions.__dataclass_fields__)
    options = FinetuneOptions(**{key: value for key, value in others.items() if key in names})
    columns = {key: value for key, value in others.items() if key not in names}
    if train is not None and task is None and data is None and columns.keys() <= set(COLUMNS):
        columns = complete_columns(Path(train), columns)
    check_processes(options)
    on_main(lambda: check_folders(folder, runs, resume))
    recorded = on_main(lambda: recorded_precision(runs))
    precision = resolve_precision(options.precision, best_device(), recorded)
    options = replace(options, precision=precision)
    task, splits = open_data(task, data, train, dev, columns)
    job = replace(prepare(str(model), task, splits, options), source=source_of(data, train, dev, columns))
    say(precision_line(precision, best_device()))
    return job


def check_processes(options: FinetuneOptions) -> None:
    """Raise if a run cannot be divided among the processes that torchrun started."""
    if world_size() > 1 and options.sift:
        raise ValueError("--sift trains in one process; start it without torchrun")
    if options.parallel == "fsdp2" and world_size() == 1:
        raise ValueError("--parallel fsdp2 needs torchrun: torchrun --nproc-per-node N -m debertakit.cli finetune ...")


def say(line: str) -> None:
    """Print a line to stderr, from one process only."""
    if is_main():
        print(line, file=sys.stderr)


def complete_columns(train: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Guess the columns that are not given, and say so."""
    found = resolve_columns(train, given)
    if line := guess_line(train, given, found):
        say(line)
    return found


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
        if unknown := columns.keys() - inspect.signature(own_task).parameters.keys():
            raise ValueError(f"unknown option of finetune(): {', '.join(sorted(unknown))}")
        chosen = own_task(Path(train), Path(dev) if dev is not None else None, **columns)
        splits = dict(chosen.read(Path()))
    if not splits.get("train"):
        raise ValueError(f"{data or train}: no training examples")
    if not splits.get("dev"):
        splits["train"], splits["dev"] = hold_out(splits["train"])
        say(
            f"no dev set (--dev FILE): {len(splits['dev']):,} of the {len(splits['train']) + len(splits['dev']):,} "
            "training examples are held out, the same ones in every run, with the same share of each label"
        )
    return chosen, splits


def hold_out(examples: Sequence[T]) -> tuple[list[T], list[T]]:
    """Split off a dev set. The split does not depend on the seed.

    Every label has the same share of both parts (up to rounding): the examples are shuffled, sorted by label, and every
    tenth is taken.
    """
    if len(examples) < 2:
        raise ValueError("cannot hold out a dev set from a single example; pass a dev set")
    count = max(1, min(int(HELD_OUT * len(examples)), MOST_HELD_OUT))
    labels = [gold(each) if isinstance(each, TextExample) else None for each in examples]
    order = np.random.default_rng(0).permutation(len(examples)).tolist()
    if all(isinstance(label, str) for label in labels):
        order.sort(key=lambda i: labels[i])
    places = np.linspace(0, len(examples), count, endpoint=False) + len(examples) / (2 * count)
    chosen = {order[int(place)] for place in places}
    return [e for i, e in enumerate(examples) if i not in chosen], [examples[i] for i in sorted(chosen)]


def prepare(model: str, task: Task, splits: dict[str, list[Example]], options: FinetuneOptions) -> Job:
    """Fill in unset options, choose the maximum length, and tokenise."""
    tokenizer = describe(model).tokenizer()
    labels = task.labels if task.labels is not None else find_labels(task.kind, splits["train"])
    network = without_weights(model)
    size = model_size(model, network.config.num_hidden_layers, network.config.hidden_size)
    recommended = hyperparameters(task.name, size, sift=options.sift)
    if not has_head_dropout(model, task.kind):
        if options.cls_dropout is not None:
            raise ValueError(f"cls_dropout is not an option: the {task.kind} head of {model} has no dropout")
        recommended = replace(recommended, cls_dropout=None)
    longest, fixed = longest_input(network, tokenizer)
    if options.max_length is not None and options.max_length > longest and fixed:
        raise ValueError(f"max_length is {options.max_length}, but {model} has positions for only {longest} tokens")
    length = options.max_length or min(recommended.max_length or sys.maxsize, longest)
    if options.max_length is None and recommended.max_length is None:
        length = choose_length(task.kind, tokenizer, splits["train"], longest)
    defaults = default_options(options, recommended, length)
    options = replace(resolve_options(options, recommended), max_length=length)
    encoder = ExampleEncoder(task.kind, tokenizer, labels, length)
    reader = replace(encoder, long="cut") if "cut" in long_modes(task.kind) else encoder  # one row per training text
    with working(f"tokenising {len(splits['train']) + len(splits['dev']):,} examples"):
        train, dev = reader.encode(splits["train"], strict=True), encoder.encode(splits["dev"])
    truncated = f"; {train.cut:,} longer training texts are truncated" if train.cut else ""
    say(
        f"{task.name} ({task.kind}): {len(splits['train']):,} training and {len(splits['dev']):,} dev examples; "
        f"at most {length} tokens{truncated}"
    )
    if warning := vocabulary_warning(tokenizer, train.rows, splits["train"]):
        say(f"warning: {warning}")
    return Job(model, task, splits, options, encoder, train, dev, defaults=defaults, size=size)


def default_options(given: FinetuneOptions, recommended: Hyperparameters, length: int) -> Record:
    """Values of the options that the user did not set, as if no other were set; the rate follows LoRA and freezing."""
    modes = FinetuneOptions(sift=given.sift, lora=given.lora, freeze_encoder=given.freeze_encoder)
    resolved = asdict(resolve_options(modes, recommended))
    precision = resolve_precision("auto", best_device())
    usual = recommended.max_length or (length if given.max_length is None else None)
    off = {"sift": False, "lora": None, "freeze_encoder": False}
    return {**resolved, **off, "max_length": usual, "precision": precision}


def without_weights(model: str) -> PreTrainedModel:
    """The encoder of a model, for its size and its position table only: nothing is read but its config."""
    config = load_config(model)
    with torch.device("meta"):
        return DebertaModel(config) if isinstance(config, DebertaConfig) else AutoModel.from_config(config)


def run(job: Job, seed: int, out: Path, resume: bool) -> RunResult:
    """Train one seed and write its folder."""
    if finished := on_main(lambda: open_run(out, job.record(seed), resume)):
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

    sharded = options.parallel == "fsdp2"

    def shared_figures() -> dict[str, float]:  # all processes must agree on the best checkpoint
        if not sharded:
            return on_main(figures)
        found = figures()  # every process takes part in the forward pass
        return on_main(lambda: found)

    trainer = make_trainer(job, trained, shared_figures, seed, temporary_path(out))
    seconds = trainer.fit(temporary_path(out), total_steps(job))
    history = trainer.state.log_history
    overhead = {"sift_overhead": sift_overhead(trainer)} if trainer.sift is not None else {}
    if options.lora is not None:
        evaluator.model = trained.merge_and_unload()
    if sharded and is_main():
        best = trainer.state.best_model_checkpoint
        whole = load_for_training(best, kind, job.encoder.labels, options.cls_dropout)
        evaluator.model = whole.to(trainer.args.device)
    return on_main(lambda: finish(job, evaluator, seed, out, history, {"seconds": seconds, **overhead}))


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
        gradient_checkpointing=options.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        ddp_find_unused_parameters=True,  # the head of a task does not use every weight of a checkpoint
    )
    weights = None
    if options.balanced:
        weights = class_weights(kind, [row.label for row in job.train.rows], len(job.encoder.labels))
    sift = None
    if options.sift:
        assert options.sift_lambda is not None
        sift = Sift(options.sift_lambda, options.sift_step, options.sift_init)
    stop = [EarlyStoppingCallback(options.early_stopping)] if options.early_stopping else []
    trainer = ShardedTrainer if options.parallel == "fsdp2" else FinetuneTrainer
    return trainer(
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
    job: Job, evaluator: Evaluator, seed: int, out: Path, history: list[sections.Figures], figures: dict[str, float]
) -> RunResult:
    """Write the model, predictions, metrics and reports, then rename the folder to ``out``."""
    part = temporary_path(out)
    with writing("the model", part):
        evaluator.model.save_pretrained(part)
        write_tokenizer(job.encoder.tokenizer, part)
    dev = evaluator(job.splits["dev"], job.dev.rows)
    metrics: dict[str, Any] = {**figures, "dev": dev.scores}
    if judged := verdict(job.task, dev, job.splits["train"]):
        metrics |= {"verdict": str(judged), "interval": [judged.low, judged.high], "baseline": judged.baseline}
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
    columns = {name: job.source[name] for name in COLUMNS if job.source.get(name)}
    TaskSettings(job.encoder.max_length, metrics.get("no_answer_threshold", 0.0), columns).save(part)
    write_json(part / "metrics.json", metrics)
    errors = sections.errors(job.task.kind, dev, job.encoder.labels)
    report.write_report(
        part, job.record(seed), metrics, history, errors, verdict=judged, defaults={"seed": Seeds.seed, **job.defaults}
    )
    close_run(out)
    return RunResult(out, dev.scores, figures["seconds"], verdict=metrics.get("verdict", ""))
