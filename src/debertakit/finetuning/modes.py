"""Modes of ``deberta finetune`` and ``deberta evaluate``: one dataclass with the options of each. Light to import."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from debertakit.protocols import Combine
from debertakit.tasks.listing import SUITES

DEFAULT_MODEL = "microsoft/deberta-v3-small"
"""Pretrained model of ``deberta finetune`` without --model, for a benchmark or without bundled models."""
SEQ2SEQ_TASKS = ("translation", "summarisation")


@dataclass(frozen=True)
class ColumnOptions:
    text: str | None = None
    """Text column. None: guessed from the file; so are the columns of pair and label."""
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
    """Training file: CSV, TSV, JSONL, JSON, Parquet, Excel, CoNLL or SQuAD."""
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


@dataclass(frozen=True)
class SearchOptions:
    search: int | None = None
    """Try this many points of the paper's grid (learning rate, batch size, dropout, warm-up) on the dev set, with
    successive halving. The best one becomes the run."""


# ----------------------------------------------------------------------------------------------------------- benchmark


@dataclass(frozen=True)
class SuiteOptions:
    task: list[str] | None = None
    """Run only this task of the suite; repeatable. None: all tasks that --data has files for."""
    mnli: str = "auto"
    """Start of RTE, MRPC and STS-B (SuperGLUE: RTE and CB). auto: the suite's own run of MNLI, if it has one; none:
    --model; or the folder of a model fine-tuned on MNLI."""
    limit: int | None = None
    """Train on at most this many examples per task: a quick look, not a score to publish. None: all examples."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 2:
            raise ValueError(f"limit={self.limit}: must be >= 2")

    def check(self, suite: str) -> None:
        """Raise if a task is not part of the suite."""
        known = (*SUITES[suite].tasks, *SUITES[suite].extra)
        for name in self.task or ():
            if name not in known:
                raise ValueError(f"{name!r} is not a task of {suite}; choose from {', '.join(known)}")


# ------------------------------------------------------------------------------------------------------------ ensemble


@dataclass(frozen=True)
class EnsembleOptions:
    task: str | None = None
    """Name of the benchmark that the models were fine-tuned on."""
    data: Path | None = None
    """Folder with the benchmark's files; hf or hf:NAME: the hub."""
    file: Path | None = None
    """Your own dev file, instead of a benchmark."""
    combine: Combine = "probabilities"
    """How to combine the models: average their probabilities or logits, or count votes."""
    all_models: bool = False
    """Take all models, instead of selecting members on half of the dev set."""
    resamples: int = 1000
    """Resamples of the significance tests."""


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
class RobustnessOptions:
    robustness: bool = False
    """Score changed texts: typos, case, word order, negation, swapped groups of people. With --out: a report."""
    seed: int = 0
    """Random seed of the changes."""


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
    report: Path | None = None
    """With --compare: write an HTML page about the comparison to this file."""

    def __post_init__(self) -> None:
        if self.resamples < 100:
            raise ValueError(f"resamples={self.resamples}: must be >= 100")
