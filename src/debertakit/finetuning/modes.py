"""Modes of ``deberta finetune`` and ``deberta evaluate``: one dataclass with the options of each. Light to import."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SEQ2SEQ_TASKS = ("translation", "summarisation")


@dataclass(frozen=True)
class ColumnOptions:
    text: str | None = None
    """Text column."""
    pair: str | None = None
    """Column of the second text."""
    label: str | None = None
    """Column of the label, labels or score."""
    separator: str | None = None
    """Separator between the labels of a multi-label text."""
    option: list[str] | None = None
    """Multiple choice: column of an option; repeatable."""

    def names(self) -> dict[str, Any]:
        """The columns that are set, as keyword arguments of ``finetune`` and ``evaluate``."""
        named = {name: value for name, value in asdict(self).items() if value is not None}
        return {"options" if name == "option" else name: value for name, value in named.items()}


# ------------------------------------------------------------------------------------------------------------ finetune


@dataclass(frozen=True)
class BenchmarkData:
    task: str | None = None
    """Name of a benchmark (rte, sst2, squad2, ...), translation or summarisation."""
    data: Path | None = None
    """Folder with the benchmark's files; hf or hf:NAME: the hub."""


@dataclass(frozen=True)
class OwnData:
    train: Path | None = None
    """Training file: CSV, TSV, JSONL, Parquet, CoNLL or SQuAD."""
    dev: Path | None = None
    """Dev-set file. None: hold out a tenth of --train."""


@dataclass(frozen=True)
class PairData:
    """--train and --dev are tables with the columns --text (source) and --label (target)."""

    task: str | None = None
    source: Path | None = None
    """Source texts, one per line."""
    target: Path | None = None
    """Target texts, one per line."""
    dev_source: Path | None = None
    """Dev-set sources, one per line. None: hold out a tenth of the training texts."""
    dev_target: Path | None = None
    """Dev-set targets, one per line."""
    train: Path | None = None
    dev: Path | None = None
    text: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Seeds:
    seed: int = 0
    """Random seed for new weights, data order and dropout."""
    seeds: int = 1
    """Number of runs, with seeds from --seed up. Prints mean, sd, min and max."""


# ------------------------------------------------------------------------------------------------------------ evaluate


@dataclass(frozen=True)
class Benchmark:
    task: str | None = None
    """Name of a benchmark, translation or summarisation."""
    data: Path | None = None
    """Folder with the benchmark's files; hf or hf:NAME: the hub."""
    split: str = "dev"
    """Split: dev, test, dev-mismatched, ..."""
    out: Path | None = None
    """Folder for predictions."""


@dataclass(frozen=True)
class OwnFile:
    file: Path | None = None
    """Your own file, instead of a benchmark."""
    split: str = Benchmark.split
    out: Path | None = None


@dataclass(frozen=True)
class PairFile:
    task: str | None = None
    source: Path | None = None
    """Source texts, one per line."""
    target: Path | None = None
    """Target texts, one per line."""
    file: Path | None = None
    text: str | None = None
    label: str | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Leaderboard:
    predict_test: bool = False
    """Predict the benchmark's test sets and write the files that its leaderboard accepts."""
    task: str | None = None
    data: Path | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Comparing:
    compare: bool = False
    """Test whether two finetune runs differ significantly."""
    resamples: int = 1000
    """Resamples per test."""
    split: str = Benchmark.split

    def __post_init__(self) -> None:
        if self.resamples < 100:
            raise ValueError(f"resamples={self.resamples}: must be >= 100")
