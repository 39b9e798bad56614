"""The command evaluate. Each of its modes has a dataclass of options."""

from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import TRAIN, app, quiet
from debertakit.cli.options import Given, build, only, takes
from debertakit.finetuning.modes import (
    SEQ2SEQ_TASKS,
    Benchmark,
    ColumnOptions,
    Comparing,
    Leaderboard,
    OwnFile,
    PairFile,
)
from debertakit.generation.options import PerplexityOptions


@app.command(rich_help_panel=TRAIN)
@takes(
    {
        "A benchmark": Benchmark,
        "Your own file": OwnFile,
        "Columns of your own file": ColumnOptions,
        "Translation and summarisation": PairFile,
        "Leaderboard files": Leaderboard,
        "Compare two runs": Comparing,
        "Perplexity": PerplexityOptions,
    }
)
def evaluate(
    models: Annotated[list[Path], typer.Argument(help="A fine-tuned model; with --compare, two finetune runs.")],
    given: Given,
) -> None:
    """Score a fine-tuned model, write leaderboard predictions, compare two runs, or measure perplexity."""
    needed = 2 if "compare" in given else 1
    if len(models) != needed:
        raise ValueError(f"{'--compare needs two runs' if needed == 2 else 'pass one model'}, not {len(models)}")
    quiet()
    task = given.get("task")
    if "perplexity" in given:
        only(given, "--perplexity", PerplexityOptions)
        _perplexity(models[0], build(PerplexityOptions, given))
    elif "compare" in given:
        only(given, "--compare", Comparing)
        _compare(models[0], models[1], build(Comparing, given))
    elif task in SEQ2SEQ_TASKS:
        only(given, f"--task {task}", PairFile)
        _evaluate_pairs(models[0], build(PairFile, given))
    elif "predict_test" in given:
        only(given, "--predict-test", Leaderboard)
        _predict_test(models[0], build(Leaderboard, given))
    elif task is not None:
        only(given, f"--task {task}", Benchmark)
        _evaluate(models[0], build(Benchmark, given), OwnFile(), ColumnOptions())
    else:
        only(given, "--file", OwnFile, ColumnOptions)
        _evaluate(models[0], Benchmark(), build(OwnFile, given), build(ColumnOptions, given))


def _evaluate(model: Path, benchmark: Benchmark, own: OwnFile, columns: ColumnOptions) -> None:
    from debertakit.finetuning import evaluation

    where = own if benchmark.task is None else benchmark
    scored = evaluation.evaluate(
        model, task=benchmark.task, data=benchmark.data, file=own.file, split=where.split, **columns.names()
    )
    print(scored)
    if where.out is not None:
        where.out.mkdir(parents=True, exist_ok=True)
        evaluation.write_predictions(where.out / f"predictions-{where.split}.jsonl", scored)


def _evaluate_pairs(model: Path, options: PairFile) -> None:
    from debertakit.data.pairs import FIELDS
    from debertakit.finetuning.seq2seq import PairFiles, evaluate_pairs

    assert options.task is not None
    columns = (options.text or FIELDS[0], options.label or FIELDS[1])
    files = PairFiles(options.source, options.target, options.file, columns)
    print(evaluate_pairs(model, options.task, files, options.out))


def _predict_test(model: Path, options: Leaderboard) -> None:
    from debertakit.finetuning.evaluation import predict_test

    if options.task is None or options.data is None or options.out is None:
        raise ValueError("--predict-test needs --task, --data and --out")
    for path, count in predict_test(model, options.task, options.data, options.out).items():
        print(f"{path}: {count:,} predictions")


def _compare(a: Path, b: Path, options: Comparing) -> None:
    from debertakit.finetuning.evaluation import compare_runs

    found = compare_runs(a, b, options.split, options.resamples)
    print(f"{a}: {found.a:.2f}   {b}: {found.b:.2f}\n{found}")


def _perplexity(model: Path, options: PerplexityOptions) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from debertakit.checkpoints import load_whole
    from debertakit.generation.causal import DebertaForCausalLM
    from debertakit.generation.perplexity import perplexity
    from debertakit.generation.seq2seq import model_type
    from debertakit.loading import describe

    assert options.perplexity is not None
    if model_type(model) == "gpt2":
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    else:
        network = load_whole(DebertaForCausalLM, model)
    found = perplexity(network, describe(model).tokenizer(), options.perplexity, options.window, options.stride)
    print(
        f"perplexity {found.per_token:.2f} per token, {found.per_word:.2f} per word, "
        f"{found.bits_per_byte:.3f} bits per byte, over {found.tokens:,} tokens"
    )
