"""Convert rows to ``TextExample``: one or two texts and a label, under any of several column names."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from debertakit.data.examples import TextExample
from debertakit.data.folders import SPLITS, Patterns, read_splits
from debertakit.data.problems import Problems, shorten
from debertakit.data.tables import TableRow

LabelValue = str | tuple[str, ...] | float
ReadLabel = Callable[[object], LabelValue | None]
"""Cell value -> label, or None if it has none. Raises ValueError("reason", "detail") for an invalid label."""


@dataclass(frozen=True)
class Columns:
    """Possible names of each column, in lower case. The first name that the file has is used."""

    text: tuple[str, ...]
    pair: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    id: tuple[str, ...] = ("index", "idx", "id", "qid")
    headless: tuple[str, ...] = ()
    """Column names of a file without a header."""

    @property
    def known(self) -> frozenset[str]:
        return frozenset(self.text + self.pair + self.label)


def reader(
    columns: Columns, label: ReadLabel, *, names: Sequence[str], patterns: Patterns = SPLITS, hub: str = ""
) -> Callable[[Path], dict[str, list[TextExample]]]:
    """Make the ``read`` function of a task."""

    def read(folder: Path) -> dict[str, list[TextExample]]:
        return read_splits(
            folder,
            lambda rows, problems, labelled: texts(rows, problems, columns, label, labelled),
            names=names,
            patterns=patterns,
            hub=hub,
            known=tuple(columns.known),
            headless=columns.headless,
        )

    return read


def texts(
    rows: Iterator[TableRow], problems: Problems, columns: Columns, read_label: ReadLabel, labelled: bool
) -> list[TextExample]:
    """Convert rows. Empty texts and invalid labels are skipped; unlabelled test rows need a prediction and are kept."""
    examples: list[TextExample] = []
    required = [names for names in (columns.text, columns.pair, columns.label if labelled else ()) if names]
    for index, row in enumerate(rows):
        if index == 0:
            require(row.values, required, problems)
        values = {name.casefold(): value for name, value in row.values.items()}
        try:
            text = as_text(lookup(values, columns.text))
            pair = as_text(lookup(values, columns.pair)) if columns.pair else None
            label = read_label(lookup(values, columns.label))
            if labelled and label is None:
                raise ValueError("no label")
            if label is not None and (not text or pair == ""):
                raise ValueError("empty text")
        except ValueError as error:
            problems.skip(row.number, *error.args)
            continue
        identity = lookup(values, columns.id)
        name = str(len(examples) if blank(identity) else identity)
        examples.append(TextExample(name, text, pair, label, line=line_of(row.number)))
    return examples


def line_of(number: int | str) -> int | None:
    """The line of a row. Rows of a JSON file with several lists have a name instead."""
    return number if isinstance(number, int) else None


def require(values: Mapping[str, object], columns: Sequence[Sequence[str]], problems: Problems) -> None:
    """Raise if the first row lacks a required column under all of its names."""
    there = {name.casefold() for name in values}
    for names in columns:
        if not there.intersection(names):
            wanted, found = " or ".join(map(repr, names)), ", ".join(shorten(name) for name in values)
            headless = any(map(looks_like_data, values))
            hint = " (if the file has no header, give column numbers, from 1)" if headless else ""
            raise ValueError(f"{problems.path}: no column {wanted}; it has {found}{hint}")


def looks_like_data(name: str) -> bool:
    """Whether a column name looks like a cell, because the table has no header."""
    return len(name) > 40 or name.strip().replace(".", "").isdecimal()


def lookup(values: Mapping[str, object], names: Sequence[str]) -> object:
    return next((values[name] for name in names if name in values), None)


def as_text(value: object) -> str:
    if isinstance(value, (list, dict)):
        raise ValueError("not a text", shorten(value))
    return "" if value is None else str(value).strip()


def blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def hidden(value: object) -> bool:
    """Whether a benchmark withholds this label: blank, or -1 as on the hub."""
    return blank(value) or str(value).strip() in ("-1", "-1.0")


def one_of(labels: Sequence[str], numbers: Sequence[str] = ()) -> ReadLabel:
    """Make a reader of class labels: a name in any case, or an index into ``numbers``."""
    names = {name.casefold(): name for name in labels}
    numbered = {str(number): name for number, name in enumerate(numbers)}

    def read(value: object) -> str | None:
        if hidden(value):
            return None
        key = str(value).strip().casefold()
        if key == "-":
            raise ValueError("label '-': the annotators did not agree")
        if key not in names and key not in numbered:
            raise ValueError("unknown label", f"{shorten(value)} is not one of {', '.join(labels)}")
        return names.get(key) or numbered[key]

    return read


def number(value: object) -> float:
    """Parse a finite score."""
    try:
        score = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError("not a number", shorten(value)) from None
    if not math.isfinite(score):
        raise ValueError("score is not finite", shorten(value))
    return score
