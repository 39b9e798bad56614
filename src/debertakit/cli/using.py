"""Commands that use a model in other ways: generate, serve, explain."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import USE, app, quiet
from debertakit.cli.options import Given, build, only, takes
from debertakit.explain.options import Inputs, Outputs
from debertakit.generation.options import GenerationOptions, PromptFileOptions, SamplingOptions, generate_arguments
from debertakit.inference.options import LoadOptions
from debertakit.serving.limits import Limits


@app.command(rich_help_panel=USE)
@takes({"Generation": GenerationOptions, "With --sample": SamplingOptions, "A file of prompts": PromptFileOptions})
def generate(
    model: Annotated[str, typer.Option(help="Folder or hub name of an autoregressive or DeBERTa-D model.")],
    given: Given,
    prompt: Annotated[str | None, typer.Argument(help="Start of the text; for DeBERTa-D, the source text.")] = None,
) -> None:
    """Continue a prompt, or translate and summarise with a DeBERTa-D model. Prints tokens as they are generated."""
    options, sampling = build(GenerationOptions, given), build(SamplingOptions, given)
    files = build(PromptFileOptions, given)
    if (prompt is None) == (files.file is None):
        raise ValueError("pass either a prompt, or --file with one prompt per line")
    if (files.file is None) != (files.out is None):
        raise ValueError("--file and --out go together: prompts in, texts out")
    if prompt is not None:
        only(given, "a run without --file", GenerationOptions, SamplingOptions)
    if not options.sample:
        only(given, "a run without --sample", GenerationOptions, PromptFileOptions)
    from transformers import set_seed

    from debertakit.generation.writing import load_writer, write
    from debertakit.loading import describe

    quiet()
    set_seed(sampling.seed)
    if files.file is not None and files.out is not None:
        _write_file(model, files.file, files.out, files.batch_size, options, sampling)
        return
    assert prompt is not None
    network, tokenizer = load_writer(model), describe(model).tokenizer()
    stream = options.beams == 1
    texts = write(network, tokenizer, [prompt], stream=stream, **generate_arguments(options, sampling))
    if not stream:
        print(texts[0] if network.config.is_encoder_decoder else f"{prompt} {texts[0]}")


def _write_file(
    model: str, file: Path, out: Path, batch_size: int, options: GenerationOptions, sampling: SamplingOptions
) -> None:
    from debertakit.data.pairs import lines_of
    from debertakit.files import replacing
    from debertakit.generation.writing import load_writer, write_all
    from debertakit.loading import describe

    prompts = lines_of(file)

    def show(done: int) -> None:
        print(f"{done} of {len(prompts)}", end="\r", file=sys.stderr, flush=True)

    with replacing(out) as temporary:
        temporary.touch()  # fail before the model is loaded if the folder does not exist
        network, tokenizer = load_writer(model), describe(model).tokenizer()
        arguments = generate_arguments(options, sampling)
        texts = write_all(network, tokenizer, prompts, batch_size, show, **arguments)
        temporary.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8")


@app.command(rich_help_panel=USE)
@takes({"Model": LoadOptions, "Limits": Limits})
def serve(
    models: Annotated[list[str], typer.Argument(help="One or more models: [NAME=]MODEL[::TASK].")],
    given: Given,
    host: Annotated[str, typer.Option(help="Address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    api_key: Annotated[str | None, typer.Option(envvar="DEBERTA_API_KEY", help="Key required from clients.")] = None,
) -> None:
    """Serve models over HTTP, with a web page to try them: http://127.0.0.1:8000."""
    limits = build(Limits, given)
    backend = build(LoadOptions, given).backend
    from debertakit.serving.server import serve as run

    quiet()
    if api_key is None:
        api_key = os.environ.get("DEBERTA_API_KEY")  # typer turns an empty key into None; the server rejects it
    run(models, host=host, port=port, backend=backend, api_key=api_key, limits=limits)


@app.command(rich_help_panel=USE)
@takes({"Outputs": Outputs, "Inputs": Inputs})
def explain(
    model: Annotated[str, typer.Option(help="Folder or hub name.")],
    given: Given,
    texts: Annotated[list[str] | None, typer.Argument(help="One or more texts.")] = None,
) -> None:
    """Split attention into content and position parts, per layer and head, as a web page or a figure."""
    from debertakit.explain.outputs import make_outputs

    quiet()
    for line in make_outputs(model, texts or [], build(Inputs, given), build(Outputs, given)):
        print(line)
