"""Tagged words in tables: a column of words and a column with one tag per word.

JSON and Parquet hold both as lists, CSV as words and tags with spaces between them ("The dog barks", "DET NOUN VERB").
Tags may be numbers if the names are in the Parquet file, as ``datasets`` writes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from debertakit.data.conll import Sentence, tagged
from debertakit.data.examples import Tagged
from debertakit.data.files import table_rows
from debertakit.data.problems import Problems, shorten
from debertakit.data.tables import TableRow, class_names
from debertakit.data.texts import blank, line_of, require

SAMPLE = 1000
FEWEST = 3
"""Texts with fewer words on average are no sentences to tag, but names or phrases with labels."""


def read_tagged(path: Path, words: str, tags: str | None, *, labelled: bool = True) -> list[Tagged]:
    """Read tagged words from the columns ``words`` and ``tags``. If ``labelled`` is False, tags may be missing."""
    problems = Problems(path)
    names = class_names(path, tags) if tags else ()
    rows = table_rows(path, problems, [name for name in (words, tags) if name])
    return tagged(path, sentences(rows, problems, words, tags, names, labelled), problems)


def sentences(
    rows: Iterable[TableRow], problems: Problems, words: str, tags: str | None, names: Sequence[str], labelled: bool
) -> list[Sentence]:
    """``names``: names of the tags, if the column holds numbers."""
    needed = [(name.casefold(),) for name in (words, tags if labelled else None) if name]
    found = []
    for index, row in enumerate(rows):
        if index == 0:
            require(row.values, needed, problems)
        values = {name.casefold(): value for name, value in row.values.items()}
        try:
            found.append(_sentence(row, values, words, tags, names, labelled))
        except ValueError as error:
            problems.skip(row.number, *error.args)
    return found


def _sentence(
    row: TableRow, values: Mapping[str, Any], words: str, tags: str | None, names: Sequence[str], labelled: bool
) -> Sentence:
    given = split(values.get(words.casefold()))
    marked = split(values.get(tags.casefold())) if tags else []
    if not given:
        raise ValueError("no words")
    if not marked and not labelled:
        return Sentence(line_of(row.number) or 0, tuple(map(str, given)), (None,) * len(given))
    if len(given) != len(marked):
        raise ValueError("different numbers of words and tags", f"{len(given)} and {len(marked)}")
    return Sentence(line_of(row.number) or 0, tuple(map(str, given)), tuple(_name(tag, names) for tag in marked))


def _name(tag: object, names: Sequence[str]) -> str:
    if isinstance(tag, int) and not isinstance(tag, bool):
        if not 0 <= tag < len(names):
            raise ValueError("a tag is a number without a name; write the tag itself (B-PER, NOUN)", shorten(tag))
        return names[tag]
    return str(tag)


def split(cell: object) -> list[Any]:
    """The words or tags of a cell."""
    if isinstance(cell, (list, tuple)):
        return list(cell)
    return [] if blank(cell) else str(cell).split()


def holds_tags(path: Path, words: str, tags: str) -> bool:
    """Whether two columns of a table hold words and one tag per word."""
    rows = islice(table_rows(path, Problems(path), (words, tags)), SAMPLE)
    cells = [{name.casefold(): value for name, value in row.values.items()} for row in rows]
    return aligned([row.get(words.casefold()) for row in cells], [row.get(tags.casefold()) for row in cells])


def aligned(words: Sequence[Any], tags: Sequence[Any]) -> bool:
    """Whether the cells of two columns are words and one tag for each of them."""
    pairs = [(a, b) for a, b in zip(words, tags, strict=True) if not blank(a) and not blank(b)]
    counts = [(len(split(a)), len(split(b))) for a, b in pairs]
    if all(isinstance(cell, (list, tuple)) for pair in pairs for cell in pair):
        return sum(a == b for a, b in counts) > len(counts) / 2
    texts = all(isinstance(cell, str) for pair in pairs for cell in pair)
    return texts and all(a == b for a, b in counts) and sum(a for a, _ in counts) >= FEWEST * len(counts)
