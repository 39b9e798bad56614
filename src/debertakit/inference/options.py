"""Options of prediction and export. Light to import: the command line makes its options from these."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from debertakit.protocols import PRECISIONS, Precision

Backend = Literal["torch", "onnx", "auto"]
OLDEST_OPSET = 20  # the first ONNX opset with Gelu


@dataclass(frozen=True)
class LoadOptions:
    backend: Backend = "torch"
    """torch; onnx, for a folder from 'deberta export onnx'; or auto: the fastest of torch and the folder's exports."""
    precision: Precision = "fp32"
    """fp32, bf16, or auto: bf16 if 'deberta certify' has certified it for this model and the CPU or GPU has it."""

    def __post_init__(self) -> None:
        if self.backend not in ("torch", "onnx", "auto"):
            raise ValueError(f"unknown backend {self.backend!r}; choose torch, onnx or auto")
        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r}; choose from {', '.join(PRECISIONS)}")
        if self.backend == "onnx" and self.precision != "fp32":
            raise ValueError("--precision needs --backend torch; an ONNX folder has the precision of its export")
        if self.backend == "auto" and self.precision not in ("fp32", "auto"):
            raise ValueError(f"--backend auto takes --precision fp32 or auto, not {self.precision}")


@dataclass(frozen=True)
class LengthOptions:
    long: Literal["windows", "whole", "cut"] | None = None
    """How to read texts longer than --max-length. Default: windows; for multiple choice, cut."""
    max_length: int | None = None
    """Maximum tokens. Default: the length that the model was trained with."""


@dataclass(frozen=True)
class ZeroShotOptions:
    label: list[str] | None = None
    """Candidate label; repeatable."""
    template: str = "This example is {}."
    """Sentence that the model judges for each label."""


@dataclass(frozen=True)
class TextOptions:
    pair: str | None = None
    """Second text, for a model that reads text pairs. With a file: its column."""
    json: bool = False
    """Print all scores as JSON."""


@dataclass(frozen=True)
class InputColumns:
    text: str | None = None
    """Text column. None: as in the training file of the run."""
    pair: str | None = None
    """Column of the second text."""
    column: list[str] | None = None
    """field=column for other fields, for example question=title; repeatable."""

    def columns(self) -> dict[str, str]:
        """Columns that were given: {"text": "review"} for --text review and for --column text=review."""
        found = {field: name for field, name in (("text", self.text), ("pair", self.pair)) if name}
        for column in self.column or []:
            field, equals, name = column.partition("=")
            if not (field and equals and name):
                raise ValueError(f"--column {column}: write it as field=column, for example question=title")
            found[field] = name
        return found


@dataclass(frozen=True)
class FileOptions(InputColumns):
    file: Path | None = None
    """Input file: CSV, TSV, JSONL, Parquet or .txt."""
    out: Path | None = None
    """Output file: .jsonl, .csv, .tsv or .parquet. None: my-predictions.csv for my.csv."""
    engine: Literal["local", "ray"] = "local"
    """Where to run: on this machine, or on a Ray cluster (Parquet only)."""
    workers: int | None = None
    """Number of Ray workers. Default: one per GPU of the cluster, or per CPU without GPUs."""

    def __post_init__(self) -> None:
        if self.engine not in ("local", "ray"):
            raise ValueError(f"unknown engine {self.engine!r}; choose local or ray")
        if self.workers is not None and self.engine != "ray":
            raise ValueError("--workers needs --engine ray")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers={self.workers}: must be >= 1")


@dataclass(frozen=True)
class ExportOptions:
    int8: bool = False
    """Quantise linear layers (dynamic, per channel) and word embeddings (per row)."""
    check: Path | None = None
    """File of texts: keep layers in fp32 until the int8 model decides as the fp32 model within --tolerance."""
    opset: int = OLDEST_OPSET
    """ONNX opset version, 20 or later."""

    def __post_init__(self) -> None:
        if self.check is not None and not self.int8:
            raise ValueError("--check needs --int8: it compares the int8 model with the fp32 model")


@dataclass(frozen=True)
class ToleranceOptions:
    tolerance: float = 0.005
    """Largest accepted share of rows with another decision than in fp32."""
    limit: int = 2000
    """Number of rows to read."""

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"--tolerance {self.tolerance}: must be above 0 and below 1")
        if self.limit < 1:
            raise ValueError(f"--limit {self.limit}: must be 1 or more")


@dataclass(frozen=True)
class CertifyOptions(ToleranceOptions):
    export: Path | None = None
    """Certify this folder from 'deberta export onnx --int8' instead of bf16."""


@dataclass(frozen=True)
class FillOptions:
    top: int = 5
    """Candidates per mask."""
    generator: bool = False
    """Use the generator of a v3 checkpoint."""
