"""Read documents from files, folders and hub datasets, one document at a time.

A document is read as one or more pieces of at most ``PIECE`` characters, so a book, or a file without blank lines,
needs no more memory than an article. A corpus is usually large and written by someone else, so every input error is a
ValueError that names the file and the line or row.
"""

import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from debertakit.installation import install
from debertakit.text.duplicates import Duplicates

PIECE = 100_000
MAX_LINE = 1 << 26  # a longer "line" is not text, and might not fit in memory
FORMATS = (".txt", ".jsonl", ".parquet")
COMPRESSIONS = (".gz", ".xz", ".zst")
TxtDocument = Literal["blank-line", "line", "file"]

_NEWLINES = re.compile("[\r\x0b\x0c\x85\u2028\u2029]\n?")
# C0 and C1 controls, byte-order marks, noncharacters, and lone surrogates (possible in JSON, not in UTF-8)
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff\ufffe\uffff\ud800-\udfff]")


@dataclass
class ReadingCounts:
    """Statistics of reading and cleaning, for the report and the manifest."""

    documents: int = 0
    pieces: int = 0
    empty: int = 0
    control_characters: int = 0
    duplicates: int = 0
    """Documents that were left out."""


@dataclass
class Source:
    """A path (file or folder) or a hub dataset."""

    files: list[Path]
    root: Path | None
    hub: str | None = None

    def __str__(self) -> str:
        return str(self.root or f"hf:{self.hub}")

    def name(self, path: Path) -> str:
        """Name of an input, relative to the root, so that it stays the same if the folder moves."""
        return path.name if self.root is None or path == self.root else path.relative_to(self.root).as_posix()


@dataclass
class DocumentReader:
    """Reads the documents of a corpus. Keeps counts and the number of bytes read."""

    sources: list[Source]
    text_field: str = "text"
    txt_document: TxtDocument = "blank-line"
    duplicates: Duplicates | None = None
    """Finds the documents to leave out. None: every document is read."""
    counts: ReadingCounts = field(default_factory=ReadingCounts)
    bytes_read: int = 0
    ends: list[int] = field(default_factory=list)
    """Number of pieces up to the end of each source that has been read."""

    @property
    def bytes_total(self) -> int:
        return sum(path.stat().st_size for source in self.sources for path in source.files)

    def __str__(self) -> str:
        return ", ".join(map(str, self.sources))

    def pieces(self) -> Iterator[tuple[bool, str]]:
        """Yield (begins a document, clean text) in corpus order."""
        self.ends.clear()
        for source in self.sources:
            yield from self._pieces_of(source)
            self.ends.append(self.counts.pieces)

    def _pieces_of(self, source: Source) -> Iterator[tuple[bool, str]]:
        dropped = False
        for begins, raw in self._hub_rows(str(source.hub)) if source.hub else self._file_rows(source):
            text = self._clean(raw)
            if not text:
                self.counts.empty += begins
                continue
            if begins and self.duplicates is not None:
                dropped = self.duplicates.seen(text)
                self.counts.duplicates += dropped
            if dropped:  # with the rest of a long document
                continue
            self.counts.documents += begins
            for piece in cut(text, PIECE):
                self.counts.pieces += 1
                yield begins, piece
                begins = False

    def _clean(self, text: str) -> str:
        text = _NEWLINES.sub("\n", text)
        text, dropped = _CONTROLS.subn("", text)
        self.counts.control_characters += dropped
        return text.strip()

    def _file_rows(self, source: Source) -> Iterator[tuple[bool, str]]:
        before = self.bytes_read
        for path in source.files:
            kind = _format(path)
            try:
                if kind == ".parquet":
                    yield from _parquet(path, self.text_field)
                else:
                    with path.open("rb") as raw:
                        stream = _decompressed(path, raw)  # keep a reference: pyarrow closes the file otherwise
                        lines = _lines(stream, path)
                        jsonl = kind == ".jsonl"
                        for row in (
                            _jsonl(lines, path, self.text_field) if jsonl else _txt(lines, path, self.txt_document)
                        ):
                            self.bytes_read = before + raw.tell()
                            yield row
            except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(f"{path}: the compressed file is damaged or cut short ({error})") from error
            before += path.stat().st_size
            self.bytes_read = before

    def _hub_rows(self, hub: str) -> Iterator[tuple[bool, str]]:
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise ValueError(f"hf:{hub} needs `datasets`: {install('pretrain')}") from error
        spec, _, revision = hub.partition("@")
        name, config, split = (*spec.split(":"), "", "")[:3]
        try:
            rows = load_dataset(name, config or None, split=split or "train", revision=revision or None, streaming=True)
        except (OSError, ValueError) as error:
            raise ValueError(f"hf:{hub} cannot be loaded: {error}") from error
        for number, row in enumerate(rows, 1):
            yield True, _text_of(row, self.text_field, f"hf:{hub}, row {number}")


def open_documents(
    corpus: str | Path | Sequence[str | Path],
    *,
    text_field: str = "text",
    txt_document: TxtDocument = "blank-line",
    duplicates: Duplicates | None = None,
) -> DocumentReader:
    """Find the inputs. A source is a path (file or folder) or ``hf:name[:config[:split]][@revision]``."""
    names = [corpus] if isinstance(corpus, (str, Path)) else corpus
    return DocumentReader([_find_source(name) for name in names], text_field, txt_document, duplicates)


def split_weight(source: str) -> tuple[str, str]:
    """Split "a.txt=0.7", a source of a mixture, into its name and its weight. The weight is "" if there is none."""
    name, equals, weight = source.rpartition("=")
    weighted = bool(equals) and re.fullmatch(r"[\d.]+", weight) is not None and not Path(source).exists()
    return (name, weight) if weighted else (source, "")


def _find_source(name: str | Path) -> Source:
    if str(name).startswith("hf:"):
        return Source([], None, str(name)[3:])
    root = Path(name)
    if not root.exists():
        raise ValueError(f"{root}: no such file or folder")
    files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file() and _format(p))
    readable = f"{', '.join(FORMATS)}, also with {', '.join(COMPRESSIONS)}"
    if not files:
        raise ValueError(f"{root}: no corpus files in this folder; supported formats: {readable}")
    if not _format(files[0]):
        raise ValueError(f"{root}: unsupported format; supported formats: {readable}")
    return Source(files, root)


def cut(text: str, size: int) -> Iterator[str]:
    """Split into pieces of at most ``size`` characters, before the last newline or space if there is one in range."""
    start = 0
    while len(text) - start > size:
        end = max(text.rfind("\n", start + 1, start + size), text.rfind(" ", start + size // 2, start + size))
        end = end if end > start else start + size
        yield text[start:end]
        start = end
    yield text[start:]


def _format(path: Path) -> str:
    """'.txt' for both a.txt and a.txt.xz; '' for unsupported files."""
    suffix = Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix
    return suffix if suffix in FORMATS and (suffix != ".parquet" or suffix == path.suffix) else ""


def _decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    if path.suffix == ".xz":
        return lzma.open(raw)  # type: ignore[return-value]
    if path.suffix == ".gz":
        return gzip.open(raw)  # type: ignore[return-value]
    if path.suffix == ".zst":
        return io.BufferedReader(_Zstd(raw, path))
    return raw


class _Zstd(io.RawIOBase):
    """Read a zstd file with pyarrow, which the Parquet reader needs anyway."""

    def __init__(self, raw: BinaryIO, path: Path):
        try:
            import pyarrow
        except ImportError as error:
            raise ValueError(f"{path}: reading .zst needs pyarrow: {install('parquet')}") from error
        self.stream, self.path = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd"), path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self.stream.read(len(buffer))
        except OSError as error:
            raise EOFError(str(error)) from error
        buffer[: len(data)] = data
        return len(data)


def _lines(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), 1):
        if len(line) == MAX_LINE:
            raise ValueError(f"{path}, line {number}: longer than {MAX_LINE >> 20} MB; is it text?")
        yield line


def _decode(raw: bytes, path: Path, line: int) -> str:
    """Decode UTF-8. ``raw`` starts at line ``line`` of the file."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line += raw.count(b"\n", 0, error.start)
        raise ValueError(f"{path}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file") from error


def _txt(lines: Iterator[bytes], path: Path, unit: TxtDocument) -> Iterator[tuple[bool, str]]:
    held: list[bytes] = []
    first_line, size, begins = 1, 0, True
    for number, line in enumerate(lines, 1):
        ends = unit == "line" or (unit == "blank-line" and not line.strip())
        held.append(line)
        size += len(line)
        if ends or size >= 8 * PIECE:
            if unit != "blank-line" or len(held) > 1 or not ends:
                yield begins, _decode(b"".join(held), path, first_line)
            begins = ends
            held, first_line, size = [], number + 1, 0
    if held:
        yield begins, _decode(b"".join(held), path, first_line)


def _jsonl(lines: Iterator[bytes], path: Path, text_field: str) -> Iterator[tuple[bool, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(_decode(line, path, number))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not a JSON row ({error.msg}, column {error.colno})") from error
        except RecursionError:
            raise ValueError(f"{path}, line {number}: not a JSON row (nested too deeply)") from None
        yield True, _text_of(row, text_field, f"{path}, line {number}")


def _parquet(path: Path, text_field: str) -> Iterator[tuple[bool, str]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(f"{path}: reading Parquet needs pyarrow: {install('parquet')}") from error
    try:
        file = ParquetFile(path)
        if text_field not in file.schema_arrow.names:
            raise ValueError(f"{path}: no column {text_field!r}; it has {', '.join(file.schema_arrow.names)}")
        number = 0
        for batch in file.iter_batches(batch_size=256, columns=[text_field]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield True, _text_of({text_field: value}, text_field, f"{path}, row {number}")
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error})") from error


def _text_of(row: object, text_field: str, where: str) -> str:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object with a field {text_field!r}, found {type(row).__name__}")
    if text_field not in row:
        raise ValueError(f"{where}: no field {text_field!r}; it has {', '.join(map(repr, row))}")
    value = row[text_field]
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}: field {text_field!r} holds {type(value).__name__}, not text")
    return value or ""
