"""Fine-tuning: train a pretrained model on task data.

    from debertakit import finetune
    result = finetune("my-deberta", train="train.csv", dev="dev.csv", text="a", label="y", out="run")
    print(result.scores)

runs.py describes the folder of a run. Translation and summarisation are in seq2seq.py.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PreTrainedModel

from debertakit.data.examples import Question, gold
from debertakit.files import temporary_path, write_json
from debertakit.finetuning import report, sections
from debertakit.finetuning.evaluation import Evaluator, write_predictions
from debertakit.finetuning.job import COLUMNS, Job, open_job
from debertakit.finetuning.modes import Seeds
from debertakit.finetuning.parameters import add_lora, freeze_encoder
from debertakit.finetuning.runs import (
    RunResult,
    close_run,
    is_main,
    on_main,
    open_run,
    run_seeds,
    seed_folders,
    writing,
)
from debertakit.finetuning.sharded_trainer import ShardedTrainer
from debertakit.finetuning.sift import Sift
from debertakit.finetuning.trainer import FinetuneTrainer, sift_overhead, training_arguments
from debertakit.finetuning.verdict import verdict
from debertakit.loading import TaskSettings, load_for_training
from debertakit.tasks.batches import Collator
from debertakit.tasks.losses import class_weights
from debertakit.tasks.metrics import find_best_threshold
from debertakit.tasks.task import Task
from debertakit.text.tokenizers import write_tokenizer
from debertakit.training.ranks import naming_lost_ranks


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
