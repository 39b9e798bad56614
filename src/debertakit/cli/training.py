"""Commands for training and evaluation: tokenizer, pretrain, recipes, finetune, evaluate."""

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from debertakit.cli.base import app, quiet

tokenizers = typer.Typer(no_args_is_help=True, help="Train a tokenizer on your own text.")
app.add_typer(tokenizers, name="tokenizer")
recipe_list = typer.Typer(help="List the recipes of pretraining, or show one.")
app.add_typer(recipe_list, name="recipes")


# Options of finetune by task: only for PAIR_TASKS (source and target texts), or for all tasks.
PAIR_TASKS = ("translation", "summarisation")
PAIRS_ONLY = {"source", "target", "dev_source", "dev_target", "minutes", "max_target", "decoder_layers"}
ALL_TASKS = {"model", "out", "task", "train", "dev", "text", "label", "epochs", "lr", "weight_decay"}
ALL_TASKS |= {"max_length", "evaluate_every", "precision", "seed", "resume"}
COLUMNS = {"text", "pair", "label", "separator", "option"}
SIFT = {"sift_lambda", "sift_step", "sift_init"}


@tokenizers.command("train")
def tokenizer_train(
    files: Annotated[list[Path], typer.Argument(help="Text files, plain or compressed (.gz, .xz).")],
    out: Annotated[Path, typer.Option(help="Folder to write the tokenizer to.")],
    kind: Annotated[str, typer.Option(help="unigram, bpe or wordpiece.")] = "unigram",
    vocab_size: Annotated[int, typer.Option(help="Pieces, special ones included.")] = 8192,
) -> None:
    """Train a tokenizer on your own text, English or Chinese."""
    from debertakit.text.training import train_tokenizer

    quiet()
    tokenizer = train_tokenizer(files, kind=kind, vocab_size=vocab_size)
    tokenizer.save_pretrained(out)
    print(f"{len(tokenizer):,} pieces in {out}")


@app.command()
def pretrain(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe (deberta recipes), or the run.json of a run.")],
    corpus: Annotated[str, typer.Option(help="Text, JSONL, Parquet, a folder, hf:NAME, or a prepared corpus.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, its log and its checkpoints.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Replace a field; may be repeated.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder or hub name; trained on the corpus if absent.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last good checkpoint.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Train for this long instead of the recipe's steps.")] = None,
    init: Annotated[str | None, typer.Option(help="Go on from this checkpoint: its model and its tokenizer.")] = None,
    init_generator: Annotated[
        str | None, typer.Option(help="Its generator, where that is not beside it (replaced-token detection).")
    ] = None,
) -> None:
    """Pretrain from raw text to a checkpoint; alone, or on many machines under torchrun."""
    from debertakit.pretraining.command import run

    quiet()
    figures = run(
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
    print(f"{out}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))


@recipe_list.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    """List the recipes of pretraining."""
    if context.invoked_subcommand is None:
        from debertakit.pretraining.recipes import RECIPES

        for name, function in RECIPES.items():
            print(f"{name:<22}{(function.__doc__ or '').strip()}")


@recipe_list.command("show")
def recipes_show(name: Annotated[str, typer.Argument(help="Name of a recipe.")]) -> None:
    """Print a recipe in full, as JSON."""
    from debertakit.pretraining.recipes import recipe

    print(recipe(name).to_json())


@app.command()
def finetune(
    model: Annotated[str, typer.Option(help="Folder or hub name of a pretrained model: ours or any encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, its scores and its report.")],
    task: Annotated[str | None, typer.Option(help="A benchmark, read from --data: rte, sst2, squad2, ...")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the benchmark's files; hf: the hub.")] = None,
    train: Annotated[Path | None, typer.Option(help="Your own file: CSV, TSV, JSONL, Parquet, CoNLL, SQuAD.")] = None,
    dev: Annotated[Path | None, typer.Option(help="File to choose by; a tenth of --train if not given.")] = None,
    source: Annotated[Path | None, typer.Option(help="--task translation, summarisation: texts, one a line.")] = None,
    target: Annotated[Path | None, typer.Option(help="What they should become, one a line.")] = None,
    dev_source: Annotated[Path | None, typer.Option(help="Parallel files in place of --dev.")] = None,
    dev_target: Annotated[Path | None, typer.Option(help="The other one.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Train on them for this long instead of --epochs.")] = None,
    max_target: Annotated[int | None, typer.Option(help="Tokens of a target; 128.")] = None,
    decoder_layers: Annotated[int | None, typer.Option(help="Of a decoder that is grown; the encoder's.")] = None,
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of a second text.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label, labels or score.")] = None,
    separator: Annotated[str | None, typer.Option(help="What stands between several labels of one text.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Column of an option to choose; may be repeated.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples a step.")] = None,
    gradient_accumulation: Annotated[int, typer.Option(help="Parts a step is computed in, to save memory.")] = 1,
    warmup: Annotated[float | None, typer.Option(help="Steps of warm-up; below 1: a share of all.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's.")] = None,
    cls_dropout: Annotated[float | None, typer.Option(help="Dropout before the classifier.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens; from the recipe or the data if not given.")] = None,
    sift: Annotated[bool, typer.Option("--sift", help="Scale-invariant adversarial fine-tuning.")] = False,
    sift_lambda: Annotated[float | None, typer.Option(help="Its weight.")] = None,
    sift_step: Annotated[float, typer.Option(help="Its ascent step.")] = 1e-4,
    sift_init: Annotated[float, typer.Option(help="Size of the first perturbation.")] = 1e-2,
    balanced: Annotated[bool, typer.Option("--balanced", help="Rare classes weigh more.")] = False,
    layer_decay: Annotated[float, typer.Option(help="Learning rate of a layer over that of the next.")] = 1.0,
    lora: Annotated[int | None, typer.Option(help="Train low-rank updates of this rank only (8 is usual).")] = None,
    freeze_encoder: Annotated[bool, typer.Option("--freeze-encoder", help="Train the head only.")] = False,
    early_stopping: Annotated[int | None, typer.Option(help="Stop after so many evaluations in vain.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(min=1, help="Steps between evaluations; an epoch.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16 or auto: bf16 where the hardware has it.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the head, the order and the dropout.")] = 0,
    seeds: Annotated[int, typer.Option(help="Runs, with seeds from --seed on; mean, sd, min, max.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
) -> None:
    """Fine-tune a model on a benchmark or on your own files; what is not given is the task's recipe."""
    settings = dict(locals())
    quiet()
    if task in PAIR_TASKS:
        from debertakit.finetuning.seq2seq import Files, run_pairs

        _refuse(finetune, settings, settings.keys() - ALL_TASKS - PAIRS_ONLY, f"--task {task}")
        columns = (text or "source", label or "target")
        held_out = (dev_source, dev_target, dev)
        return run_pairs(
            model,
            out,
            task,
            Files(source, target, train, columns),
            Files(*held_out, columns) if any(held_out) else None,
            resume=resume,
            decoder_layers=decoder_layers,
            **{"epochs": epochs, "minutes": minutes, "lr": lr, "weight_decay": weight_decay, "seed": seed},
            **{"max_source": max_length, "max_target": max_target, "evaluate_every": evaluate_every},
            precision=precision,
        )
    from debertakit.finetuning.command import run_finetune

    _refuse(finetune, settings, PAIRS_ONLY, "tasks other than translation and summarisation")
    if not sift:
        _refuse(finetune, settings, SIFT, "a run without --sift")
    if task is not None:
        _refuse(finetune, settings, {"dev", *COLUMNS}, f"--task {task}")
    elif train is not None:
        _refuse(finetune, settings, {"data"}, "a run with --train")
    named = {"model", "out", "seeds", "option", *PAIRS_ONLY}
    run_finetune(model, out, seeds, options=option, **{n: v for n, v in settings.items() if n not in named})


def _refuse(command: Callable, given: dict[str, Any], names: Collection[str], where: str) -> None:
    """Raise if one of the options ``names``, which would be ignored, has a non-default value."""
    for name, parameter in inspect.signature(command).parameters.items():
        if name in names and given[name] != parameter.default:
            raise ValueError(f"--{name.replace('_', '-')} is not an option of {where}")


@app.command()
def evaluate(
    models: Annotated[list[Path], typer.Argument(help="A fine-tuned model; with --compare two runs of finetune.")],
    compare: Annotated[bool, typer.Option("--compare", help="Is one better than the other, or luck?")] = False,
    task: Annotated[str | None, typer.Option(help="A benchmark, read from --data.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the benchmark's files; hf: the hub.")] = None,
    file: Annotated[Path | None, typer.Option(help="Your own file instead.")] = None,
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of a second text.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label, labels or score.")] = None,
    separator: Annotated[str | None, typer.Option(help="What stands between several labels of one text.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Column of an option to choose; may be repeated.")] = None,
    source: Annotated[Path | None, typer.Option(help="--task translation, summarisation: texts, one a line.")] = None,
    target: Annotated[Path | None, typer.Option(help="What they should become, one a line.")] = None,
    split: Annotated[str, typer.Option(help="dev, test, dev-mismatched, ...")] = "dev",
    predict_test: Annotated[bool, typer.Option("--predict-test", help="Write the leaderboard's files.")] = False,
    resamples: Annotated[int, typer.Option(min=100, help="With --compare: draws of each test.")] = 1000,
    perplexity: Annotated[
        Path | None, typer.Option(help="A text: its perplexity under an autoregressive model.")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="With --perplexity: tokens in a window.")] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="With --perplexity: from window to window.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for predictions.")] = None,
) -> None:
    """Score a fine-tuned model, write predictions for a leaderboard, compare two runs, or measure perplexity."""
    settings = dict(locals())
    if len(models) != 1 + compare:
        raise ValueError(f"{'two runs are' if compare else 'one model is'} needed, not {len(models)}")
    quiet()

    def only(names: set[str], where: str) -> None:
        _refuse(evaluate, settings, settings.keys() - names - {"models"}, where)

    if perplexity is not None:
        from debertakit.generation.command import run_perplexity

        only({"perplexity", "window", "stride"}, "--perplexity")
        return run_perplexity(models[0], perplexity, window, stride)
    if task in PAIR_TASKS and not compare:
        from debertakit.finetuning.seq2seq import Files, run_evaluate_pairs

        only({"task", "source", "target", "file", "text", "label", "out"}, f"--task {task}")
        files = Files(source, target, file, (text or "source", label or "target"))
        return run_evaluate_pairs(models[0], task, files, out)
    if source is not None or target is not None:
        raise ValueError("--source and --target go with --task translation or summarisation")
    from debertakit.finetuning import command

    if compare:
        only({"compare", "split", "resamples"}, "--compare")
        command.run_compare(models[0], models[1], split, resamples)
    elif predict_test:
        if task is None or data is None or out is None:
            raise ValueError("--predict-test needs --task, --data and --out")
        only({"predict_test", "task", "data", "out"}, "--predict-test")
        command.run_predict_test(models[0], task, data, out)
    else:
        if task is not None:
            only({"task", "data", "split", "out"}, f"--task {task}")
        elif file is not None:
            only({"file", "split", "out", *COLUMNS}, "--file")
        columns = {"text": text, "pair": pair, "label": label, "separator": separator, "options": option}
        command.run_evaluate(models[0], out, task=task, data=data, file=file, split=split, **columns)
