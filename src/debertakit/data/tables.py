"""Read files as rows: tables (tab, comma, semicolon), JSON lines, JSON, Parquet, Excel.

A row is a number (for messages) and a dict of its columns. Lines that cannot be parsed (not UTF-8, not JSON, longer
than ``MAX_LINE``, too few or too many columns) go to ``Problems``; the caller checks the contents of each row.
Byte-order marks and CRLF are removed.
"""

import csv
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from zipfile import BadZipFile

from debertakit.data.problems import Problems, shorten
from debertakit.installation import install
from debertakit.text.documents import MAX_LINE

T = TypeVar("T")
Quoting = Literal["none", "csv"]
JSON_LINES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (".tsv", ".csv", ".txt", *JSON_LINES, ".json", ".parquet", ".xlsx")
NUMBERS = tuple(str(place) for place in range(1, 1001))
"""Names of the columns of a table without a header."""
MOST_ROW_LINES = 10_000
"""A quoted cell over more lines is taken for an unclosed quotation mark."""
SIGNATURES = {
    b"PK\x03\x04": "a zip file, such as .xlsx or .docx",
    b"\xd0\xcf\x11\xe0": "an old Office file, such as .xls or .doc",
    b"%PDF": "a PDF",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "a Parquet file",
}
"""How files begin that people give by mistake."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # an undecodable byte, or half of a surrogate pair escaped in JSON
_SPACE = re.compile(r"[\s,]*")


class TableRow(NamedTuple):
    number: int | str
    values: dict[str, Any]


def read_rows(
    path: Path, problems: Problems, *, known: Collection[str] = (), headless: Sequence[str] = ()
) -> Iterator[TableRow]:
    """Read the rows of a file according to its suffix.

    ``headless`` names the columns of a table without a header. A table has no header if its first line contains none
    of the ``known`` names. Tables are read as unquoted, as the benchmarks write them.
    """
    suffix = suffix_of(path)
    if suffix in JSON_LINES:
        return json_lines(path, problems)
    if suffix == ".json":
        return json_values(path, problems)
    if suffix == ".parquet":
        return parquet(path, problems)
    if suffix == ".xlsx":
        return excel(path, problems)
    return table(path, problems, quoting="none", known=known, headless=headless)


def suffix_of(path: Path) -> str:
    """.csv for reviews.CSV."""
    return path.suffix.lower()


def table(
    path: Path,
    problems: Problems,
    *,
    quoting: Quoting,
    known: Collection[str] = (),
    headless: Sequence[str] = (),
    needed: Collection[str] = (),
) -> Iterator[TableRow]:
    """Read a table. ``headless``: see ``read_rows``; a first line with all ``needed`` names is also a header."""
    cells = _unquoted(path, problems) if quoting == "none" else _quoted(path, problems)
    begin, first = next(cells, (1, []))
    if not first:
        raise ValueError(f"{path}: the file is empty")
    there = {cell.strip().casefold() for cell in first}
    named = not headless or not there.isdisjoint(known) or (bool(needed) and there.issuperset(needed))
    names = [cell.strip() for cell in first] if named else list(headless)
    for number, row in cells if named else chain([(begin, first)], cells):
        if named and len(row) < len(names):
            problems.skip(number, "fewer columns than the header", f"{len(row)} of {len(names)}")
        elif named and any(row[len(names) :]):
            problems.skip(number, "more columns than the header", f"{len(row)} for {len(names)}")
        else:
            yield TableRow(number, dict(zip(names, row, strict=False)))


def collect(rows: Iterator[TableRow], problems: Problems, parse: Callable[[TableRow], list[T]]) -> list[T]:
    """Collect the examples of rows that hold several each. A row with any error is skipped completely."""
    examples: list[T] = []
    for row in rows:
        examples += _attempt(row, problems, parse)
    return examples


def _attempt(row: TableRow, problems: Problems, parse: Callable[[TableRow], list[T]]) -> list[T]:
    try:
        return parse(row)
    except (KeyError, TypeError, AttributeError) as error:
        problems.skip(row.number, "unexpected structure", f"{type(error).__name__} {error}")
    except UnicodeDecodeError as error:
        problems.skip(row.number, "not UTF-8", f"byte 0x{error.object[error.start]:02x}")
    except json.JSONDecodeError as error:
        problems.skip(row.number, "not JSON", _message(error))
    except ValueError as error:
        problems.skip(row.number, *error.args)
    return []


def delimiter(path: Path) -> str:
    """Delimiter of a table, by its first line: tab, else the more frequent of comma and semicolon."""
    _, line = next(lines(path, Problems(path)), (1, ""))
    if "\t" in line or path.suffix.lower() == ".tsv":
        return "\t"
    return ";" if line.count(";") > line.count(",") else ","


def quoting_of(path: Path) -> Quoting:
    """Decide whether quotes delimit cells ("csv") or belong to the text ("none").

    Comma and semicolon files are always quoted. A tab-separated file may come from a spreadsheet, or from a corpus in
    which a sentence begins with a quotation mark. It is quoted if the whole file follows the quoting rules.
    """
    if delimiter(path) != "\t":
        return "csv"
    if not any('"' in line for _, line in lines(path, Problems(path))):
        return "none"
    trial = Problems(path)
    try:
        widths = {len(row) for _, row in _quoted(path, trial)}
    except ValueError:
        return "none"
    return "csv" if len(widths) == 1 and not trial.skipped else "none"


def json_lines(path: Path, problems: Problems) -> Iterator[TableRow]:
    for number, line in lines(path, problems):
        if line.strip():
            yield from _parsed(number, line, problems)


def json_values(path: Path, problems: Problems) -> Iterator[TableRow]:
    """Read a file of consecutive JSON objects, each on one or more lines, or of one list of objects.

    After a broken object, reading continues at the next line that begins with a brace.
    """
    text, decoder, at, line = whole(path), json.JSONDecoder(), 0, 1
    while True:
        space = _SPACE.match(text, at)
        begin = space.end() if space else at
        line += text.count("\n", at, begin)
        if begin == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError) as error:
            position = error.pos if isinstance(error, json.JSONDecodeError) else begin
            problems.skip(line + text.count("\n", begin, position), "not JSON", _message(error))
            at = text.find("\n{", begin)
            if at < 0:
                return
        else:
            items = value["data"] if isinstance(value, dict) and isinstance(value.get("data"), list) else value
            if isinstance(items, list):
                for index, item in enumerate(items, 1):
                    yield from _checked(f"{line}, item {index}", item, None, problems)
            else:
                yield from _checked(line, value, text[begin:at], problems)
        line += text.count("\n", begin, at)


def parquet(path: Path, problems: Problems) -> Iterator[TableRow]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(f"{path}: reading Parquet needs pyarrow: {install('parquet')}") from error
    problems.unit = "row"
    try:
        batches = ParquetFile(path).iter_batches(batch_size=1024)
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield TableRow(number, row)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error})") from error


def class_names(path: Path, column: str) -> tuple[str, ...]:
    """Class names of a Parquet column of numbers, which ``datasets`` stores in the file. () if there are none."""
    if suffix_of(path) != ".parquet":
        return ()
    from pyarrow.parquet import read_schema

    stored = json.loads((read_schema(path).metadata or {}).get(b"huggingface", b"{}"))
    feature = stored.get("info", {}).get("features", {}).get(column, {})
    return tuple(feature.get("feature", feature).get("names", ()))


def excel(path: Path, problems: Problems) -> Iterator[TableRow]:
    """Read the first sheet of an .xlsx file. Its first row names the columns."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise ImportError(f"{path}: reading .xlsx needs openpyxl: {install('xlsx')}") from None
    problems.unit = "row"
    try:
        book = load_workbook(path, read_only=True, data_only=True)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ValueError(f"{path}: not a readable .xlsx file ({error})") from None
    rows = book.worksheets[0].iter_rows(values_only=True)
    names = ["" if cell is None else str(cell).strip() for cell in next(rows, ())]
    for number, row in enumerate(rows, 2):
        if any(cell is not None for cell in row):
            values = [cell if isinstance(cell, (int, float, type(None))) else str(cell) for cell in row]
            yield TableRow(number, {name: value for name, value in zip(names, values, strict=False) if name})


def lines(path: Path, problems: Problems, *, keep_undecodable: bool = False) -> Iterator[tuple[int, str]]:
    """Yield numbered lines with their line ends, reading at most ``MAX_LINE`` bytes at a time."""
    with path.open("rb") as stream:
        number, too_long = 1, False
        _require_text(path, stream.peek(4096))
        for raw in iter(lambda: stream.readline(MAX_LINE), b""):
            if number == 1:
                raw = raw.removeprefix(BOM_UTF8)
            ends = raw.endswith(b"\n")
            if len(raw) >= MAX_LINE and not ends and not too_long:
                too_long = True
                problems.skip(number, f"line longer than {MAX_LINE >> 20} MB")
            if not too_long:
                line = raw.decode("utf-8", "surrogateescape")
                if keep_undecodable or _decodable(number, line, problems):
                    yield number, line
            if ends:
                number, too_long = number + 1, False


def whole(path: Path) -> str:
    """Read the text of a file. Bytes that are not UTF-8 become lone surrogates."""
    raw = path.read_bytes()
    _require_text(path, raw)
    return raw.removeprefix(BOM_UTF8).decode("utf-8", "surrogateescape")


def decodable(text: str) -> bool:
    return not _LONE_SURROGATE.search(text)


def _unquoted(path: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    separator = delimiter(path)
    for number, line in lines(path, problems):
        if line.strip():
            yield number, line.rstrip("\r\n").split(separator)


def _quoted(path: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """Yield rows, numbered by their first line, because a quoted cell may contain line ends."""
    csv.field_size_limit(MAX_LINE)  # Python's own limit is 131,072 characters
    source, waiting = lines(path, problems, keep_undecodable=True), deque[tuple[int, str]]()
    separator = delimiter(path)
    taken: list[tuple[int, str]] = []  # lines of the current row
    width = 0  # of the first row

    def following() -> Iterator[str]:
        while item := waiting.popleft() if waiting else next(source, None):
            taken.append(item)
            if len(taken) > MOST_ROW_LINES:
                raise csv.Error("too many lines")
            yield item[1]

    reader = csv.reader(following(), delimiter=separator, strict=True)
    while True:
        taken.clear()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            row, reason = [], str(error)
        else:
            width = width or len(row)
            reason = "" if len(taken) == 1 or len(row) == width else "unclosed"
        number = taken[0][0]
        if reason:
            alone = len(taken) == 1 and "unexpected end" not in reason
            problems.skip(number, "badly quoted" if alone else "unclosed quotation mark", reason if alone else "")
            waiting.extendleft(reversed(taken[1:]))  # the lines after the mark are separate rows
            reader = csv.reader(following(), delimiter=separator, strict=True)
        elif any(cell.strip() for cell in row) and _decodable(number, "".join(row), problems):
            if len(taken) > 2 and all(line.count(separator) == width - 1 for _, line in taken):
                problems.repair(
                    number, "unclosed quotation mark?", f"one cell has {len(taken)} lines that look like rows"
                )
            yield number, row


def _parsed(number: int, line: str, problems: Problems) -> Iterator[TableRow]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        problems.skip(number, "not JSON", _message(error))
        return
    yield from _checked(number, value, line, problems)


def _checked(number: int | str, value: object, source: str | None, problems: Problems) -> Iterator[TableRow]:
    """``source``: the text from which the value was parsed, or None for a list item."""
    if not isinstance(value, dict):
        problems.skip(number, "not a JSON object", shorten(value))
        return
    text = json.dumps(value, ensure_ascii=False) if source is None or "\\u" in source else source
    if _decodable(number, text, problems):
        yield TableRow(number, value)


def _decodable(number: int | str, text: str, problems: Problems) -> bool:
    bad = _LONE_SURROGATE.search(text)
    if bad and "\udc80" <= bad.group() <= "\udcff":  # Python's surrogateescape for a byte that is not UTF-8
        problems.skip(number, "not UTF-8", f"byte 0x{ord(bad.group()) & 0xFF:02x}")
    elif bad:
        problems.skip(number, "lone surrogate")
    return not bad


def _require_text(path: Path, beginning: bytes) -> None:
    for signature, name in SIGNATURES.items():
        if beginning.startswith(signature):
            raise ValueError(f"{path}: not text but {name}; save the table as CSV in UTF-8")
    if beginning.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in beginning[:4096]:
        raise ValueError(f"{path}: not UTF-8 text (UTF-16, or not text at all); convert the file to UTF-8")


def _message(error: Exception) -> str:
    return f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else type(error).__name__
