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
) -> None:
    """Pretrain from raw text to a checkpoint; alone, or on many machines under torchrun."""
    from debertakit.pretraining.command import run

    _quiet()
    figures = run(
        recipe, corpus, out, assignments=assignments or [], tokenizer=tokenizer, resume=resume, minutes=minutes
    )
    print(f"{out}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))


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


def _quiet() -> None:
    """Keep transformers' load reports out of a command's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


if __name__ == "__main__":
    main()
