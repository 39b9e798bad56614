"""Commands that use a model in other ways: generate, serve, explain."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import USE, app, quiet, require_unicode
from debertakit.cli.defaults import bundled_specs, default_model
from debertakit.cli.options import Given, build, only, takes
from debertakit.data.guessing import require_input, sample_texts
from debertakit.explain.options import Inputs, Outputs, check_outputs
from debertakit.files import require_new
from debertakit.generation.options import GenerationOptions, PromptFileOptions, SamplingOptions, generate_arguments
from debertakit.inference.options import LoadOptions
from debertakit.model_names import check_model
from debertakit.serving.access import Access, default_hosts
from debertakit.serving.addresses import check_port
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
    check_model(model)
    if files.file is not None:
        require_input(files.file)
    require_unicode(prompt)
    if files.out is not None:
        require_new(files.out)
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
    given: Given,
    models: Annotated[
        list[str] | None,
        typer.Argument(help="One or more models: [NAME=]MODEL[::TASK]. Default: the bundled models."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    api_key: Annotated[str | None, typer.Option(envvar="DEBERTA_API_KEY", help="Key required from clients.")] = None,
    public: Annotated[list[str] | None, typer.Option(help="Path without key, as /ready. Always: /health.")] = None,
    allowed_host: Annotated[list[str] | None, typer.Option(help="Name that clients may use for this server.")] = None,
) -> None:
    """Serve models over HTTP, with a web page to try them: http://127.0.0.1:8000."""
    limits = build(Limits, given)
    loading = build(LoadOptions, given)
    if api_key is None:
        api_key = os.environ.get("DEBERTA_API_KEY")  # typer turns an empty key into None; the server rejects it
    hosts = (*default_hosts(host), *(allowed_host or []))
    access = Access(api_key, (*Access.public, *(public or [])), hosts)
    models = models or bundled_specs()
    for spec in models:
        check_model(spec.partition("=")[2].partition("::")[0] or spec.partition("::")[0])
    check_port(host, port)
    print("starting", file=sys.stderr, flush=True)
    from debertakit.serving.server import serve as run

    quiet()
    run(models, host=host, port=port, loading=loading, access=access, limits=limits)


@app.command(rich_help_panel=USE)
@takes({"Outputs": Outputs, "Inputs": Inputs})
def explain(
    given: Given,
    texts: Annotated[list[str] | None, typer.Argument(help="One or more texts.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder or hub name; with --corpus and --out, repeatable. "
            "Default: the bundled model for the language of the text."
        ),
    ] = None,
) -> None:
    """Split attention into content and position parts, per layer and head, as a web page or a figure."""
    inputs, outputs = build(Inputs, given), build(Outputs, given)
    check_outputs(model or [], texts or [], inputs, outputs)
    models = [check_model(name) for name in model or []]
    if not models:
        corpus = Path(inputs.corpus or "")
        models = [default_model(texts or (sample_texts(corpus, {}) if corpus.is_file() else []))]
    from debertakit.explain.outputs import make_outputs

    quiet()
    require_unicode(*(texts or []), inputs.pair)
    for line in make_outputs(models, texts or [], inputs, outputs):
        print(line)
