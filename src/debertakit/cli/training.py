"""Commands for training and evaluation: tokenizer, pretrain, recipes, finetune, evaluate."""

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from debertakit.cli.base import app, quiet

tokenizers = typer.Typer(no_args_is_help=True, help="Train a tokenizer on your own text.")
app.add_typer(tokenizers, name="tokenizer")
recipe_list = typer.Typer(help="List the pretraining recipes, or show one.")
app.add_typer(recipe_list, name="recipes")


# Options of finetune by task: only for PAIR_TASKS (source and target texts), or for all tasks.
PAIR_TASKS = ("translation", "summarisation")
PAIRS_ONLY = {"source", "target", "dev_source", "dev_target", "minutes", "max_target", "decoder_layers"}
ALL_TASKS = {"model", "out", "task", "train", "dev", "text", "label", "epochs", "lr", "weight_decay"}
ALL_TASKS |= {"max_length", "evaluate_every", "precision", "seed", "seeds", "resume", "warmup", "early_stopping"}
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


@app.command()
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
        from debertakit.pretraining.recipes import RECIPES

        for name, function in RECIPES.items():
            print(f"{name:<22}{(function.__doc__ or '').strip()}")


@recipe_list.command("show")
def recipes_show(name: Annotated[str, typer.Argument(help="Recipe name.")]) -> None:
    """Print all settings of a recipe as JSON."""
    from debertakit.pretraining.recipes import recipe

    print(recipe(name).to_json())


@app.command()
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
        from debertakit.finetuning.options import Seq2SeqOptions
        from debertakit.finetuning.runs import is_main
        from debertakit.finetuning.seq2seq import PairFiles, finetune_pairs

        _refuse(finetune, settings, settings.keys() - ALL_TASKS - PAIRS_ONLY, f"--task {task}")
        columns = (text or "source", label or "target")
        held_out = (dev_source, dev_target, dev)
        names = ("epochs", "minutes", "lr", "warmup", "weight_decay", "max_target", "decoder_layers", "early_stopping")
        given = {name: settings[name] for name in (*names, "evaluate_every", "precision")} | {"max_source": max_length}
        result = finetune_pairs(
            model,
            out,
            task,
            PairFiles(source, target, train, columns),
            PairFiles(*held_out, columns) if any(held_out) else None,
            Seq2SeqOptions(**{name: value for name, value in given.items() if value is not None}),
            seed=seed,
            seeds=seeds,
            resume=resume,
        )
        if is_main():
            print(result)
        return
    from debertakit.finetuning.train import finetune as train_model

    _refuse(finetune, settings, PAIRS_ONLY, "tasks other than translation and summarisation")
    if not sift:
        _refuse(finetune, settings, SIFT, "a run without --sift")
    if task is not None:
        _refuse(finetune, settings, {"dev", *COLUMNS}, f"--task {task}")
    elif train is not None:
        _refuse(finetune, settings, {"data"}, "a run with --train")
    named = {"model", "out", "option", *PAIRS_ONLY}
    chosen = {**settings, "options": option or None}
    print(train_model(model, out, **{n: v for n, v in chosen.items() if n not in named and v is not None}))


def _refuse(command: Callable, given: dict[str, Any], names: Collection[str], where: str) -> None:
    """Raise if one of the options ``names``, which would be ignored, has a non-default value."""
    for name, parameter in inspect.signature(command).parameters.items():
        if name in names and given[name] != parameter.default:
            raise ValueError(f"--{name.replace('_', '-')} is not an option of {where}")


@app.command()
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
        from debertakit.generation.command import run_perplexity

        only({"perplexity", "window", "stride"}, "--perplexity")
        return run_perplexity(models[0], perplexity, window, stride)
    if task in PAIR_TASKS and not compare:
        from debertakit.finetuning.seq2seq import PairFiles, evaluate_pairs

        only({"task", "source", "target", "file", "text", "label", "out"}, f"--task {task}")
        files = PairFiles(source, target, file, (text or "source", label or "target"))
        print(evaluate_pairs(models[0], task, files, out))
        return
    if source is not None or target is not None:
        raise ValueError("--source and --target go with --task translation or summarisation")
    from debertakit.finetuning import evaluation

    if compare:
        only({"compare", "split", "resamples"}, "--compare")
        found = evaluation.compare_runs(models[0], models[1], split, resamples)
        print(f"{models[0]}: {found.a:.2f}   {models[1]}: {found.b:.2f}\n{found}")
    elif predict_test:
        if task is None or data is None or out is None:
            raise ValueError("--predict-test needs --task, --data and --out")
        only({"predict_test", "task", "data", "out"}, "--predict-test")
        for path, count in evaluation.predict_test(models[0], task, data, out).items():
            print(f"{path}: {count:,} predictions")
    else:
        if task is not None:
            only({"task", "data", "split", "out"}, f"--task {task}")
        elif file is not None:
            only({"file", "split", "out", *COLUMNS}, "--file")
        given: dict[str, Any] = {
            "text": text,
            "pair": pair,
            "label": label,
            "separator": separator,
            "options": option or None,
        }
        columns = {name: value for name, value in given.items() if value is not None}
        scored = evaluation.evaluate(models[0], task=task, data=data, file=file, split=split, **columns)
        print(scored)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            evaluation.write_predictions(out / f"predictions-{split}.jsonl", scored)
