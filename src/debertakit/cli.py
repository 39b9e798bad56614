"""The ``deberta`` command: thin, one function a verb. Heavy imports stand inside the functions."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="deberta",
    help="DeBERTa: exact, fast and complete, on a laptop or a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
tokenizer_app = typer.Typer(no_args_is_help=True, help="Train a tokenizer on your own text.")
app.add_typer(tokenizer_app, name="tokenizer")
recipes_app = typer.Typer(help="List the recipes of pretraining, or show one.")
app.add_typer(recipes_app, name="recipes")
export_app = typer.Typer(no_args_is_help=True, help="Write a model in another format.")
app.add_typer(export_app, name="export")


def main() -> None:
    """Run the command; a user's mistake is one line and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        print(f"deberta: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("deberta: stopped", file=sys.stderr)
        sys.exit(130)


@app.command()
def models() -> None:
    """List the released models that debertakit knows as presets, with their parameter counts."""
    from debertakit.presets import parameter_counts

    print(f"{'name':<20}{'layers':>7}{'hidden':>8}{'heads':>7}{'vocabulary':>12}{'backbone':>12}{'total':>12}")
    for row in parameter_counts():
        print(
            f"{row.name:<20}{row.layers:>7}{row.hidden:>8}{row.heads:>7}{row.vocabulary:>12,}"
            f"{row.backbone / 1e6:>10,.1f} M{row.total / 1e6:>10,.1f} M"
        )


@app.command()
def fill(
    text: Annotated[str, typer.Argument(help="A text with one or more [MASK]s.")],
    model: Annotated[str, typer.Option(help="Folder or hub name of a masked language model.")],
    top: Annotated[int, typer.Option(min=1, help="Candidates per mask.")] = 5,
    generator: Annotated[bool, typer.Option(help="Take the generator of a v3 checkpoint.")] = False,
) -> None:
    """Fill the masks of a text."""
    from debertakit.heads import DebertaForMaskedLM
    from debertakit.inference.fill import fill_mask
    from debertakit.text.tokenizers import load_tokenizer

    _quiet()
    if not text.strip():
        raise ValueError("the text is empty")
    tokenizer = load_tokenizer(model)
    network = DebertaForMaskedLM.from_pretrained(model, generator=generator)
    for number, candidates in enumerate(fill_mask(text, network, tokenizer, top), start=1):
        if number > 1:
            print()
        for candidate in candidates:
            print(f"{candidate.probability:7.2%}  {candidate.token:<16} {candidate.text}")


@app.command()
def verify(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; may be repeated.")] = None,
) -> None:
    """Check every variant against stock transformers on the same random weights; exit code 1 if one differs."""
    import json
    from dataclasses import asdict

    from debertakit.config import preset
    from debertakit.verification import TOLERANCE, verify

    for name in variant or []:
        preset(name)  # an unknown name is refused before the work starts
    print(f"max |difference| to stock transformers, tolerance {TOLERANCE:g}")
    print(f"{'variant':<20}{'hidden':>10}{'logits':>10}{'gradients':>11}{'past 512':>10}{'accelerate':>12}  files")
    rows = []
    for row in verify(variant):
        rows.append(row)
        files = f"{'ok' if row.hf_files else 'DIFFER'} (hf) {'ok' if row.microsoft_files else 'DIFFER'} (microsoft)"
        print(
            f"{row.variant:<20}{row.hidden:>10.1e}{row.logits:>10.1e}{row.gradients:>11.1e}{row.past_512:>10.1e}"
            f"{row.accelerated:>12.1e}  {files}{'' if row.passed else '  FAILED'}",
            flush=True,
        )
    if json_file is not None:
        json_file.write_text(json.dumps([{**asdict(r), "passed": r.passed} for r in rows], indent=1), encoding="utf-8")
    if not all(row.passed for row in rows):
        raise typer.Exit(1)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Folder with Microsoft's or transformers' files.")],
    out: Annotated[Path, typer.Option(help="Folder to write config.json and model.safetensors to.")],
    generator: Annotated[bool, typer.Option(help="Take pytorch_model.generator.bin.")] = False,
) -> None:
    """Turn any DeBERTa checkpoint into a safetensors folder, with every head that it holds."""
    from debertakit.checkpoints import convert as convert_checkpoint

    names = convert_checkpoint(source, out, generator)
    print(f"{len(names)} tensors in {out}")


@app.command()
def bench(
    suite: Annotated[str, typer.Argument(help="inference, training, memory or attention.")],
    quick: Annotated[bool, typer.Option(help="Fewer layers, works and rounds; under 50 seconds.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write a row for each work to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios to this PNG.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's own number if not given.")] = None,
) -> None:
    """Measure ours against transformers' DeBERTa, BERT with SDPA and ONNX Runtime, interleaved in one run."""
    suites = ("inference", "training", "memory", "attention")
    if suite not in suites:
        raise ValueError(f"unknown bench {suite!r}; choose from {', '.join(suites)}")
    _quiet()
    import warnings

    import torch

    from debertakit.bench import report
    from debertakit.bench import suites as available

    warnings.filterwarnings("ignore")
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    settings = available.Settings.quick_ones() if quick else available.Settings()
    print(", ".join(f"{key} {value}" for key, value in report.machine().items()))
    results: list = []
    for result in getattr(available, suite)(settings):
        if not results:
            print(report.header(result))
        results.append(result)
        print(report.line(result), flush=True)
    if json_file is not None:
        report.write_json(json_file, suite, results)
    if plot is not None:
        report.plot(plot, suite, results)


@app.command()
def generate(
    model: Annotated[str, typer.Option(help="Folder or hub name of an autoregressive model or a DeBERTa-D.")],
    prompt: Annotated[str | None, typer.Argument(help="How the text begins; for DeBERTa-D, the source text.")] = None,
    file: Annotated[Path | None, typer.Option(help="Prompts, one a line, instead of one prompt.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the texts of --file, one a line.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to write at most.")] = 128,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(min=0.01, help="With --sample: below 1 is bolder on the likely.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="With --sample: only the k likeliest tokens; 0: all.")] = 50,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="With --sample: only the likeliest, up to p.")] = 1.0,
    beams: Annotated[int, typer.Option(min=1, help="Beam search with so many beams.")] = 1,
    no_repeat: Annotated[int, typer.Option(min=0, help="Write no n tokens in a row twice; 0: free.")] = 0,
    prefix_mode: Annotated[bool, typer.Option("--prefix-mode", help="Read the prompt both ways.")] = False,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Prompts of --file at a time.")] = 16,
) -> None:
    """Write: go on from a prompt, or translate and summarise with a DeBERTa-D. Prints the text while it comes."""
    if (prompt is None) == (file is None):
        raise ValueError("give a prompt, or a file of prompts with --file")
    if (file is None) != (out is None):
        raise ValueError("--file and --out go together: prompts in, texts out")
    from transformers import set_seed

    from debertakit.generation.command import load_writer, write, write_all
    from debertakit.text.tokenizers import load_tokenizer

    _quiet()
    set_seed(seed)
    settings: dict = {"max_new_tokens": max_new_tokens, "num_beams": beams, "no_repeat_ngram_size": no_repeat}
    settings |= {"do_sample": sample, "prefix_mode": prefix_mode}
    if sample:
        settings |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    network, tokenizer = load_writer(model), load_tokenizer(model)
    if file is not None and out is not None:
        prompts = file.read_text(encoding="utf-8").splitlines()
        tell = lambda done: print(f"{done} of {len(prompts)}", end="\r", file=sys.stderr, flush=True)  # noqa: E731
        texts = write_all(network, tokenizer, prompts, batch, tell, **settings)
        out.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8")
        return
    assert prompt is not None
    texts = write(network, tokenizer, [prompt], stream=beams == 1, **settings)
    if beams > 1:
        print(texts[0])


@app.command()
def perplexity(
    file: Annotated[Path, typer.Argument(help="A text file.")],
    model: Annotated[str, typer.Option(help="Folder or hub name of an autoregressive model.")],
    window: Annotated[int | None, typer.Option(min=1, help="Tokens in a window; the model's positions.")] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="Tokens from window to window; half a window.")] = None,
) -> None:
    """Perplexity of a text under an autoregressive model: per token, per word, and bits per byte."""
    from debertakit.generation.causal import DebertaForCausalLM
    from debertakit.generation.perplexity import perplexity as measure
    from debertakit.text.tokenizers import load_tokenizer

    _quiet()
    found = measure(DebertaForCausalLM.from_pretrained(model), load_tokenizer(model), file, window, stride)
    print(
        f"perplexity {found.per_token:.2f} per token, {found.per_word:.2f} per word, "
        f"{found.bits_per_byte:.3f} bits per byte, over {found.tokens:,} tokens"
    )


@tokenizer_app.command("train")
def tokenizer_train(
    files: Annotated[list[Path], typer.Argument(help="Text files, plain or compressed (.gz, .xz).")],
    out: Annotated[Path, typer.Option(help="Folder to write the tokenizer to.")],
    kind: Annotated[str, typer.Option(help="unigram, bpe or wordpiece.")] = "unigram",
    vocab_size: Annotated[int, typer.Option(help="Pieces, special ones included.")] = 8192,
) -> None:
    """Train a tokenizer on your own text, English or Chinese."""
    from debertakit.text.training import train_tokenizer

    _quiet()
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

    _quiet()
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
    minutes: Annotated[float | None, typer.Option(help="Train on them for this long instead of --epochs.")] = None,
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
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between evaluations; an epoch.")] = None,
    precision: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the head, the order and the dropout.")] = 0,
    seeds: Annotated[int, typer.Option(help="Runs, with seeds from --seed on; mean, sd, min, max.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
) -> None:
    """Fine-tune a model on a benchmark or on your own files; what is not given is the task's recipe."""
    others = ("model", "out", "seeds", "option", "source", "target", "minutes")
    settings = {name: value for name, value in locals().items() if name not in (*others, "others")}
    _quiet()
    if task in ("translation", "summarisation"):
        from debertakit.finetuning.seq2seq import run_pairs

        given = {"epochs": epochs, "minutes": minutes, "lr": lr, "seed": seed, "resume": resume}
        return run_pairs(model, out, task, (source, target), train, dev, (text, label), **given)
    from debertakit.finetuning.command import run_finetune

    run_finetune(model, out, seeds, options=option, **settings)


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
    split: Annotated[str, typer.Option(help="dev, test, dev-mismatched, ...")] = "dev",
    predict_test: Annotated[bool, typer.Option("--predict-test", help="Write the leaderboard's files.")] = False,
    resamples: Annotated[int, typer.Option(min=100, help="With --compare: draws of each test.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="Folder for predictions.")] = None,
) -> None:
    """Score a fine-tuned model, write predictions for a leaderboard, or compare two runs."""
    if len(models) != 1 + compare:
        raise ValueError(f"{'two runs are' if compare else 'one model is'} needed, not {len(models)}")
    from debertakit.finetuning import command

    _quiet()
    if compare:
        command.run_compare(models[0], models[1], split, resamples)
    elif predict_test:
        if task is None or data is None or out is None:
            raise ValueError("--predict-test needs --task, --data and --out")
        command.run_predict_test(models[0], task, data, out)
    else:
        columns = {"text": text, "pair": pair, "label": label, "separator": separator, "options": option}
        command.run_evaluate(models[0], out, task=task, data=data, file=file, split=split, **columns)


@recipes_app.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    """List the recipes of pretraining."""
    if context.invoked_subcommand is None:
        from debertakit.pretraining.recipes import RECIPES

        for name, function in RECIPES.items():
            print(f"{name:<22}{(function.__doc__ or '').strip()}")


@recipes_app.command("show")
def recipes_show(name: Annotated[str, typer.Argument(help="Name of a recipe.")]) -> None:
    """Print a recipe in full, as JSON."""
    from debertakit.pretraining.recipes import recipe

    print(recipe(name).to_json())


@app.command()
def explain(
    model: Annotated[str, typer.Option(help="Folder or hub name.")],
    texts: Annotated[list[str] | None, typer.Argument(help="One or more texts.")] = None,
    against: Annotated[str | None, typer.Option(help="A second model beside it: DeBERTa, BERT, RoBERTa...")] = None,
    pair: Annotated[str | None, typer.Option(help="Second segment of each text.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the attention explorer to this HTML file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the last layer's attention patterns to this PNG.")] = None,
    shares: Annotated[Path | None, typer.Option(help="Draw content and position shares of all heads.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Texts for --shares: .txt (a text a line), JSONL, ...")] = None,
    attribution: Annotated[bool, typer.Option("--attribution", help="Integrated gradients of a classifier.")] = False,
) -> None:
    """Take attention apart: content and position, per layer and head, as a page or a picture."""
    from debertakit.explain.command import run

    _quiet()
    for line in run(
        texts or [],
        model,
        against=against,
        pair=pair,
        out=out,
        png=png,
        corpus=corpus,
        shares_png=shares,
        attribution=attribution,
    ):
        print(line)


@export_app.command("onnx")
def export_to_onnx(
    model: Annotated[str, typer.Argument(help="Folder or hub name; its config says which head.")],
    out: Annotated[Path, typer.Option(help="Folder for model.onnx, config.json and the tokenizer.")],
    int8: Annotated[bool, typer.Option("--int8", help="Linear layers in int8 (dynamic, per channel).")] = False,
    opset: Annotated[int, typer.Option(help="Version of the ONNX operators, 20 or later.")] = 20,
) -> None:
    """Write model.onnx for stock ONNX Runtime, batch and length free."""
    from debertakit.inference.onnx import export_onnx

    _quiet()
    file = export_onnx(model, out, int8=int8, opset=opset)
    print(f"{file}: opset {opset}, {'int8' if int8 else 'fp32'}, {file.stat().st_size / 1e6:,.1f} MB")


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="Folder or hub name of a model with a trained head.")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; QUESTION CONTEXT; TEXT PAIR; TEXT OPTION...")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="classify, zero-shot, ner, answer, choose, fill, score or embed; else by the head."),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="Second text, for a classifier of pairs.")] = None,
    file: Annotated[Path | None, typer.Option(help="CSV, TSV, JSONL, Parquet or .txt with inputs.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the predictions: .jsonl, .csv, .tsv or .parquet.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="field=column, where names differ; may be repeated.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="zero-shot: a label; may be repeated.")] = None,
    template: Annotated[str | None, typer.Option(help="zero-shot: 'This example is {}.'")] = None,
    long: Annotated[str, typer.Option(help="Texts past the model's length: windows, whole or cut.")] = "windows",
    max_length: Annotated[int | None, typer.Option(help="Tokens read at once.")] = None,
    backend: Annotated[str, typer.Option(help="torch, or onnx for a folder of 'deberta export onnx'.")] = "torch",
    json: Annotated[bool, typer.Option("--json", help="All scores, as JSON.")] = False,
) -> None:
    """Predict on texts or on a file of any size; a run on a file that was cut off goes on."""
    from debertakit.inference.command import predict as run

    _quiet()
    run(
        model,
        texts or [],
        task=task,
        pair=pair,
        file=file,
        out=out,
        columns=column,
        as_json=json,
        labels=label,
        template=template,
        long=long,
        max_length=max_length,
        backend=backend,
    )


@app.command()
def serve(
    models: Annotated[list[str], typer.Argument(help="[NAME=]MODEL[::TASK], one or more.")],
    host: Annotated[str, typer.Option(help="Address; the default is reached from this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    backend: Annotated[str, typer.Option(help="torch or onnx.")] = "torch",
    api_key: Annotated[str | None, typer.Option(envvar="DEBERTA_API_KEY", help="Asked of every caller.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds a first request waits for others to share its batch.")] = 0.003,
    line: Annotated[int, typer.Option(help="Tokens that may wait for a model; past that 429.")] = 1 << 16,
    seconds: Annotated[float, typer.Option(help="That a request may take; past that 504.")] = 30.0,
) -> None:
    """Serve models over HTTP, with a page to try them: http://127.0.0.1:8000."""
    from debertakit.serving.command import serve as run

    _quiet()
    run(models, host=host, port=port, backend=backend, api_key=api_key, wait=wait, line=line, seconds=seconds)


def _quiet() -> None:
    """Keep transformers' load reports out of a command's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


if __name__ == "__main__":
    main()
