"""Commands for training and evaluation: tokenizer, pretrain, recipes, finetune, evaluate."""

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from debertakit.cli.base import TRAIN, app, quiet

tokenizers = typer.Typer(no_args_is_help=True, help="Train a tokenizer on your own text.")
app.add_typer(tokenizers, name="tokenizer", rich_help_panel=TRAIN)
recipe_list = typer.Typer(help="List the pretraining recipes, or show one.")
app.add_typer(recipe_list, name="recipes", rich_help_panel=TRAIN)


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
    vocab_size: Annotated[int, typer.Option(help="Vocabulary size, including special tokens.")] = 8192,
) -> None:
    """Train a tokenizer on your own text, English or Chinese."""
    from debertakit.text.tokenizer_training import train_tokenizer

    quiet()
    tokenizer = train_tokenizer(files, kind=kind, vocab_size=vocab_size)
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
    """List the pretraining recipes."""
    if context.invoked_subcommand is None:
        from debertakit.pretraining.recipes import RECIPES

        for name, function in RECIPES.items():
            print(f"{name:<22}{(function.__doc__ or '').strip()}")


@recipe_list.command("show")
def recipes_show(name: Annotated[str, typer.Argument(help="Recipe name.")]) -> None:
    """Print all settings of a recipe as JSON."""
    from debertakit.pretraining.recipes import recipe

    print(recipe(name).to_json())


@app.command(rich_help_panel=TRAIN)
def finetune(
    model: Annotated[str, typer.Option(help="Folder or hub name of a pretrained model: DeBERTa or any other encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, scores and report.")],
    task: Annotated[
        str | None, typer.Option(help="Benchmark in --data (rte, sst2, squad2, ...), translation or summarisation.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the benchmark's files; hf or hf:NAME: the hub.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="Training file: CSV, TSV, JSONL, Parquet, CoNLL or SQuAD.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Dev-set file. Default: hold out a tenth of --train.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Source texts (translation, summarisation), one per line.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Target texts, one per line.")] = None,
    dev_source: Annotated[Path | None, typer.Option(help="Dev-set sources, one per line, instead of --dev.")] = None,
    dev_target: Annotated[Path | None, typer.Option(help="Dev-set targets, one per line.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Translation, summarisation: minutes, instead of --epochs.")
    ] = None,
    max_target: Annotated[int | None, typer.Option(help="Maximum tokens per target text. Default: 128.")] = None,
    decoder_layers: Annotated[int | None, typer.Option(help="Layers of a new decoder. Default: the encoder's.")] = None,
    text: Annotated[str | None, typer.Option(help="Text column.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second text.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label, labels or score.")] = None,
    separator: Annotated[str | None, typer.Option(help="Separator between the labels of a multi-label text.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Multiple choice: column of an option; repeatable.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Training epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step.")] = None,
    gradient_accumulation: Annotated[int, typer.Option(help="Batches to split a step into, to save memory.")] = 1,
    warmup: Annotated[float | None, typer.Option(help="Warm-up steps; below 1: a fraction of all steps.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW weight decay.")] = None,
    cls_dropout: Annotated[float | None, typer.Option(help="Dropout before the classifier.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Maximum tokens. Default: set by recipe or data.")] = None,
    sift: Annotated[bool, typer.Option("--sift", help="Use scale-invariant adversarial fine-tuning (SiFT).")] = False,
    sift_lambda: Annotated[float | None, typer.Option(help="Weight of the SiFT loss.")] = None,
    sift_step: Annotated[float, typer.Option(help="Size of SiFT's ascent step.")] = 1e-4,
    sift_init: Annotated[float, typer.Option(help="Size of SiFT's initial perturbation.")] = 1e-2,
    balanced: Annotated[bool, typer.Option("--balanced", help="Give rare classes more weight.")] = False,
    layer_decay: Annotated[float, typer.Option(help="Learning rate of a layer relative to the layer above.")] = 1.0,
    lora: Annotated[int | None, typer.Option(help="Train only LoRA updates of this rank (8 is common).")] = None,
    freeze_encoder: Annotated[bool, typer.Option("--freeze-encoder", help="Train only the head.")] = False,
    early_stopping: Annotated[
        int | None, typer.Option(help="Stop after this many evaluations without improvement.")
    ] = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option(min=1, help="Steps between evaluations. Default: an epoch; translation, summarisation: 1000."),
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16 or auto (bf16 if the hardware supports it).")] = "auto",
    seed: Annotated[int, typer.Option(help="Random seed for the head, data order and dropout.")] = 0,
    seeds: Annotated[
        int, typer.Option(help="Number of runs, with seeds from --seed up. Prints mean, sd, min, max.")
    ] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
) -> None:
    """Fine-tune a model on a benchmark or on your own files. Options not given come from the task's recipe."""
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


@app.command(rich_help_panel=TRAIN)
def evaluate(
    models: Annotated[list[Path], typer.Argument(help="A fine-tuned model; with --compare, two finetune runs.")],
    compare: Annotated[bool, typer.Option("--compare", help="Test whether two runs differ significantly.")] = False,
    task: Annotated[str | None, typer.Option(help="Benchmark in --data, translation or summarisation.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the benchmark's files; hf or hf:NAME: the hub.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Your own file, instead of a benchmark.")] = None,
    text: Annotated[str | None, typer.Option(help="Text column.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second text.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label, labels or score.")] = None,
    separator: Annotated[str | None, typer.Option(help="Separator between the labels of a multi-label text.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Multiple choice: column of an option; repeatable.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Source texts (translation, summarisation), one per line.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Target texts, one per line.")] = None,
    split: Annotated[str, typer.Option(help="Split: dev, test, dev-mismatched, ...")] = "dev",
    predict_test: Annotated[bool, typer.Option("--predict-test", help="Write the leaderboard's files.")] = False,
    resamples: Annotated[int, typer.Option(min=100, help="With --compare: resamples per test.")] = 1000,
    perplexity: Annotated[
        Path | None, typer.Option(help="Text file for measuring an autoregressive model's perplexity.")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="With --perplexity: tokens per window.")] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="With --perplexity: tokens from window to window.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for predictions.")] = None,
) -> None:
    """Score a fine-tuned model, write leaderboard predictions, compare two runs, or measure perplexity."""
    settings = dict(locals())
    if len(models) != 1 + compare:
        raise ValueError(f"{'two runs are' if compare else 'one model is'} needed, not {len(models)}")
    quiet()

    def only(names: set[str], where: str) -> None:
        _refuse(evaluate, settings, settings.keys() - names - {"models"}, where)

    if perplexity is not None:
        only({"perplexity", "window", "stride"}, "--perplexity")
        return _perplexity(models[0], perplexity, window, stride)
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


def _perplexity(model: Path, file: Path, window: int | None, stride: int | None) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from debertakit.checkpoints import load_whole
    from debertakit.generation.causal import DebertaForCausalLM
    from debertakit.generation.perplexity import perplexity
    from debertakit.generation.seq2seq import model_type
    from debertakit.text.tokenizers import load_tokenizer

    if model_type(model) == "gpt2":
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    else:
        network = load_whole(DebertaForCausalLM, model)
    found = perplexity(network, load_tokenizer(model), file, window, stride)
    print(
        f"perplexity {found.per_token:.2f} per token, {found.per_word:.2f} per word, "
        f"{found.bits_per_byte:.3f} bits per byte, over {found.tokens:,} tokens"
    )
