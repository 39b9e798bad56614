"""Fine-tuning: train a pretrained model on task data.

    from debertakit import finetune
    result = finetune("my-deberta", train="train.csv", dev="dev.csv", text="a", label="y", out="run")
    print(result.scores)

A run is written to ``OUT.part``, which is renamed to ``OUT`` when the run is complete. The folder contains the model
and its tokenizer, run.json (all settings), log.jsonl, metrics.json, dev predictions, a report and a model card.
"""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import EarlyStoppingCallback, TrainingArguments

from debertakit.data.folders import is_hub
from debertakit.finetuning import report
from debertakit.finetuning.evaluation import Evaluator, check_packages, read_benchmark, write_predictions
from debertakit.finetuning.hyperparameters import hyperparameters, model_size
from debertakit.finetuning.options import FinetuneOptions, resolve_options
from debertakit.finetuning.parameters import add_lora, freeze_encoder
from debertakit.finetuning.sift import Sift
from debertakit.finetuning.significance import Summary, summary
from debertakit.finetuning.trainer import FinetuneTrainer, LogCallback, sift_overhead
from debertakit.loading import TaskSettings, load_for_training, load_tokenizer_of, longest_input
from debertakit.precision import best_device, precision_line, resolve_precision
from debertakit.tasks import suites
from debertakit.tasks.batches import Collator
from debertakit.tasks.features import Encoder, Features, choose_length, find_labels, long_modes
from debertakit.tasks.losses import class_weights
from debertakit.tasks.metrics import find_best_threshold
from debertakit.tasks.own import own_task
from debertakit.tasks.task import Task
from debertakit.training.log import Log

HELD_OUT = 0.1
"""Share of the training examples held out as a dev set if none is given, but at most MOST_HELD_OUT examples."""
MOST_HELD_OUT = 2000
COLUMNS = ("text", "pair", "label", "options", "separator")


@dataclass(frozen=True)
class Result:
    folder: Path
    scores: dict[str, float]
    """Dev scores; with several seeds, their means."""
    seconds: float
    runs: list["Result"] = field(default_factory=list)
    """One result per seed, if there are several."""

    def summary(self, metric: str) -> Summary:
        return summary([run.scores[metric] for run in self.runs or [self]])


@dataclass(frozen=True)
class Job:
    """Data and settings shared by all seeds."""

    model: str
    task: Task
    splits: dict[str, list[Any]]
    options: FinetuneOptions
    encoder: Encoder
    train: Features
    dev: Features
    source: dict[str, Any] = field(default_factory=dict)
    """Where the examples came from (``source_of``)."""

    def record(self, seed: int) -> dict[str, Any]:
        """Contents of run.json."""
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
    seed: int = 0,
    seeds: int = 1,
    resume: bool = False,
    **others: Any,
) -> Result:
    """Fine-tune ``model`` (a folder or hub name) on a benchmark (``task`` and ``data``) or on your own files.

    ``others``: column names (text, pair, label, ...; see ``files.own_task``) and fields of ``FinetuneOptions``.
    """
    check_packages(task)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("fine-tuning runs in one process; start it without torchrun")
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it must be >= 1")
    names = set(FinetuneOptions.__dataclass_fields__)
    options = FinetuneOptions(**{key: value for key, value in others.items() if key in names})
    columns = {key: value for key, value in others.items() if key not in names}
    folder = Path(out)
    seeded = [(number, folder / f"seed-{number}") for number in range(seed, seed + seeds)]
    runs = [each for _, each in seeded] if seeds > 1 else [folder]
    check_folders(folder, runs, resume)
    precision = resolve_precision(options.precision, best_device(), recorded_precision(runs))
    options = replace(options, precision=precision)
    task, splits = open_data(task, data, train, dev, columns)
    job = replace(prepare(str(model), task, splits, options), source=source_of(data, train, dev, columns))
    print(precision_line(precision, best_device()), file=sys.stderr)
    if seeds == 1:
        return run(job, seed, folder, resume)
    folder.mkdir(parents=True, exist_ok=True)
    results = [run(job, number, each, resume) for number, each in seeded]
    scores = {name: float(np.mean([each.scores[name] for each in results])) for name in results[0].scores}
    result = Result(folder, scores, sum(each.seconds for each in results), results)
    report.write_summary(folder, job.record(seed), [(each.folder.name, each.scores) for each in results])
    return result


def check_folders(out: Path, runs: Sequence[Path], resume: bool) -> None:
    """Raise before training starts if a run could not be saved in these folders."""
    if runs != [out] and (out / "run.json").exists():
        raise ValueError(f"{out} contains a single run; choose another --out for {len(runs)} runs")
    parts = [_part(run) for run in runs]
    for folder in (out, *runs, *parts):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; choose another --out")
    for folder in (*runs, *parts):
        _check_run(folder, resume)


def _check_run(folder: Path, resume: bool) -> None:
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not resume:
        raise ValueError(f"{folder} already contains a run. Use --resume to continue it, or choose another --out.")
    if not (folder / "run.json").is_file():
        raise ValueError(f"{folder} has no run to resume (no run.json); choose another --out")


def _part(out: Path) -> Path:
    """Working folder of a run, renamed to ``out`` at the end."""
    return out.with_name(out.name + ".part")


def recorded_precision(runs: Sequence[Path]) -> str | None:
    """Precision in the first run.json among these runs, finished or not. All seeds use the same precision."""
    for folder in (place for run in runs for place in (run, _part(run))):
        if (folder / "run.json").is_file():
            return json.loads((folder / "run.json").read_text(encoding="utf-8")).get("precision")
    return None


def source_of(data: Any, train: Any, dev: Any, columns: dict[str, Any]) -> dict[str, Any]:
    """Data paths and column names for run.json."""

    def place(path: Any) -> str | None:
        return None if path is None else str(path) if is_hub(Path(path)) else str(Path(path).resolve())

    files = {"data": place(data), "train": place(train), "dev": place(dev)}
    return files | {name: columns.get(name) for name in COLUMNS}


def open_data(
    task: str | Task | None, data: str | Path | None, train: Any, dev: Any, columns: dict[str, Any]
) -> tuple[Task, dict[str, list[Any]]]:
    """Return the task and its splits, which include at least "train" and "dev"."""
    if (task is None) == (train is None):
        raise ValueError("pass either --task and --data, or --train FILE")
    if task is not None:
        if dev is not None:
            raise ValueError("dev is not for a benchmark, which has its own dev set")
        if columns:
            raise ValueError(f"unknown option for a benchmark: {', '.join(columns)} (columns are for your own files)")
        chosen = suites.task(task) if isinstance(task, str) else task
        splits = read_benchmark(chosen, data)
    else:
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


def hold_out(examples: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Split off a dev set. The split does not depend on the seed."""
    if len(examples) < 2:
        raise ValueError("cannot hold out a dev set from a single example; pass a dev set")
    count = max(1, min(int(HELD_OUT * len(examples)), MOST_HELD_OUT))
    chosen = set(np.random.default_rng(0).permutation(len(examples))[:count].tolist())
    return [e for i, e in enumerate(examples) if i not in chosen], [examples[i] for i in sorted(chosen)]


def prepare(model: str, task: Task, splits: dict[str, list[Any]], options: FinetuneOptions) -> Job:
    """Fill in unset options, choose the maximum length, and tokenise."""
    tokenizer = load_tokenizer_of(model)
    labels = task.labels if task.labels is not None else find_labels(task.kind, splits["train"])
    network = load_for_training(model, task.kind, labels)
    size = model_size(model, network.config.num_hidden_layers, network.config.hidden_size)
    recommended = hyperparameters(task.name, size, sift=options.sift)
    longest, ends_there = longest_input(network, tokenizer)
    if options.max_length is not None and options.max_length > longest and ends_there:
        raise ValueError(f"max_length is {options.max_length}, but {model} only has positions for {longest} tokens")
    length = options.max_length or min(recommended.max_length or sys.maxsize, longest)
    if options.max_length is None and recommended.max_length is None:
        length = choose_length(task.kind, tokenizer, splits["train"], longest)
    options = replace(resolve_options(options, recommended), max_length=length)
    encoder = Encoder(task.kind, tokenizer, labels, length)
    reader = replace(encoder, long="cut") if "cut" in long_modes(task.kind) else encoder  # one row per training text
    train, dev = reader.encode(splits["train"], strict=True), encoder.encode(splits["dev"])
    cut = f"; {train.cut:,} training texts are longer and are cut" if train.cut else ""
    print(
        f"{task.name} ({task.kind}): {len(splits['train']):,} examples to train on, {len(splits['dev']):,} to choose "
        f"by; at most {length} tokens{cut}",
        file=sys.stderr,
    )
    return Job(model, task, splits, options, encoder, train, dev)


def run(job: Job, seed: int, out: Path, resume: bool) -> Result:
    """Train one seed and write its folder."""
    if finished := open_folder(job, seed, out, resume):
        return finished
    part = _part(out)
    options, kind = job.options, job.task.kind
    torch.manual_seed(seed)  # for the new head
    network = load_for_training(job.model, kind, job.encoder.labels, options.cls_dropout)
    if options.freeze_encoder:
        freeze_encoder(network)
    if options.lora is not None:
        network = add_lora(network, options.lora)
    evaluator = Evaluator(network, job.task, job.encoder)
    if kind == "qa" and all(example.answers for example in job.splits["train"]):
        evaluator.threshold = float("inf")  # every training question has an answer

    def figures() -> dict[str, float]:
        evaluation = evaluator(job.splits["dev"], job.dev.rows)
        return {"loss": evaluation.loss, **evaluation.scores}

    trainer = make_trainer(job, network, figures, seed, part)
    checkpoint = newest_checkpoint(part / "checkpoints")
    log = Log(part, "none", total_steps(job), "steps", int(checkpoint.name.split("-")[1]) if checkpoint else -1)
    trainer.add_callback(LogCallback(log))
    began = trainer.began = time.monotonic() - seconds_before(checkpoint)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        seconds = time.monotonic() - began
        history = trainer.state.log_history
        extra = {"sift_overhead": sift_overhead(trainer)} if trainer.sift is not None else {}
    finally:
        log.close()
    if options.lora is not None:
        evaluator.model = network.merge_and_unload()
    return finish(job, evaluator, seed, out, history, {"seconds": seconds, **extra})


def open_folder(job: Job, seed: int, out: Path, resume: bool) -> Result | None:
    """Create ``OUT.part``, or check that the run in it can resume. Returns the result if the run is finished."""
    part = _part(out)
    record = job.record(seed)
    for folder in (out, part):
        if folder.is_dir() and any(folder.iterdir()):
            _check_run(folder, resume)
            before = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            if before.get("precision") == "auto":  # version 1 did not record the resolved precision (precision.py)
                del before["precision"]
            for name, value in json.loads(json.dumps(record)).items():
                if before.get(name, value) != value:
                    raise ValueError(
                        f"{folder} contains another run, with {name} {before[name]!r} instead of {value!r}; "
                        "choose another --out"
                    )
            if folder == out:
                metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
                return Result(out, metrics["dev"], metrics["seconds"])
    part.mkdir(parents=True, exist_ok=True)
    aside = part / "run.json.part"
    aside.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    aside.replace(part / "run.json")
    return None


def total_steps(job: Job) -> int:
    options = job.options
    assert options.batch_size is not None
    assert options.epochs is not None
    return math.ceil(math.ceil(len(job.train.rows) / options.batch_size) * options.epochs)


def make_trainer(
    job: Job, network: Any, figures: Callable[[], dict[str, float]], seed: int, part: Path
) -> FinetuneTrainer:
    options, kind = job.options, job.task.kind
    assert options.batch_size is not None
    steps = math.ceil(len(job.train.rows) / options.batch_size)
    every = min(options.evaluate_every or steps, total_steps(job))
    arguments = TrainingArguments(
        output_dir=str(part / "checkpoints"),
        num_train_epochs=options.epochs,
        learning_rate=options.lr,
        per_device_train_batch_size=max(1, options.batch_size // options.gradient_accumulation),
        gradient_accumulation_steps=options.gradient_accumulation,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        adam_epsilon=1e-6,
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=every,
        save_steps=every,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=job.task.metric,
        greater_is_better=True,
        logging_steps=max(1, every // 10),
        report_to="none",
        seed=seed,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        log_level="error",
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


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, and delete incomplete ones. The Trainer writes its state last."""
    whole = []
    for path in folder.glob("checkpoint-*"):
        if _is_json(path / "trainer_state.json"):
            whole.append(path)
        else:
            shutil.rmtree(path)
    return max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)


def seconds_before(checkpoint: Path | None) -> float:
    """Seconds that the run had taken when this checkpoint was written."""
    if checkpoint is None:
        return 0.0
    history = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return max((entry["eval_elapsed"] for entry in history if "eval_elapsed" in entry), default=0.0)


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def finish(
    job: Job, evaluator: Evaluator, seed: int, out: Path, history: list[dict[str, Any]], figures: dict[str, float]
) -> Result:
    """Write the model, predictions, metrics and reports, then rename the folder to ``out``."""
    part = _part(out)
    network = evaluator.model
    network.save_pretrained(part)
    job.encoder.tokenizer.save_pretrained(part)
    dev = evaluator(job.splits["dev"], job.dev.rows)
    metrics: dict[str, Any] = {**figures, "dev": dev.scores}
    write_predictions(part / "predictions-dev.jsonl", dev)
    if job.task.kind == "qa" and evaluator.threshold == 0:
        answers = [p.answers[0][0] if p.answers else "" for p in dev.predictions]
        best, threshold = find_best_threshold(dev.examples, answers, [p.no_answer for p in dev.predictions])
        metrics |= {"best_f1": best, "no_answer_threshold": threshold}
    elif job.task.kind == "qa":
        metrics["no_answer_threshold"] = None
    for name in sorted(set(job.splits) - {"train", "dev"}):
        if name.startswith("dev"):
            other = evaluator(job.splits[name])
            metrics[name] = other.scores
            write_predictions(part / f"predictions-{name}.jsonl", other)
    TaskSettings(job.encoder.max_length, metrics.get("no_answer_threshold", 0.0)).save(part)
    (part / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    report.write_report(part, job.record(seed), metrics, history, dev, job.encoder.labels)
    shutil.rmtree(part / "checkpoints", ignore_errors=True)
    part.rename(out)
    return Result(out, dev.scores, figures["seconds"])
