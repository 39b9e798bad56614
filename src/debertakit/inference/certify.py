"""Compare a lower precision with fp32 on a file of texts (certificates.py says what for).

``int8_within_tolerance`` exports int8 and keeps kinds of linear layers (say, all feed-forward outputs) in fp32, one
more at a time, until the share of different decisions is within the tolerance.
"""

import tempfile
from collections.abc import Mapping
from math import ceil
from pathlib import Path

import numpy as np

from debertakit.inference.certificates import Certificate, hash_of_weights
from debertakit.inference.files import read_inputs
from debertakit.inference.onnx import LINEAR, export_onnx
from debertakit.inference.options import CertifyOptions, ExportOptions, ToleranceOptions
from debertakit.inference.predictor import Input, Predictor, Result
from debertakit.inference.tasks import load

PROBES = 200
"""Texts for the choice of the layers that stay in fp32."""


def certify(
    model: str | Path,
    file: Path,
    options: CertifyOptions,
    columns: Mapping[str, str] | None = None,
) -> tuple[Certificate, Path]:
    """Compare bf16, or the int8 graph in ``options.export``, with fp32. Returns the certificate and its file."""
    folder = Path(model) if options.export is None else options.export
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; a certificate is stored in the folder of the model")
    exact = load(model)
    if exact.kind == "regression" or exact.task not in ("classify", "ner", "answer", "choose"):
        raise ValueError(f"{model}: certify compares decisions, and {exact.task} returns numbers or texts")
    items = read_inputs(exact, file, columns or {}, options.limit)
    needed = ceil(1 / options.tolerance)
    if len(items) < needed:
        raise ValueError(f"{file}: a tolerance of {options.tolerance:.2%} needs {needed:,} rows; found {len(items):,}")
    lower = load(model, precision="bf16") if options.export is None else load(options.export, backend="onnx")
    flips, drift = compare(exact, lower, items)
    found = Certificate(
        "bf16" if options.export is None else "int8",
        file.name,
        len(items),
        flips,
        drift,
        options.tolerance,
        hash_of_weights(folder),
    )
    return found, found.save(folder)


def int8_within_tolerance(
    model: str | Path,
    out: Path,
    file: Path,
    options: ToleranceOptions,
    columns: Mapping[str, str] | None = None,
    opset: int = ExportOptions.opset,
) -> tuple[Certificate, tuple[str, ...]]:
    """Export int8 to ``out``. Returns its certificate and the names in LINEAR that stay in fp32."""
    check = CertifyOptions(options.tolerance, options.limit, export=out)
    kept: tuple[str, ...] = ()
    while True:
        export_onnx(model, out, int8=True, opset=opset, keep=kept)
        found, _ = certify(model, file, check, columns)
        if found.passed or len(kept) == len(LINEAR):
            return found, kept
        kept = (*kept, _most_harmful(model, file, kept, columns or {}))


def _most_harmful(model: str | Path, file: Path, kept: tuple[str, ...], columns: Mapping[str, str]) -> str:
    """Return the linear layers that reduce the error most if they stay in fp32, measured on PROBES texts."""
    exact = load(model)
    items = read_inputs(exact, file, columns, PROBES)
    errors = {}
    for name in LINEAR:
        if name not in kept:
            with tempfile.TemporaryDirectory() as folder:
                export_onnx(model, folder, int8=True, keep=(*kept, name))
                errors[name] = compare(exact, load(folder, backend="onnx"), items)
    return min(errors, key=errors.__getitem__)


def compare(exact: Predictor[Result], lower: Predictor[Result], items: list[Input]) -> tuple[int, float]:
    """Return the number of different decisions and the largest difference of an output."""
    rows = exact.encode(items)
    outputs = [predictor.run(rows) for predictor in (exact, lower)]
    ours, theirs = (exact.decide(items, rows, each) for each in outputs)
    flips = sum(a.headline() != b.headline() for a, b in zip(ours, theirs, strict=True))
    return flips, max(float(np.abs(a - b).max()) for a, b in zip(*outputs, strict=True))
