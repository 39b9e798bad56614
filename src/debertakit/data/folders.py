"""Find the files of a benchmark in its unpacked archive, or load it from the hub.

    train, dev, test = the first pattern that matches any file; if it matches several files, the largest

This finds ``train.tsv`` and ``sts-train.csv``, and chooses ``train.10k.json`` over ``train.3k.json``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from debertakit.data.examples import E, gold
from debertakit.data.problems import Problems, logger
from debertakit.data.tables import TABLE_SUFFIXES, TableRow, read_rows
from debertakit.installation import install

if TYPE_CHECKING:
    from datasets import Dataset

Patterns = Mapping[str, Sequence[str]]
ReadSplit = Callable[[Iterator[TableRow], Problems, bool], list[E]]
"""Rows, problems, and whether every row must have a label -> examples."""


class NoData(ValueError):
    """There are no files of this task."""


SPLITS: Patterns = {
    "train": ("train.*", "*train*"),
    "dev": ("dev.*", "val.*", "valid.*", "validation.*", "*dev*", "*val*"),
    "test": ("test.*", "*test*"),
}
HUB_SPLITS = {
    "train": "train",
    "validation": "dev",
    "validation_matched": "dev",
    "validation_mismatched": "dev-mismatched",
    "test": "test",
    "test_matched": "test",
    "test_mismatched": "test-mismatched",
}


def read_splits(
    folder: Path,
    read: ReadSplit[E],
    *,
    names: Sequence[str],
    patterns: Patterns = SPLITS,
    hub: str = "",
    known: Sequence[str] = (),
    headless: Sequence[str] = (),
) -> dict[str, list[E]]:
    """Read examples by split from a folder, from "hf" (the dataset ``hub``), or from "hf:NAME[:CONFIG]"."""
    splits = {}
    if is_hub(folder):
        for split, rows in hub_rows(folder, hub).items():
            splits[split] = _finished(rows, Problems(folder, "row"), read, split)
    else:
        for split, path in find(folder, names, patterns).items():
            problems = Problems(path)
            rows = read_rows(path, problems, known=known, headless=headless)
            splits[split] = _finished(rows, problems, read, split)
    return with_dev(folder, splits) if "dev" in patterns else splits


def with_dev(folder: Path, splits: dict[str, list[E]]) -> dict[str, list[E]]:
    """Use a labelled test set as the dev set if there is no dev set."""
    if "dev" not in splits and splits.get("test") and all(gold(example) is not None for example in splits["test"]):
        logger.warning("%s: no dev set; the test set has labels and is used instead", folder)
        splits["dev"] = splits.pop("test")
    return splits


def find(
    folder: Path, names: Sequence[str], patterns: Patterns = SPLITS, suffixes: Sequence[str] = TABLE_SUFFIXES
) -> dict[str, Path]:
    """Find the file of each split. ``names``: subfolders to try if ``folder`` itself has no matching files."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    wanted = {name.casefold() for name in names}
    inside = [child for child in sorted(folder.iterdir()) if child.is_dir() and child.name.casefold() in wanted]
    for place in (folder, *inside):
        files = [f for f in sorted(place.iterdir()) if f.is_file() and f.suffix in suffixes]
        found = {split: _first(files, globs) for split, globs in patterns.items()}
        if any(found.values()):
            return {split: path for split, path in found.items() if path}
    expected = ", ".join(globs[0] for globs in patterns.values())
    there = ", ".join(sorted(child.name for child in folder.iterdir())[:8]) or "nothing"
    raise NoData(f"{folder}: no data files ({expected}); the folder contains {there}")


def is_hub(folder: Path) -> bool:
    return str(folder) == "hf" or str(folder).startswith("hf:")


def _finished(rows: Iterator[TableRow], problems: Problems, read: ReadSplit[E], split: str) -> list[E]:
    examples = read(rows, problems, not split.startswith("test"))
    problems.finish(len(examples))
    return examples


def _first(files: Sequence[Path], globs: Sequence[str]) -> Path | None:
    for glob in globs:
        matching = [path for path in files if path.match(glob)]
        if matching:
            return max(matching, key=lambda path: path.stat().st_size)
    return None


def hub_rows(folder: Path, default: str) -> dict[str, Iterator[TableRow]]:
    """Load rows by split from "hf" (the ``default`` dataset) or "hf:NAME[:CONFIG]"."""
    return {
        split: (TableRow(number, row) for number, row in enumerate(rows, 1))
        for split, rows in hub_splits(folder, default).items()
    }


def hub_splits(folder: Path, default: str) -> dict[str, "Dataset"]:
    """Load the splits of ``hub_rows`` as datasets, which know the names of their classes."""
    source = str(folder).partition(":")[2] or default
    if not source:
        raise NoData("this task cannot be loaded from the hub; pass the folder with its files")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(f"reading from the hub needs `datasets`: {install('finetune')}") from error
    name, _, config = source.partition(":")
    try:
        try:
            dataset = load_dataset(name, config or None)
        except RuntimeError:  # the repository has a script, which `datasets` no longer runs; the hub has its result
            dataset = load_dataset(name, config or None, revision="refs/convert/parquet")
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"hf:{source} cannot be loaded ({reason}); without network, pass the folder with its files"
        ) from error
    return {HUB_SPLITS[split]: rows for split, rows in dataset.items() if split in HUB_SPLITS}
