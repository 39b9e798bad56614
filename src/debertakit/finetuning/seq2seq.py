"""Translation and summarisation: fine-tune an encoder-decoder on text pairs and score its texts.

    finetune_pairs("my-deberta", "en-de", "translation", PairFiles("train.en", "train.de"), seeds=3)
    evaluate_pairs("en-de/seed-0", "translation", PairFiles("test.en", "test.de"))

runs.py describes the folder of a run. Folders of version 1 have settings.json instead of run.json. They can
be evaluated, but not resumed.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from debertakit.data.pairs import FIELDS, Pair, read_pairs
from debertakit.files import temporary_path, write_json, write_text
from debertakit.finetuning import report
from debertakit.finetuning.card import Record
from debertakit.finetuning.job import hold_out
from debertakit.finetuning.modes import Seeds
from debertakit.finetuning.options import Seq2SeqOptions
from debertakit.finetuning.rendering import Section
from debertakit.finetuning.runs import (
    RunResult,
    check_folders,
    close_run,
    is_main,
    on_main,
    open_run,
    read_json,
    recorded_precision,
    run_seeds,
    seed_folders,
    show_scores,
    world_size,
    writing,
)
from debertakit.finetuning.sections import MISTAKES, WORST
from debertakit.finetuning.seq2seq_trainer import PairRows, Seq2SeqTrainer
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, is_seq2seq
from debertakit.generation.writing import load_writer, write_all
from debertakit.loading import describe
from debertakit.precision import best_device, precision_line, resolve_precision
from debertakit.protocols import Tokenizer
from debertakit.tasks.text_scores import check, resampled_score, text_scores
from debertakit.text.tokenizers import write_tokenizer
from debertakit.theme import Say
from debertakit.training.ranks import naming_lost_ranks

TASKS = {"translation": ("bleu", "bleu"), "summarisation": ("rouge", "rouge1")}
"""Task -> its scores (text_scores.py), and the score that ``compare_runs`` uses."""


@dataclass(frozen=True)
class PairFiles:
    """Text pairs in two parallel files, or in two columns of a table."""

    source: str | Path | None = None
    target: str | Path | None = None
    table: str | Path | None = None
    columns: tuple[str, str] = FIELDS

    def read(self) -> list[Pair]:
        if self.source is not None and self.target is not None and self.table is None:
            return read_pairs(Path(self.source), Path(self.target))
        if self.table is not None and self.source is None and self.target is None:
            return read_pairs(Path(self.table), None, self.columns)
        raise ValueError("pass source and target texts in two files, or one table with two columns")

    def record(self, split: str) -> Record:
        """Entries for run.json."""
        paths = {"source": self.source, "target": self.target, "table": self.table}
        places = {
            f"{split}_{name}": None if path is None else str(Path(path).resolve()) for name, path in paths.items()
        }
        return {**places, f"{split}_columns": None if self.table is None else list(self.columns)}


@dataclass(frozen=True)
class PairJob:
    """Data and settings shared by all seeds."""

    model: str
    task: str
    tokenizer: Tokenizer
    train: Sequence[Pair]
    dev: Sequence[Pair]
    options: Seq2SeqOptions
    files: Record

    def record(self, seed: int) -> Record:
        return {
            "model": self.model,
            "task": self.task,
            "kind": "seq2seq",
            "metric": TASKS[self.task][1],
            "seed": seed,
            **self.files,
            "train_examples": len(self.train),
            "dev_examples": len(self.dev),
            "processes": world_size(),
            **asdict(self.options),
        }

    def defaults(self) -> Record:
        """The options if the user had set none."""
        precision = resolve_precision("auto", best_device())
        return {"seed": Seeds.seed, **asdict(Seq2SeqOptions(precision=precision))}


@naming_lost_ranks()
def finetune_pairs(
    model: str | Path,
    out: str | Path,
    task: str,
    train: PairFiles | Sequence[Pair],
    dev: PairFiles | Sequence[Pair] | None = None,
    options: Seq2SeqOptions | None = None,
    *,
    seed: int = Seeds.seed,
    seeds: int = Seeds.seeds,
    resume: bool = False,
) -> RunResult:
    """Fine-tune a DeBERTa-D, or a DeBERTa encoder with a new decoder, on ``task``: translation or summarisation.

    ``dev``: None holds out a tenth of ``train``. The checkpoint with the lowest dev loss is kept.
    """
    check(scores_of(task))
    options = options or Seq2SeqOptions()
    folder, folders = Path(out), seed_folders(Path(out), seed, seeds)
    on_main(lambda: check_folders(folder, folders.values(), resume))
    recorded = on_main(lambda: recorded_precision(folders.values()))
    precision = resolve_precision(options.precision, best_device(), recorded)
    pairs = train.read() if isinstance(train, PairFiles) else train
    if dev is None:
        pairs, held_out = hold_out(pairs)
    else:
        held_out = dev.read() if isinstance(dev, PairFiles) else list(dev)
    files = {**_files(train, "train"), **_files(dev, "dev")}
    tokenizer = describe(model).tokenizer()
    job = PairJob(str(model), task, tokenizer, pairs, held_out, replace(options, precision=precision), files)
    if is_main():
        print(precision_line(precision, best_device()), file=sys.stderr)
    return run_seeds(folder, folders, job.record(seed), lambda number, each: run(job, number, each, resume))


def _files(pairs: PairFiles | Sequence[Pair] | None, split: str) -> Record:
    return pairs.record(split) if isinstance(pairs, PairFiles) else {}


def scores_of(task: str) -> str:
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose from {', '.join(TASKS)}")
    return TASKS[task][0]


def load_for_pairs(model: str | Path, tokenizer: Tokenizer, decoder_layers: int | None = None) -> DebertaForSeq2SeqLM:
    """Load a DeBERTa-D, or add a decoder to any other DeBERTa, with start and end tokens from the tokenizer."""
    if is_seq2seq(model):
        return DebertaForSeq2SeqLM.from_pretrained(model, dtype=torch.float32)
    return DebertaForSeq2SeqLM.from_encoder(model, decoder_layers, tokenizer)


def run(job: PairJob, seed: int, out: Path, resume: bool) -> RunResult:
    """Train one seed and write its folder."""
    if finished := on_main(lambda: open_run(out, job.record(seed), resume)):
        return finished
    torch.manual_seed(seed)  # for the randomly initialised weights of a new decoder
    network = load_for_pairs(job.model, job.tokenizer, job.options.decoder_layers)
    trainer = train_pairs(network, job.tokenizer, job.train, job.dev, job.options, seed, temporary_path(out))
    seconds = trainer.elapsed
    scores = score_texts(network.eval(), job.tokenizer, job.dev, job.options, scores_of(job.task))
    on_main(lambda: finish(job, trainer, scores, seed, seconds, out))
    return RunResult(out, scores.figures, seconds, signatures=scores.signatures)


def train_pairs(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    train: Sequence[Pair],
    dev: Sequence[Pair],
    options: Seq2SeqOptions,
    seed: int,
    folder: Path,
) -> Seq2SeqTrainer:
    """Train an encoder-decoder (ours or from transformers) in place, with its log and checkpoints in ``folder``."""
    rows, dev_rows = (PairRows.encode(pairs, tokenizer, options) for pairs in (train, dev))
    trainer = Seq2SeqTrainer(model, rows, dev_rows, tokenizer, options, seed, folder)
    trainer.fit(folder, trainer.total, "steps" if options.minutes is None else "seconds")
    return trainer


def finish(job: PairJob, trainer: Seq2SeqTrainer, scores: "TextScores", seed: int, seconds: float, out: Path) -> None:
    """Write the model, texts, metrics and reports, then rename the folder to ``out``."""
    part = temporary_path(out)
    with writing("the model", part):
        trainer.model.save_pretrained(part)
        write_tokenizer(job.tokenizer, part)
    write_texts(part / "predictions-dev.jsonl", job.dev, scores.texts)
    metrics = {
        "seconds": seconds,
        "steps": trainer.state.global_step,
        "loss": trainer.state.best_metric,
        "dev": scores.figures,
        "signatures": scores.signatures,
    }
    write_json(part / "metrics.json", metrics)
    errors = [worst_texts(job.dev, scores.texts, TASKS[job.task][1])]
    report.write_report(
        part, job.record(seed), metrics, trainer.state.log_history, errors, curve="perplexity", defaults=job.defaults()
    )
    close_run(out)


# -------------------------------------------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class TextScores:
    figures: dict[str, float]
    signatures: dict[str, str]
    """sacreBLEU's signatures, which say how a score was computed."""
    texts: list[str]

    def __str__(self) -> str:
        line = f"{show_scores(self.figures)} on {len(self.texts):,} pairs"
        return "\n".join([line, *(f"{name}: {text}" for name, text in self.signatures.items())])


def score_texts(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    options: Seq2SeqOptions,
    metric: str,
    batch: int = 32,
) -> TextScores:
    """Generate a text for each source and score it with ``bleu`` (sacreBLEU and chrF) or ``rouge`` (1, 2, L).

    With several processes, each process generates its share of the texts.
    """
    check(metric)
    rank, world = (torch.distributed.get_rank() if world_size() > 1 else 0), world_size()
    texts = write_all(
        model,
        tokenizer,
        [pair.source for pair in pairs[rank::world]],
        batch,
        longest=options.max_source,
        max_new_tokens=options.max_target,
        num_beams=options.beams,
    )
    if world > 1:
        shares: list[list[str]] = [[]] * world
        torch.distributed.all_gather_object(shares, texts)
        texts = [shares[i % world][i // world] for i in range(len(pairs))]
    figures, signatures = text_scores(metric, texts, [pair.target for pair in pairs])
    return TextScores(figures, signatures, texts)


def evaluate_pairs(
    model: str | Path, task: str, pairs: PairFiles | Sequence[Pair], out: str | Path | None = None
) -> TextScores:
    """Score a DeBERTa-D on pairs. ``out``: a folder for written.txt (one text per line) and predictions-dev.jsonl."""
    metric = scores_of(task)
    check(metric)
    chosen = pairs.read() if isinstance(pairs, PairFiles) else pairs
    if not is_seq2seq(model):
        raise ValueError(f"{model} is not a DeBERTa-D; train one with deberta finetune --task {task}")
    scores = score_texts(load_writer(model), describe(model).tokenizer(), chosen, saved_options(Path(model)), metric)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        write_text(Path(out) / "written.txt", "".join(f"{text}\n" for text in scores.texts))
        write_texts(Path(out) / "predictions-dev.jsonl", chosen, scores.texts)
    return scores


def saved_options(folder: Path) -> Seq2SeqOptions:
    """Lengths and beams of a trained model; the defaults if its folder has no run.json or settings.json."""
    file = next((folder / name for name in ("run.json", "settings.json") if (folder / name).is_file()), None)
    known = {} if file is None else read_json(file)
    return Seq2SeqOptions(**{name: known[name] for name in ("max_source", "max_target", "beams") if name in known})


def write_texts(path: Path, pairs: Sequence[Pair], texts: Sequence[str]) -> None:
    """Write predictions-SPLIT.jsonl, which ``compare_runs`` reads."""
    lines = [
        json.dumps({"example": pair._asdict(), "prediction": text}, ensure_ascii=False) + "\n"
        for pair, text in zip(pairs, texts, strict=True)
    ]
    write_text(path, "".join(lines))


def worst_texts(pairs: Sequence[Pair], texts: Sequence[str], metric: str) -> Section:
    """The texts with the lowest scores, each scored alone."""
    score = resampled_score(metric, [pair.target for pair in pairs])
    alone = [score([text], [pair.target]) for pair, text in zip(pairs, texts, strict=True)]
    order = sorted(range(len(pairs)), key=alone.__getitem__)[:WORST]
    rows = [(alone[i], pairs[i].target, texts[i], pairs[i].source) for i in order]
    header = (metric, Say("reference", "参考"), Say("written", "输出"), Say("source", "原文"))
    return Section(MISTAKES, header, rows, listed=True, wide=True)
