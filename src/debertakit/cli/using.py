"""Commands that use a model: predict, fill, generate, serve, explain."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import app, quiet


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="Folder or hub name of a model with a trained head.")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="By task: TEXT..., QUESTION CONTEXT, TEXT PAIR, or TEXT OPTION...")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="classify, zero-shot, ner, answer, choose, fill, score or embed. Default: by the model's head."
        ),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="Second text, for a text-pair classifier.")] = None,
    file: Annotated[Path | None, typer.Option(help="Input file: CSV, TSV, JSONL, Parquet or .txt.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output file: .jsonl, .csv, .tsv or .parquet.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="field=column, if their names differ; repeatable.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="zero-shot: candidate label; repeatable.")] = None,
    template: Annotated[str | None, typer.Option(help="zero-shot: template. Default: 'This example is {}.'")] = None,
    long: Annotated[str, typer.Option(help="How to read texts that are too long: windows, whole or cut.")] = "windows",
    max_length: Annotated[int | None, typer.Option(help="Maximum tokens; --long handles longer texts.")] = None,
    backend: Annotated[str, typer.Option(help="torch, or onnx for a folder from 'deberta export onnx'.")] = "torch",
    json: Annotated[bool, typer.Option("--json", help="Print all scores as JSON.")] = False,
    engine: Annotated[str, typer.Option(help="With --file: local, or ray for a cluster (Parquet only).")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="With --engine ray. Default: the whole cluster.")] = None,
) -> None:
    """Predict on texts or on a file of any size. An interrupted run on a file resumes when repeated."""
    from debertakit.inference.command import predict as run

    quiet()
    run(
        model,
        texts or [],
        task=task,
        pair=pair,
        file=file,
        out=out,
        columns=column,
        as_json=json,
        engine=engine,
        workers=workers,
        labels=label,
        template=template,
        long=long,
        max_length=max_length,
        backend=backend,
    )


@app.command()
def fill(
    text: Annotated[str, typer.Argument(help="Text with one or more [MASK] tokens.")],
    model: Annotated[str, typer.Option(help="Folder or hub name of a masked language model.")],
    top: Annotated[int, typer.Option(min=1, help="Candidates per mask.")] = 5,
    generator: Annotated[bool, typer.Option(help="Use the generator of a v3 checkpoint.")] = False,
) -> None:
    """Predict the masked tokens of a text."""
    from debertakit.checkpoints import load_whole
    from debertakit.heads import DebertaForMaskedLM
    from debertakit.inference.fill import fill_mask
    from debertakit.text.tokenizers import load_tokenizer

    quiet()
    if not text.strip():
        raise ValueError("the text is empty")
    tokenizer = load_tokenizer(model)
    network = load_whole(DebertaForMaskedLM, model, generator=generator)
    for number, candidates in enumerate(fill_mask(text, network, tokenizer, top), start=1):
        if number > 1:
            print()
        for candidate in candidates:
            print(f"{candidate.probability:7.2%}  {candidate.token:<16} {candidate.text}")


@app.command()
def generate(
    model: Annotated[str, typer.Option(help="Folder or hub name of an autoregressive or DeBERTa-D model.")],
    prompt: Annotated[str | None, typer.Argument(help="Start of the text; for DeBERTa-D, the source text.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with prompts, one per line.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --file: output file, one text per line.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens to generate.")] = 128,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(min=0.01, help="With --sample: below 1 favours likely tokens.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="With --sample: use only the k likeliest tokens; 0: all.")] = 50,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="With --sample: the likeliest tokens, up to total probability p.")
    ] = 1.0,
    beams: Annotated[int, typer.Option(min=1, help="Number of beams; 1: no beam search.")] = 1,
    no_repeat: Annotated[int, typer.Option(min=0, help="Never repeat an n-gram of this size; 0: no limit.")] = 0,
    prefix_mode: Annotated[bool, typer.Option("--prefix-mode", help="Bidirectional attention in the prompt.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed for --sample.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="With --file: prompts per batch.")] = 16,
) -> None:
    """Continue a prompt, or translate and summarise with a DeBERTa-D model. Prints tokens as they are generated."""
    if (prompt is None) == (file is None):
        raise ValueError("give a prompt, or a file of prompts with --file")
    if (file is None) != (out is None):
        raise ValueError("--file and --out go together: prompts in, texts out")
    from transformers import set_seed

    from debertakit.data.pairs import lines_of
    from debertakit.generation.command import load_writer, write, write_all
    from debertakit.text.tokenizers import load_tokenizer

    quiet()
    set_seed(seed)
    settings: dict = {"max_new_tokens": max_new_tokens, "num_beams": beams, "no_repeat_ngram_size": no_repeat}
    settings |= {"do_sample": sample, "prefix_mode": prefix_mode}
    if sample:
        settings |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    if file is not None and out is not None:
        prompts = lines_of(file)
        aside = out.with_name(out.name + ".part")
        aside.touch()  # fail early if the folder does not exist
        network, tokenizer = load_writer(model), load_tokenizer(model)
        tell = lambda done: print(f"{done} of {len(prompts)}", end="\r", file=sys.stderr, flush=True)  # noqa: E731
        texts = write_all(network, tokenizer, prompts, batch, tell, **settings)
        aside.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8")
        aside.replace(out)
        return
    assert prompt is not None
    network, tokenizer = load_writer(model), load_tokenizer(model)
    texts = write(network, tokenizer, [prompt], stream=beams == 1, **settings)
    if beams > 1:
        print(texts[0] if network.config.is_encoder_decoder else f"{prompt} {texts[0]}")


@app.command()
def serve(
    models: Annotated[list[str], typer.Argument(help="One or more models: [NAME=]MODEL[::TASK].")],
    host: Annotated[str, typer.Option(help="Address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    backend: Annotated[str, typer.Option(help="torch or onnx.")] = "torch",
    api_key: Annotated[str | None, typer.Option(envvar="DEBERTA_API_KEY", help="Key required from clients.")] = None,
    wait: Annotated[
        float, typer.Option(min=0, max=60, help="Seconds that the first request of a batch waits for more requests.")
    ] = 0.003,
    line: Annotated[int, typer.Option(min=1, help="Maximum tokens in a model's queue; beyond that, HTTP 429.")] = 1
    << 16,
    seconds: Annotated[
        float, typer.Option(min=0.001, max=86400, help="Time limit per request in seconds; beyond that, HTTP 504.")
    ] = 30.0,
) -> None:
    """Serve models over HTTP, with a web page to try them: http://127.0.0.1:8000."""
    from debertakit.serving.command import serve as run

    quiet()
    if api_key is None:
        api_key = os.environ.get("DEBERTA_API_KEY")  # typer turns an empty key into None; the server rejects it
    run(models, host=host, port=port, backend=backend, api_key=api_key, wait=wait, queue=line, timeout=seconds)


@app.command()
def explain(
    model: Annotated[str, typer.Option(help="Folder or hub name.")],
    texts: Annotated[list[str] | None, typer.Argument(help="One or more texts.")] = None,
    against: Annotated[str | None, typer.Option(help="Second model to compare: DeBERTa, BERT, RoBERTa, ...")] = None,
    pair: Annotated[str | None, typer.Option(help="Second segment of each text.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the attention explorer to this HTML file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Plot the last layer's attention patterns to this PNG file.")] = None,
    shares: Annotated[Path | None, typer.Option(help="Plot content and position shares to this PNG file.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Texts for --shares: .txt (one text per line), JSONL, ...")] = None,
    attribution: Annotated[bool, typer.Option("--attribution", help="Integrated gradients of a classifier.")] = False,
) -> None:
    """Split attention into content and position parts, per layer and head, as a web page or a figure."""
    from debertakit.explain.command import run

    quiet()
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
