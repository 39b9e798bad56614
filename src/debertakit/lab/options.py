"""Options of the comparisons and measures. Light to import: the command line makes its options from these."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MinimalPairOptions:
    pairs: list[Path] | None = None
    """Minimal pairs: a .jsonl file with sentence_good and sentence_bad (BLiMP's format), or a folder of them; repeat
    --pairs for more."""
    limit: int | None = None
    """Score only the first pairs of each paradigm, this many. Default: all."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit={self.limit}: must be >= 1")


@dataclass(frozen=True)
class CompareOptions:
    budget: str = "20M-tokens"
    """Training of each run: tokens (20M-tokens), steps (3000-steps) or time (30m). A busy machine has no effect on the
    result of tokens and steps."""
    seeds: int = 3
    """Runs per recipe, with the seeds 0, 1, ..."""
    tokenizer: str | None = None
    """Tokenizer for all recipes: folder or hub name. None: each recipe trains its own kind, all of one size."""
    vocab_size: int = 8192
    """Vocabulary size of all trained tokenizers."""
    rates: int = 3
    """Learning rates to try for each recipe, around the recipe's own by factors of 2. 1: no sweep."""
    sweep: float = 0.1
    """Length of the sweep's first round, as a part of the budget. Each round keeps the better half of the rates and
    doubles the length."""
    tasks: str | None = None
    """Benchmarks to fine-tune on, separated by commas: cola,sst2,rte,wnut17."""
    data: Path | None = None
    """Folder with one subfolder per task; hf: the hub."""
    pairs: list[Path] | None = None
    """Minimal pairs: a .jsonl file in BLiMP's format, or a folder of them; repeatable."""
    limit: int | None = None
    """Score only the first pairs of each paradigm, this many. None: all."""
    words: int = 2000
    """Held-out words to hide and predict."""
    quick: bool = False
    """A trial of the command in about a minute: models of two narrow layers, few steps, no result."""

    def __post_init__(self) -> None:
        parse_budget(self.budget)
        for name in ("seeds", "rates", "words", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be >= 1")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"--limit {self.limit}: must be >= 1")
        if not 0 < self.sweep <= 1:
            raise ValueError(f"--sweep {self.sweep}: must be above 0 and at most 1")
        if (self.tasks is None) != (self.data is None):
            raise ValueError("--tasks and --data go together: the names of benchmarks, and the folder of their files")

    @property
    def task_names(self) -> list[str]:
        return split_names(self.tasks)


@dataclass(frozen=True)
class ConvergenceOptions:
    tasks: str | None = None
    """Benchmarks to fine-tune on, separated by commas: cola,sst2,rte,wnut17."""
    data: Path | None = None
    """Folder with one subfolder per task; hf: the hub."""
    seeds: int = 1
    """Fine-tuning runs per checkpoint and task."""
    epochs: float | None = None
    """Training epochs. None: the recommended value for the task and the model size."""

    def __post_init__(self) -> None:
        if self.tasks is None or self.data is None:
            raise ValueError("--tasks and --data are needed: the names of benchmarks, and the folder of their files")
        if self.seeds < 1:
            raise ValueError(f"--seeds {self.seeds}: must be >= 1")

    @property
    def task_names(self) -> list[str]:
        return split_names(self.tasks)


@dataclass(frozen=True)
class Budget:
    """Exactly one field is set."""

    tokens: int | None = None
    steps: int | None = None
    minutes: float | None = None

    def part(self, share: float) -> "Budget":
        if self.tokens is not None:
            return Budget(tokens=max(1, round(self.tokens * share)))
        if self.steps is not None:
            return Budget(steps=max(1, round(self.steps * share)))
        assert self.minutes is not None
        return Budget(minutes=self.minutes * share)


UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def parse_budget(text: str) -> Budget:
    """20M-tokens, 3000-steps or 30m."""
    match = re.fullmatch(r"([\d.,_]+)([kKmMbB]?)-(tokens|steps)|([\d.]+)(m|min|h)", text.strip())
    if match is None:
        raise ValueError(f"--budget {text}: expected tokens (20M-tokens), steps (3000-steps) or minutes (30m)")
    count, unit, kind, time, clock = match.groups()
    try:
        if time is not None:
            budget = Budget(minutes=float(time) * (60 if clock == "h" else 1))
        else:
            number = round(float(count.replace(",", "").replace("_", "")) * UNITS[unit.lower()])
            budget = Budget(tokens=number) if kind == "tokens" else Budget(steps=number)
    except ValueError:
        raise ValueError(f"--budget {text}: {count or time} is not a number") from None
    if not (budget.tokens or budget.steps or budget.minutes):
        raise ValueError(f"--budget {text}: must be above 0")
    return budget


def split_names(names: str | None) -> list[str]:
    """cola,sst2 -> ["cola", "sst2"]"""
    return [name.strip() for name in (names or "").split(",") if name.strip()]
