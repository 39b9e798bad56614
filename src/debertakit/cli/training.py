"""Commands for training: tokenizer, pretrain, recipes, finetune."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from debertakit.cli.base import TRAIN, app, quiet
from debertakit.cli.corpus import check_sources
from debertakit.cli.defaults import announce, default_model
from debertakit.cli.names import check_recipe, check_task
from debertakit.cli.options import Given, build, check_sift, only, takes
from debertakit.data.guessing import guess_line, require_input, resolve_columns, sample_texts
from debertakit.files import require_new, temporary_path
from debertakit.finetuning.modes import (
    DEFAULT_MODEL,
    SEQ2SEQ_TASKS,
    BenchmarkData,
    ColumnOptions,
    OwnData,
    PairData,
    SearchOptions,
    Seeds,
)
from debertakit.finetuning.options import FinetuneOptions, Seq2SeqOptions
from debertakit.model_names import check_model
from debertakit.text.options import TokenizerOptions
from debertakit.text.progress import working
from debertakit.training.signals import stop_on_signals

tokenizers = typer.Typer(no_args_is_help=True, help="Train a tokenizer on your own text.")
app.add_typer(tokenizers, name="tokenizer", rich_help_panel=TRAIN)
recipe_list = typer.Typer(help="List the pretraining recipes, or show one.")
app.add_typer(recipe_list, name="recipes", rich_help_panel=TRAIN)


@tokenizers.command("train")
@takes({"Options": TokenizerOptions})
def tokenizer_train(
    files: Annotated[list[Path], typer.Argument(help="Text files, plain or compressed (.gz, .xz).")],
    out: Annotated[Path, typer.Option(help="Folder to write the tokenizer to.")],
    given: Given,
) -> None:
    """Train a tokenizer on your own text, English or Chinese."""
    for file in files:
        require_input(file, "file or folder")
    quiet()
    from debertakit.text.tokenizer_training import train_tokenizer
    from debertakit.text.tokenizers import save_tokenizer

    require_new(out)
    options = build(TokenizerOptions, given)
    tokenizer = train_tokenizer(files, kind=options.kind, vocab_size=options.vocab_size)
    save_tokenizer(tokenizer, out)
    print(f"{len(tokenizer):,} pieces in {out}")


@app.command(rich_help_panel=TRAIN)
@takes()
def pretrain(
    recipe: Annotated[str, typer.Argument(help="Recipe name (see 'deberta recipes'), or a run's run.json.")],
    corpus: Annotated[
        list[str],
        typer.Option(
            help="Text, JSONL or Parquet file, folder, hf:NAME, or prepared corpus. Repeat for a mixture, with the "
            "share of each source: a.txt=0.7."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the model, log and checkpoints.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a config field; repeatable.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder or hub name. Default: --init's tokenizer, or a new one trained on the corpus."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last intact checkpoint.")] = False,
    minutes: Annotated[
        float | None, typer.Option(help="Train this many minutes instead of the recipe's steps.")
    ] = None,
    init: Annotated[str | None, typer.Option(help="Continue from this checkpoint (model and tokenizer).")] = None,
    init_generator: Annotated[
        str | None, typer.Option(help="Generator checkpoint for RTD. Default: the generator in the --init folder.")
    ] = None,
    teacher: Annotated[str | None, typer.Option(help="Distil this model: folder or hub name of any encoder.")] = None,
    tagger: Annotated[
        str | None, typer.Option(help="Mask the entities that this model finds (masking.strategy=entity-or-token).")
    ] = None,
) -> None:
    """Pretrain a model from raw text, in one process or on many machines with torchrun."""
    check_recipe(recipe)
    check_sources(corpus)
    init, teacher, tagger = (None if name is None else check_model(name) for name in (init, teacher, tagger))
    quiet()
    stop_on_signals()
    with working("starting"):
        from debertakit.pretraining.from_text import pretrain_from_text

    metrics = pretrain_from_text(
        recipe,
        corpus,
        out,
        assignments=assignments or [],
        tokenizer=tokenizer,
        resume=resume,
        minutes=minutes,
        init=init,
        init_generator=init_generator,
        teacher=teacher,
        tagger=tagger,
    )
    print(f"{out}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))


@recipe_list.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    """List the pretraining recipes."""
    if context.invoked_subcommand is None:
        from debertakit.pretraining.recipes import recipes as list_recipes

        listed = list_recipes()
        width = max(map(len, listed)) + 2
        for name, about in listed.items():
            print(f"{name:<{width}}{about}")


@recipe_list.command("show")
def recipes_show(name: Annotated[str, typer.Argument(help="Recipe name.")]) -> None:
    """Print all settings of a recipe as JSON."""
    check_recipe(name)
    from debertakit.pretraining.recipes import recipe

    print(recipe(name).to_json())


@app.command(rich_help_panel=TRAIN)
@takes(
    {
        "Data: a benchmark": BenchmarkData,
        "Data: your own files": OwnData,
        "Columns of your own files": ColumnOptions,
        "Data: translation and summarisation": PairData,
        "Training": FinetuneOptions,
        "Translation and summarisation": Seq2SeqOptions,
        "Seeds": Seeds,
        "Search": SearchOptions,
    }
)
def finetune(
    given: Given,
    file: Annotated[
        Path | None, typer.Argument(help="Training file, instead of --train. Its columns are guessed if not given.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name of a pretrained model: DeBERTa or any other encoder. "
            "Default: the bundled model for the language of the file; "
            f"for a benchmark, or without bundled models, {DEFAULT_MODEL}."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the model, scores and report. Default: FILE-model.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
) -> None:
    """Fine-tune a model on your own file or on a benchmark. Options not given depend on the task and model size."""
    if file is not None:
        if "train" in given:
            raise ValueError(f"pass the training file once: {file}, or --train {given['train']}")
        given = {**given, "train": file}
    task = given.get("task")
    if task in SEQ2SEQ_TASKS:
        _finetune_pairs(given, str(task), model, out, resume)
        return
    _check_options(given)
    benchmark, own, seeds = build(BenchmarkData, given), build(OwnData, given), build(Seeds, given)
    options, columns = build(FinetuneOptions, given), build(ColumnOptions, given).names()
    trials = build(SearchOptions, given).search
    out = out or _free_folder(own.train.stem if own.train is not None else str(benchmark.task), resume)
    if not resume and any(folder.is_dir() and any(folder.iterdir()) for folder in (out, temporary_path(out))):
        raise ValueError(f"{out} already contains a run. Use --resume to continue it, or choose another --out.")
    if own.train is not None:
        columns = _resolve_columns(own.train, own.dev, columns)
        model = model or default_model(sample_texts(own.train, columns), otherwise=DEFAULT_MODEL)
    model = check_model(model or announce(DEFAULT_MODEL))
    print(f"loading; the result will be in {out}", file=sys.stderr, flush=True)
    quiet()
    stop_on_signals()
    with working("starting"):
        from debertakit.finetuning.search import search as run_search
        from debertakit.finetuning.train import finetune as run

    source = {"task": benchmark.task, "data": benchmark.data, "train": own.train, "dev": own.dev}
    arguments = {**source, "seed": seeds.seed, "resume": resume, **columns, **vars(options)}
    if trials is None:
        print(run(model, out, seeds=seeds.seeds, **arguments))
    else:
        print(run_search(model, out, trials, **arguments))


def _check_options(given: Given) -> None:
    """Raise if options of ``finetune`` do not go together."""
    task = given.get("task")
    if task is not None:
        check_task(str(task))
        only(given, f"--task {task}", BenchmarkData, FinetuneOptions, Seeds, SearchOptions)
    else:
        only(given, "a run with --train", OwnData, ColumnOptions, FinetuneOptions, Seeds, SearchOptions)
    check_sift(given)
    if task is None and "train" not in given:
        raise ValueError("pass a training file (deberta finetune my.csv), or --task and --data for a benchmark")
    if "search" in given and "seeds" in given:
        raise ValueError("--search tries one seed; run the best point again with --seeds")


def _resolve_columns(train: Path, dev: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """Complete the columns with guesses, print the guesses, and check that the dev file has the columns too."""
    columns = resolve_columns(train, given)
    if line := guess_line(train, given, columns):
        print(line, file=sys.stderr)
    if dev is not None:
        resolve_columns(dev, columns)
    return columns


def _free_folder(name: str, resume: bool) -> Path:
    """NAME-model, or the first of NAME-model-2, -3, ... that does not exist; to resume, the last that exists."""
    names = [Path(f"{name}-model{'' if number == 1 else f'-{number}'}") for number in range(1, 1000)]
    taken = [folder for folder in names if folder.exists() or temporary_path(folder).exists()]
    if resume and taken:
        return taken[-1]
    return next(folder for folder in names if folder not in taken)


def _finetune_pairs(given: Given, task: str, model: str | None, out: Path | None, resume: bool) -> None:
    """Translation and summarisation."""
    only(given, f"--task {task}", PairData, Seq2SeqOptions, Seeds)
    data, options, seeds = build(PairData, given), build(Seq2SeqOptions, given), build(Seeds, given)
    out = out or _free_folder(task, resume)
    model = check_model(model or DEFAULT_MODEL)
    quiet()
    stop_on_signals()
    from debertakit.data.pairs import FIELDS
    from debertakit.finetuning.seq2seq import PairFiles, finetune_pairs

    columns = (data.text or FIELDS[0], data.label or FIELDS[1])
    dev = None
    if data.dev_source or data.dev_target or data.dev:
        dev = PairFiles(data.dev_source, data.dev_target, data.dev, columns)
    train = PairFiles(data.source, data.target, data.train, columns)
    print(finetune_pairs(model, out, task, train, dev, options, seed=seeds.seed, seeds=seeds.seeds, resume=resume))
