"""Commands for training: tokenizer, pretrain, recipes, finetune."""

from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import TRAIN, app, quiet
from debertakit.cli.options import Given, build, only, takes
from debertakit.finetuning.modes import SEQ2SEQ_TASKS, BenchmarkData, ColumnOptions, OwnData, PairData, Seeds
from debertakit.finetuning.options import FinetuneOptions, Seq2SeqOptions
from debertakit.text.options import TokenizerOptions

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
    from debertakit.text.tokenizer_training import train_tokenizer

    quiet()
    options = build(TokenizerOptions, given)
    tokenizer = train_tokenizer(files, kind=options.kind, vocab_size=options.vocab_size)
    tokenizer.save_pretrained(out)
    print(f"{len(tokenizer):,} pieces in {out}")


@app.command(rich_help_panel=TRAIN)
def pretrain(
    recipe: Annotated[str, typer.Argument(help="Recipe name (see 'deberta recipes'), or a run's run.json.")],
    corpus: Annotated[str, typer.Option(help="Text, JSONL or Parquet file, folder, hf:NAME, or prepared corpus.")],
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
) -> None:
    """Pretrain a model from raw text, in one process or on many machines with torchrun."""
    from debertakit.pretraining.from_text import pretrain_from_text

    quiet()
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
    )
    print(f"{out}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))


@recipe_list.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    """List the pretraining recipes."""
    if context.invoked_subcommand is None:
        from debertakit.pretraining.recipes import recipes as list_recipes

        for name, about in list_recipes().items():
            print(f"{name:<22}{about}")


@recipe_list.command("show")
def recipes_show(name: Annotated[str, typer.Argument(help="Recipe name.")]) -> None:
    """Print all settings of a recipe as JSON."""
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
    }
)
def finetune(
    model: Annotated[str, typer.Option(help="Folder or hub name of a pretrained model: DeBERTa or any other encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, scores and report.")],
    given: Given,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
) -> None:
    """Fine-tune a model on a benchmark or on your own files. Options not given depend on the task and model size."""
    quiet()
    task, seeds = given.get("task"), build(Seeds, given)
    if task in SEQ2SEQ_TASKS:
        only(given, f"--task {task}", PairData, Seq2SeqOptions, Seeds)
        _finetune_pairs(model, out, build(PairData, given), build(Seq2SeqOptions, given), seeds, resume)
        return
    if task is not None:
        only(given, f"--task {task}", BenchmarkData, FinetuneOptions, Seeds)
    else:
        only(given, "a run with --train", OwnData, ColumnOptions, FinetuneOptions, Seeds)
    if "sift" not in given:
        only({name: value for name, value in given.items() if name.startswith("sift_")}, "a run without --sift")
    benchmark, own = build(BenchmarkData, given), build(OwnData, given)
    options, columns = build(FinetuneOptions, given), build(ColumnOptions, given)
    from debertakit.finetuning.train import finetune as run

    result = run(
        model,
        out,
        task=benchmark.task,
        data=benchmark.data,
        train=own.train,
        dev=own.dev,
        seed=seeds.seed,
        seeds=seeds.seeds,
        resume=resume,
        **columns.names(),
        **vars(options),
    )
    print(result)


def _finetune_pairs(model: str, out: Path, data: PairData, options: Seq2SeqOptions, seeds: Seeds, resume: bool) -> None:
    from debertakit.data.pairs import FIELDS
    from debertakit.finetuning.seq2seq import PairFiles, finetune_pairs

    assert data.task is not None
    columns = (data.text or FIELDS[0], data.label or FIELDS[1])
    dev = None
    if data.dev_source or data.dev_target or data.dev:
        dev = PairFiles(data.dev_source, data.dev_target, data.dev, columns)
    train = PairFiles(data.source, data.target, data.train, columns)
    print(finetune_pairs(model, out, data.task, train, dev, options, seed=seeds.seed, seeds=seeds.seeds, resume=resume))
