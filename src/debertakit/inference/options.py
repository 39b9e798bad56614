"""Options of prediction and export. Light to import: the command line makes its options from these."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Backend = Literal["torch", "onnx"]
OLDEST_OPSET = 20  # the first ONNX opset with Gelu


@dataclass(frozen=True)
class LoadOptions:
    backend: Backend = "torch"
    """torch, or onnx for a folder from 'deberta export onnx'."""

    def __post_init__(self) -> None:
        if self.backend not in ("torch", "onnx"):
            raise ValueError(f"unknown backend {self.backend!r}; choose torch or onnx")


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
    """Second text, for a model that reads text pairs."""
    json: bool = False
    """Print all scores as JSON."""


@dataclass(frozen=True)
class FileOptions:
    file: Path | None = None
    """Input file: CSV, TSV, JSONL, Parquet or .txt."""
    out: Path | None = None
    """Output file: .jsonl, .csv, .tsv or .parquet."""
    column: list[str] | None = None
    """field=column, if their names differ; repeatable."""
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
    """Quantise linear layers (dynamic, per channel)."""
    opset: int = OLDEST_OPSET
    """ONNX opset version, 20 or later."""


@dataclass(frozen=True)
class FillOptions:
    top: int = 5
    """Candidates per mask."""
    generator: bool = False
    """Use the generator of a v3 checkpoint."""
