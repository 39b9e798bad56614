"""The command evaluate. Each of its modes has a dataclass of options."""

from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import TRAIN, app, quiet
from debertakit.cli.names import check_task
from debertakit.cli.options import Given, build, only, takes
from debertakit.data.guessing import require_input
from debertakit.files import require_new
from debertakit.finetuning.modes import (
    SEQ2SEQ_TASKS,
    Benchmark,
    ColumnOptions,
    Comparing,
    Leaderboard,
    OwnFile,
    PairFile,
    RobustnessOptions,
)
from debertakit.generation.options import PerplexityOptions
from debertakit.lab.options import MinimalPairOptions
from debertakit.model_names import check_has_task, check_model
from debertakit.text.progress import working


@app.command(rich_help_panel=TRAIN)
@takes(
    {
        "A benchmark": Benchmark,
        "Your own file": OwnFile,
        "Columns of your own file": ColumnOptions,
        "Translation and summarisation": PairFile,
        "Robustness": RobustnessOptions,
        "Leaderboard files": Leaderboard,
        "Compare two runs": Comparing,
        "Perplexity": PerplexityOptions,
        "Minimal pairs": MinimalPairOptions,
    }
)
def evaluate(
    models: Annotated[
        list[Path],
        typer.Argument(help="A model; to score a task, then a file with labels. With --compare: two runs."),
    ],
    given: Given,
) -> None:
    """Score a model on a file, a benchmark or minimal pairs, compare two runs, or measure perplexity."""
    task = given.get("task")
    if task is not None and task not in SEQ2SEQ_TASKS:
        check_task(str(task))
    if len(models) == 2 and "compare" not in given and not models[1].is_dir() and not {"file", "task"} & given.keys():
        given = {**given, "file": models.pop()}
    needed = 2 if "compare" in given else 1
    if len(models) != needed:
        hint = "; to compare two runs, add --compare" if len(models) == 2 else ""
        raise ValueError(f"{'--compare needs two runs' if needed == 2 else 'pass one model'}, not {len(models)}{hint}")
    if "perplexity" in given:
        only(given, "--perplexity", PerplexityOptions)
        _perplexity(models[0], build(PerplexityOptions, given))
    elif "pairs" in given:
        only(given, "--pairs", MinimalPairOptions)
        _minimal_pairs(models[0], build(MinimalPairOptions, given))
    elif "compare" in given:
        only(given, "--compare", Comparing)
        _compare(models[0], models[1], build(Comparing, given))
    elif task in SEQ2SEQ_TASKS:
        only(given, f"--task {task}", PairFile)
        _evaluate_pairs(models[0], build(PairFile, given))
    elif "predict_test" in given:
        only(given, "--predict-test", Leaderboard)
        _predict_test(models[0], build(Leaderboard, given))
    elif "robustness" in given:
        seed = build(RobustnessOptions, given).seed
        if task is not None:
            only(given, f"--task {task} --robustness", RobustnessOptions, Benchmark)
            _robustness(models[0], build(Benchmark, given), OwnFile(), ColumnOptions(), seed)
        else:
            only(given, "--robustness", RobustnessOptions, OwnFile, ColumnOptions)
            _robustness(models[0], Benchmark(), _own_file(given), build(ColumnOptions, given), seed)
    elif task is not None:
        only(given, f"--task {task}", Benchmark)
        _evaluate(models[0], build(Benchmark, given), OwnFile(), ColumnOptions())
    else:
        only(given, "--file", OwnFile, ColumnOptions)
        _evaluate(models[0], Benchmark(), _own_file(given), build(ColumnOptions, given))


def _own_file(given: Given) -> OwnFile:
    own = build(OwnFile, given)
    if own.file is None:
        raise ValueError("pass a file with labels (deberta evaluate RUN my.csv), or --task and --data")
    require_input(own.file)
    return own


def _evaluate(model: Path, benchmark: Benchmark, own: OwnFile, columns: ColumnOptions) -> None:
    check_has_task(check_model(model))
    quiet()
    with working("starting"):
        from debertakit.finetuning.evaluation import open_evaluation, write_predictions
        from debertakit.finetuning.verdict import verdict

    where = own if benchmark.task is None else benchmark
    if where.out is not None:
        require_new(where.out / f"predictions-{where.split}.jsonl")
    evaluator, examples = open_evaluation(model, benchmark.task, benchmark.data, own.file, where.split, columns.names())
    scored = evaluator(examples)
    if judged := verdict(evaluator.task, scored):
        print(judged)
    print(scored)
    if where.out is not None:
        where.out.mkdir(parents=True, exist_ok=True)
        write_predictions(where.out / f"predictions-{where.split}.jsonl", scored)


def _robustness(model: Path, benchmark: Benchmark, own: OwnFile, columns: ColumnOptions, seed: int) -> None:
    check_model(model)
    where = own if benchmark.task is None else benchmark
    if where.out is not None:
        require_new(where.out / "robustness.jsonl")
    quiet()
    with working("starting"):
        from debertakit.finetuning.evaluation import open_evaluation
        from debertakit.finetuning.robustness import robustness, write
    evaluator, examples = open_evaluation(model, benchmark.task, benchmark.data, own.file, where.split, columns.names())
    found = robustness(evaluator, examples, seed)
    print(f"{found.evaluation}\n{found}")
    if where.out is not None:
        write(found, where.out, str(model))
        print(f"{where.out / 'robustness.html'}: the changed predictions")


def _evaluate_pairs(model: Path, options: PairFile) -> None:
    from debertakit.data.pairs import FIELDS
    from debertakit.finetuning.seq2seq import PairFiles, evaluate_pairs

    quiet()
    assert options.task is not None
    for name in ("written.txt", "predictions-dev.jsonl") if options.out is not None else ():
        require_new(Path(options.out or "") / name)
    columns = (options.text or FIELDS[0], options.label or FIELDS[1])
    files = PairFiles(options.source, options.target, options.file, columns)
    print(evaluate_pairs(model, options.task, files, options.out))


def _predict_test(model: Path, options: Leaderboard) -> None:
    from debertakit.finetuning.evaluation import predict_test

    quiet()
    if options.task is None or options.data is None or options.out is None:
        raise ValueError("--predict-test needs --task, --data and --out")
    for path, count in predict_test(model, options.task, options.data, options.out).items():
        print(f"{path}: {count:,} predictions")


def _compare(a: Path, b: Path, options: Comparing) -> None:
    for run in (a, b):
        require_input(run, "run")
    quiet()
    with working("comparing"):
        from debertakit.finetuning.comparison import write_comparison
        from debertakit.finetuning.evaluation import compare_runs

        found = compare_runs(a, b, options.split, options.resamples)
    print(f"{found.verdict(str(a), str(b))}\n{a}: {found.a:.2f}   {b}: {found.b:.2f}\n{found}")
    if options.report is not None:
        write_comparison(options.report, a, b, found, options.split)
        print(f"{options.report}: the comparison as a page")


def _minimal_pairs(model: Path, options: MinimalPairOptions) -> None:
    check_model(model)
    quiet()
    from debertakit.lab.minimal_pairs import score_pairs

    assert options.pairs is not None
    print(score_pairs(model, options.pairs, options.limit))


def _perplexity(model: Path, options: PerplexityOptions) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from debertakit.checkpoints import load_whole
    from debertakit.generation.causal import DebertaForCausalLM
    from debertakit.generation.perplexity import perplexity
    from debertakit.generation.seq2seq import model_type
    from debertakit.loading import describe

    quiet()
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
