"""Commands about checkpoints and formats: models, verify, convert, export, bench."""

from pathlib import Path
from typing import Annotated

import typer

from debertakit.bench.options import WORKS, BenchOptions
from debertakit.cli.base import CONVERT, app, quiet
from debertakit.cli.options import Given, build, only, takes
from debertakit.cli.prediction import complete_columns
from debertakit.data.guessing import require_input
from debertakit.files import require_new
from debertakit.inference.options import CertifyOptions, ExportOptions, InputColumns, ToleranceOptions
from debertakit.model_names import check_model
from debertakit.text.progress import working

exports = typer.Typer(no_args_is_help=True, help="Export a model to another format.")
app.add_typer(exports, name="export", rich_help_panel=CONVERT)


@app.command(rich_help_panel=CONVERT)
def models(
    complexity: Annotated[
        bool, typer.Option("--complexity", help="Compare parameters, FLOPs and memory with BERT and RoBERTa.")
    ] = False,
) -> None:
    """List the released models that have a preset, with their parameter counts."""
    from debertakit.complexity import complexity_table, parameter_counts

    if complexity:
        print("\n".join(complexity_table()))
        return
    print(f"{'name':<20}{'layers':>7}{'hidden':>8}{'heads':>7}{'vocabulary':>12}{'backbone':>12}{'total':>12}")
    for row in parameter_counts():
        print(
            f"{row.name:<20}{row.layers:>7}{row.hidden:>8}{row.heads:>7}{row.vocabulary:>12,}"
            f"{row.backbone / 1e6:>10,.1f} M{row.total / 1e6:>10,.1f} M"
        )


@app.command(rich_help_panel=CONVERT)
@takes()
def doctor() -> None:
    """Show what this machine and installation can do: CPU, kernel, threads, versions, extras."""
    with working("starting"):
        from debertakit.doctor import extras, report
    for title, rows in (("", report()), ("extras:", extras())):
        if title:
            print(title)
        for name, finding in rows:
            print(f"{name:<16}{finding}")


@app.command(rich_help_panel=CONVERT)
@takes()
def verify(
    out: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Check only this variant; repeatable.")] = None,
) -> None:
    """Compare every variant with stock transformers on the same random weights. Exit code 1 if one differs."""
    from dataclasses import asdict

    from debertakit.config import preset
    from debertakit.files import write_json
    from debertakit.verification import TOLERANCE, verify

    if out is not None:
        require_new(out)
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

    _require_new_model(out, source, "model.safetensors")
    names = convert_checkpoint(source, out, generator)
    print(f"{len(names)} tensors in {out}")


@exports.command("onnx")
@takes({"Options": ExportOptions, "--check": ToleranceOptions, "Columns of the file of --check": InputColumns})
def export_to_onnx(
    model: Annotated[str, typer.Argument(help="Folder or hub name. The head is taken from its config.")],
    out: Annotated[Path, typer.Option(help="Folder for model.onnx, config.json and the tokenizer.")],
    given: Given,
) -> None:
    """Export model.onnx for stock ONNX Runtime, with dynamic batch size and sequence length."""
    check_model(model)
    quiet()
    from debertakit.inference.onnx import export_onnx

    options = build(ExportOptions, given)
    _require_new_model(out, Path(model), "model.onnx")
    if options.check is not None:
        _export_checked(model, out, options, given)
        return
    only(given, "an export without --check", ExportOptions)
    file = export_onnx(model, out, int8=options.int8, opset=options.opset)
    weights = "int8" if options.int8 else "fp32"
    print(f"{file}: opset {options.opset}, {weights}, {file.stat().st_size / 1e6:,.1f} MB")


def _export_checked(model: str, out: Path, options: ExportOptions, given: Given) -> None:
    from debertakit.inference.certify import int8_within_tolerance

    assert options.check is not None
    columns = complete_columns(model, options.check, build(InputColumns, given).columns())
    with working("exporting and comparing"):
        found, kept = int8_within_tolerance(
            model, out, options.check, build(ToleranceOptions, given), columns, options.opset
        )
    size = sum(file.stat().st_size for file in out.glob("model.onnx*")) / 1e6
    layers = f"; in fp32: {', '.join(kept)}" if kept else ""
    print(f"{out / 'model.onnx'}: opset {options.opset}, int8, {size:,.1f} MB{layers}\n{found}")
    if not found.passed:
        raise typer.Exit(1)


@app.command(rich_help_panel=CONVERT)
@takes({"Options": CertifyOptions, "Columns": InputColumns})
def certify(
    model: Annotated[str, typer.Argument(help="Folder of a model with a trained head.")],
    file: Annotated[Path, typer.Argument(help="Texts to compare on: CSV, TSV, JSONL, Parquet or .txt.")],
    given: Given,
) -> None:
    """Count the texts that a model decides differently in bf16 or int8 than in fp32. Exit code 1 if too many."""
    model = check_model(model)
    require_input(file)
    options, columns = build(CertifyOptions, given), build(InputColumns, given).columns()
    columns = complete_columns(model, file, columns)
    quiet()
    from debertakit.inference.certify import certify as compare

    with working("comparing"):
        found, stored = compare(model, file, options, columns)
    print(f"{found}\n{stored}")
    if not found.passed:
        raise typer.Exit(1)


def _require_new_model(out: Path, source: Path, file: str) -> None:
    """The output folder must be new or empty, or be the model's own folder without ``file``."""
    require_new(out / file if out.is_dir() and out.resolve() == source.resolve() else out)


@app.command(rich_help_panel=CONVERT)
@takes({"Options": BenchOptions})
def bench(
    suite: Annotated[str, typer.Argument(help="Suite: inference, training, memory or attention.")],
    given: Given,
    out: Annotated[Path | None, typer.Option(help="Write one row per workload to this JSON file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Plot the ratios to this PNG file.")] = None,
) -> None:
    """Benchmark debertakit against transformers' DeBERTa, BERT with SDPA and ONNX Runtime, interleaved in one run."""
    if suite not in WORKS:
        raise ValueError(f"unknown bench {suite!r}; choose from {', '.join(WORKS)}")
    options = build(BenchOptions, given)
    options.works(suite)  # raises if --work names another suite's
    if suite in ("memory", "attention") and options.precision != "fp32":
        raise ValueError(f"--precision is not an option of bench {suite}")
    for file in (out, png):
        if file is not None:
            require_new(file)
    options.apply_isa()
    quiet()
    import warnings

    import torch

    from debertakit.bench import report
    from debertakit.bench import suites as available
    from debertakit.bench.contest import Measurement
    from debertakit.bench.suites import Peak

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    print(", ".join(f"{key} {value}" for key, value in report.machine().items()))
    results: list[Measurement | Peak] = []
    for result in getattr(available, suite)(options):
        if not results:
            print(report.header(result))
        results.append(result)
        print(report.line(result), flush=True)
    if out is not None:
        report.write_results(out, suite, results)
    if png is not None:
        report.plot(png, suite, results)
