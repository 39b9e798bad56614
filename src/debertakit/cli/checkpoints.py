"""Commands about checkpoints and formats: models, verify, convert, export, bench."""

from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import CONVERT, app, quiet
from debertakit.cli.options import Given, build, takes
from debertakit.inference.options import ExportOptions

exports = typer.Typer(no_args_is_help=True, help="Export a model to another format.")
app.add_typer(exports, name="export", rich_help_panel=CONVERT)


@app.command(rich_help_panel=CONVERT)
def models() -> None:
    """List the released models that have a preset, with their parameter counts."""
    from debertakit.parameter_counts import parameter_counts

    print(f"{'name':<20}{'layers':>7}{'hidden':>8}{'heads':>7}{'vocabulary':>12}{'backbone':>12}{'total':>12}")
    for row in parameter_counts():
        print(
            f"{row.name:<20}{row.layers:>7}{row.hidden:>8}{row.heads:>7}{row.vocabulary:>12,}"
            f"{row.backbone / 1e6:>10,.1f} M{row.total / 1e6:>10,.1f} M"
        )


@app.command(rich_help_panel=CONVERT)
def verify(
    out: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Check only this variant; repeatable.")] = None,
) -> None:
    """Compare every variant with stock transformers on the same random weights. Exit code 1 if one differs."""
    from dataclasses import asdict

    from debertakit.config import preset
    from debertakit.files import write_json
    from debertakit.verification import TOLERANCE, verify

    for name in variant or []:
        preset(name)  # reject an unknown name before the work starts
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
    if out is not None:
        write_json(out, [{**asdict(row), "passed": row.passed} for row in rows])
    if not all(row.passed for row in rows):
        raise typer.Exit(1)


@app.command(rich_help_panel=CONVERT)
def convert(
    source: Annotated[Path, typer.Argument(help="Checkpoint folder in Microsoft's or transformers' format.")],
    out: Annotated[Path, typer.Option(help="Folder to write config.json and model.safetensors to.")],
    generator: Annotated[bool, typer.Option(help="Convert the generator (pytorch_model.generator.bin).")] = False,
) -> None:
    """Convert any DeBERTa checkpoint, with all its heads, to a safetensors folder."""
    from debertakit.checkpoints import convert as convert_checkpoint

    names = convert_checkpoint(source, out, generator)
    print(f"{len(names)} tensors in {out}")


@exports.command("onnx")
@takes({"Options": ExportOptions})
def export_to_onnx(
    model: Annotated[str, typer.Argument(help="Folder or hub name. The head is taken from its config.")],
    out: Annotated[Path, typer.Option(help="Folder for model.onnx, config.json and the tokenizer.")],
    given: Given,
) -> None:
    """Export model.onnx for stock ONNX Runtime, with dynamic batch size and sequence length."""
    from debertakit.inference.onnx import export_onnx

    quiet()
    options = build(ExportOptions, given)
    file = export_onnx(model, out, int8=options.int8, opset=options.opset)
    weights = "int8" if options.int8 else "fp32"
    print(f"{file}: opset {options.opset}, {weights}, {file.stat().st_size / 1e6:,.1f} MB")


@app.command(rich_help_panel=CONVERT)
def bench(
    suite: Annotated[str, typer.Argument(help="Suite: inference, training, memory or attention.")],
    quick: Annotated[bool, typer.Option(help="Fewer layers, workloads and rounds; under 50 seconds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write one row per workload to this JSON file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Plot the ratios to this PNG file.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: torch's default.")] = None,
) -> None:
    """Benchmark debertakit against transformers' DeBERTa, BERT with SDPA and ONNX Runtime, interleaved in one run."""
    suites = ("inference", "training", "memory", "attention")
    if suite not in suites:
        raise ValueError(f"unknown bench {suite!r}; choose from {', '.join(suites)}")
    quiet()
    import warnings

    import torch

    from debertakit.bench import report
    from debertakit.bench import suites as available
    from debertakit.bench.contest import Measurement
    from debertakit.bench.suites import Peak

    warnings.filterwarnings("ignore")
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    settings = available.BenchSettings.quick_ones() if quick else available.BenchSettings()
    print(", ".join(f"{key} {value}" for key, value in report.machine().items()))
    results: list[Measurement | Peak] = []
    for result in getattr(available, suite)(settings):
        if not results:
            print(report.header(result))
        results.append(result)
        print(report.line(result), flush=True)
    if out is not None:
        report.write_results(out, suite, results)
    if png is not None:
        report.plot(png, suite, results)
