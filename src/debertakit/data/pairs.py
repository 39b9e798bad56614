"""Text pairs (source and target) from two parallel files, or from two columns of a table."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from debertakit.data.files import table_rows
from debertakit.data.problems import Problems, shorten

FIELDS = ("source", "target")


class Pair(NamedTuple):
    source: str
    target: str


def read_pairs(source: Path, target: Path | None = None, fields: tuple[str, str] = FIELDS) -> list[Pair]:
    """Read two text files line by line, or two columns of a table (CSV, TSV, JSON lines, JSON, Parquet).

    Each run of white space becomes one space. Pairs with an empty side are skipped and counted (problems.py).
    """
    problems = Problems(source)
    rows = _columns(source, fields, problems) if target is None else _lines(source, target)
    pairs = []
    for number, sides in rows:
        texts = [" ".join(side.split()) for side in sides if isinstance(side, str)]
        if len(texts) < len(sides):
            problems.skip(number, "not a text", shorten(next(side for side in sides if not isinstance(side, str))))
            continue
        pair = Pair(*texts)
        if pair.source and pair.target:
            pairs.append(pair)
        else:
            problems.skip(number, "empty text")
    problems.finish(len(pairs))
    return pairs


def lines_of(path: Path) -> list[str]:
    """Split a text file at newlines only, not at the other separators of ``str.splitlines`` (U+2028, \\x0c ...)."""
    return path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")


def _lines(source: Path, target: Path) -> Iterator[tuple[int | str, tuple[object, ...]]]:
    sides = [lines_of(path) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{source} has {len(sides[0]):,} lines and {target} {len(sides[1]):,}: they are not parallel")
    return enumerate(zip(*sides, strict=True), 1)


def _columns(path: Path, fields: tuple[str, str], problems: Problems) -> Iterator[tuple[int | str, tuple[object, ...]]]:
    for place, row in enumerate(table_rows(path, problems, fields)):
        missing = [name for name in fields if name not in row.values]
        if missing and not place:
            raise ValueError(f"{path}: no column {missing[0]!r}; it has {', '.join(map(repr, row.values))}")
        yield row.number, tuple(row.values.get(name) for name in fields)
