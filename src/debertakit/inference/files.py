"""Predict on a file of any size: read it in blocks and write a file with predictions, in the same row order.

Input: CSV, TSV, JSONL, JSON, Parquet, or .txt with one text per line. Output, chosen by suffix: JSONL, CSV, TSV or
Parquet. An output row has the input's columns and

    prediction   the short answer: label, score, entities, option ...
    details      the full result (results.py), as JSON
    error        why there is no prediction; such rows are counted and do not stop the run

The added columns of each block are written to a file in ``OUT.parts``, under a temporary name and then renamed. When
all blocks are done, the source is read again and merged with them into ``OUT``. An interrupted run reuses its finished
blocks and resumes after them.
"""

import csv
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debertakit.data.problems import Problems
from debertakit.data.tables import JSON_LINES, TableRow, json_lines, json_values, lines, parquet, quoting_of, table
from debertakit.inference.predictor import LISTS, LOOK_AHEAD, Input, Predictor
from debertakit.inference.results import (
    Answers,
    Chosen,
    Classification,
    Embedding,
    Entities,
    Filled,
    Result,
    Score,
)
from debertakit.text.progress import ProgressBar

if TYPE_CHECKING:
    import pyarrow

ADDED = ("prediction", "details", "error")
OUTPUTS = (".jsonl", ".csv", ".tsv", ".parquet")
JOB = "job.json"
WEIGHTS = (".safetensors", ".bin", ".onnx", ".data")
Said = dict[str, Any]
"""Prediction, details and error of one row."""


@dataclass(frozen=True)
class Counts:
    rows: int = 0
    errors: int = 0
    """Rows without a prediction, including rows that could not be read."""


def predict_file(
    predictor: Predictor, source: str | Path, out: str | Path, *, columns: dict[str, str] | None = None, name: str = ""
) -> Counts:
    """Predict on every row of ``source`` and write ``out``.

    ``columns`` maps predictor fields to column names where they differ. ``name`` identifies the model, so that a run is
    not resumed with another model; default: where the model was loaded from.
    """
    path, target = Path(source), Path(out)
    if target.suffix.lower() not in OUTPUTS:
        raise ValueError(f"{target}: write to {', '.join(OUTPUTS)}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if target.resolve() == path.resolve():
        raise ValueError(f"{target} is the input itself")
    if target.suffix.lower() == ".parquet":
        _need_pyarrow(target)
    given = columns or {}
    names, total = _look(path)
    check_columns(predictor, names, given)
    job = _job(predictor, path, given, name)
    parts = _open_parts(target, job)
    counts = Counts()
    problems = Problems(path)
    rows = _rows(path, problems)
    before = LOOK_AHEAD * len(_blocks(parts))
    with ProgressBar("predicting", "rows", total, before, before) as progress:
        for number in range(sys.maxsize):
            block = list(islice(rows, LOOK_AHEAD))
            if not block:
                break
            file = parts / f"{number:08d}.jsonl"
            said = _said(file) if file.exists() else answer(predictor, block, given)
            if not file.exists():
                _write_aside(file, said)
            errors = sum(one["error"] is not None for one in said)
            counts = Counts(counts.rows + len(block), counts.errors + errors)
            progress.show(counts.rows, counts.rows)
    if _stamp(path) != job["source"][1:]:
        raise ValueError(f"{path} has changed in the meantime; remove {parts} and begin again")
    _join(path, parts, target, names, predictor.numeric)
    for problem in problems.skipped[:5]:
        print(f"{problem}; left out", file=sys.stderr)
    return replace(counts, errors=counts.errors + len(problems.skipped))


def answer(predictor: Predictor, block: Sequence[TableRow], columns: dict[str, str]) -> list[Said]:
    """Return the prediction or the error of each row."""
    items = [_attempt(_input, predictor, row, columns) for row in block]
    good = [item for item in items if not isinstance(item, str)]
    results = _attempt(predictor, good) if good else []
    if isinstance(results, str):  # one input failed the batch: run each input alone
        results = [_attempt(predictor, item) for item in good]
    answers = iter(results)
    found: list[Said] = []
    for row, item in zip(block, items, strict=True):
        result = item if isinstance(item, str) else next(answers)
        if isinstance(result, str):
            where = f"row {row.number}: " if row.number else ""
            found.append({"prediction": None, "details": None, "error": f"{where}{result}"})
        else:
            found.append({"prediction": headline(result), "details": asdict(result), "error": None})
    return found


def _attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of ``work``, or its error message."""
    try:
        return work(*arguments)
    except ValueError as error:
        return str(error)


def check_columns(predictor: Predictor, names: Collection[str], columns: dict[str, str]) -> None:
    """Raise if a required or mapped column is missing, or if the input already has an output column."""
    known = (*predictor.fields, *predictor.optional)
    for field in columns:
        if field not in known:
            raise ValueError(f"--column {field}={columns[field]}: this task reads {', '.join(known)}")
    for field in (*predictor.fields, *columns):
        column, other = columns.get(field, field), predictor.instead.get(field, field)
        if column not in names and columns.get(other, other) not in names:
            raise ValueError(f"no column {column!r}; there are {', '.join(names)} (--column {field}=NAME)")
    for name in ADDED:
        if name in names:
            raise ValueError(f"the input has a column {name!r}, which is what the output adds; rename it")


def _input(predictor: Predictor, row: TableRow, columns: dict[str, str]) -> Input:
    item = {}
    for field in (*predictor.fields, *predictor.optional):
        column = columns.get(field, field)
        value = row.values.get(column)
        if field in LISTS and isinstance(value, str):
            value = _list(column, value)
        if value is not None:
            item[field] = value
        elif field in predictor.fields and field not in predictor.instead:
            raise ValueError(f"{column} is missing")
    return predictor.check(item)


def _list(column: str, cell: str) -> Any:
    """Parse a table cell that holds a JSON list (options, labels). An empty cell gives None."""
    try:
        return json.loads(cell) if cell.strip() else None
    except ValueError:
        raise ValueError(f'{column}: a list is written as JSON, ["one", "two"]') from None


def headline(result: Result) -> str | float:
    """Summarise a result in one cell."""
    if isinstance(result, Classification):
        return ";".join(result.labels)
    if isinstance(result, Score):
        return result.score
    if isinstance(result, Entities):
        return ";".join(f"{entity.type}:{entity.text}" for entity in result.entities)
    if isinstance(result, Answers):
        return result.answer
    if isinstance(result, Chosen):
        return result.option
    if isinstance(result, Filled):
        return ";".join(mask[0].token for mask in result.masks)
    assert isinstance(result, Embedding)
    return f"{len(result.embedding)} numbers"


# --------------------------------------------------------------------------------------------- reading and writing


def _rows(path: Path, problems: Problems) -> Iterator[TableRow]:
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return (TableRow(number, {"text": line.rstrip("\r\n")}) for number, line in lines(path, problems))
    if suffix in JSON_LINES:
        return json_lines(path, problems)
    if suffix == ".json":
        return json_values(path, problems)
    if suffix == ".parquet":
        return parquet(path, problems)
    return table(path, problems, quoting=quoting_of(path) if suffix in (".csv", ".tsv") else "none")


def _look(path: Path) -> tuple[list[str], int]:
    """Return all columns in order of first appearance, and the number of rows. Raise if there are no rows."""
    problems = Problems(path)
    rows = _rows(path, problems)
    names: dict[str, None] = {}
    count = 0
    if path.suffix.lower() == ".parquet":
        next(rows, None)  # raises if the file is not Parquet
        from pyarrow.parquet import read_metadata, read_schema

        names, count = dict.fromkeys(read_schema(path).names), read_metadata(path).num_rows
    else:
        for count, row in enumerate(rows, 1):  # noqa: B007
            names.update(dict.fromkeys(row.values))
    if not count:
        raise ValueError(f"{path}: no rows to predict on" + (f"; {problems.skipped[0]}" if problems.skipped else ""))
    return list(names), count


def _job(predictor: Predictor, source: Path, columns: dict[str, str], name: str) -> dict[str, Any]:
    """Fingerprint of a job. Blocks are reused only if the fingerprint is the same."""
    name = name or getattr(predictor.model, "name_or_path", "")
    folder = Path(name)
    files = sorted(folder.iterdir()) if name and folder.is_dir() else []
    job = {
        "source": [str(source.resolve()), *_stamp(source)],
        "columns": columns,
        "model": str(folder.resolve()) if files else name,
        "files": {f.name: _stamp(f) for f in files if f.name == "config.json" or f.suffix in WEIGHTS},
        "by": [type(predictor).__name__, type(predictor.model).__name__],
        "options": predictor.settings(),
        "block": LOOK_AHEAD,
    }
    return json.loads(json.dumps(job))


def _stamp(file: Path) -> list[int]:
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _open_parts(target: Path, job: dict[str, Any]) -> Path:
    """Create the folder of blocks, or reopen it if it belongs to the same, interrupted job."""
    parts = target.with_name(target.name + ".parts")
    record = parts / JOB
    if target.exists():
        raise ValueError(f"{target} is there already; choose another name or remove it")
    if record.exists():
        if json.loads(record.read_text(encoding="utf-8")) != job:
            raise ValueError(f"{parts} holds blocks of another job; remove it, or choose another output")
        return parts
    if parts.exists() and (not parts.is_dir() or any(parts.iterdir())):
        raise ValueError(f"{parts} is there already and is none of our jobs; remove it, or choose another output")
    parts.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(job), encoding="utf-8")
    return parts


def _write_aside(file: Path, block: list[Said]) -> None:
    aside = file.with_name(file.name + ".tmp")
    aside.write_text("".join(_json(said) + "\n" for said in block), encoding="utf-8", newline="")
    aside.replace(file)


def _blocks(parts: Path) -> list[Path]:
    return sorted(parts.glob("*.jsonl"))


def _said(file: Path) -> list[Said]:
    """Read a finished block."""
    with file.open(encoding="utf-8", newline="") as stream:
        return [json.loads(line) for line in stream]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# --------------------------------------------------------------------------------------------------------- merging


def _join(path: Path, parts: Path, target: Path, names: list[str], numeric: bool) -> None:
    """Merge the source rows with their predictions. ``target`` appears only when it is complete."""
    aside = parts / "whole.tmp"
    suffix = target.suffix.lower()
    if suffix != ".parquet":
        _write_text(aside, suffix, names, chain.from_iterable(zip(*both, strict=True) for both in _again(path, parts)))
    elif path.suffix.lower() == ".parquet":
        _parquet_from_parquet(aside, path, parts, numeric)
    else:
        _parquet_from_rows(aside, path, parts, names, numeric)
    aside.replace(target)
    shutil.rmtree(parts)


def _again(path: Path, parts: Path) -> Iterator[tuple[list[dict[str, Any]], list[Said]]]:
    """Read the source again, block by block, with the predictions of each block."""
    rows = _rows(path, Problems(path))
    for file in _blocks(parts):
        said = _said(file)
        yield [row.values for row in islice(rows, len(said))], said


def _write_text(file: Path, suffix: str, names: list[str], rows: Iterator[tuple[dict[str, Any], Said]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        if suffix == ".jsonl":
            stream.writelines(_json({**values, **said}) + "\n" for values, said in rows)
            return
        writer = csv.DictWriter(stream, [*names, *ADDED], delimiter="," if suffix == ".csv" else "\t")
        writer.writeheader()
        for values, said in rows:
            writer.writerow({name: _cell(value) for name, value in {**values, **said}.items()})


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, (dict, list)) else value


def _need_pyarrow(file: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ValueError(f"{file}: writing Parquet needs pyarrow: pip install 'debertakit[parquet]'") from None


def with_added(block: "pyarrow.Table", said: Sequence[Said], numeric: bool) -> "pyarrow.Table":
    """Append the three output columns, with the same types in every block. Input columns keep their types."""
    import pyarrow

    kinds = {name: pyarrow.string() for name in ADDED} | ({"prediction": pyarrow.float64()} if numeric else {})
    for name, kind in kinds.items():
        block = block.append_column(name, pyarrow.array([_cell(one[name]) for one in said], kind))
    return block


def _parquet_from_parquet(file: Path, path: Path, parts: Path, numeric: bool) -> None:
    """Write Parquet with the source's schema."""
    import pyarrow
    from pyarrow.parquet import ParquetFile, ParquetWriter

    source = ParquetFile(path)
    said = chain.from_iterable(map(_said, _blocks(parts)))
    with ParquetWriter(file, with_added(source.schema_arrow.empty_table(), [], numeric).schema) as writer:
        for batch in source.iter_batches(batch_size=LOOK_AHEAD):
            block = pyarrow.Table.from_batches([batch])
            writer.write_table(with_added(block, list(islice(said, batch.num_rows)), numeric))


def _parquet_from_rows(file: Path, path: Path, parts: Path, names: list[str], numeric: bool) -> None:
    """Write Parquet with types common to all blocks. A column without a common type becomes JSON text."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    kinds: dict[str, Any] = dict.fromkeys(names, pyarrow.null())
    for values, _ in _again(path, parts):
        kinds = {name: _common(kind, [row.get(name) for row in values]) for name, kind in kinds.items()}
    kinds = {name: kind if kind is not None and _storable(kind) else None for name, kind in kinds.items()}
    while True:
        schema = pyarrow.schema([(name, kind or pyarrow.string()) for name, kind in kinds.items()])
        try:
            with ParquetWriter(file, with_added(schema.empty_table(), [], numeric).schema) as writer:
                for values, said in _again(path, parts):
                    arrays = [_array(name, kind, [row.get(name) for row in values]) for name, kind in kinds.items()]
                    writer.write_table(with_added(pyarrow.Table.from_arrays(arrays, schema=schema), said, numeric))
            return
        except _UnfitError as error:  # the types unify, but a value does not fit the common type
            kinds[error.column] = None


class _UnfitError(ValueError):
    def __init__(self, column: str):
        super().__init__(column)
        self.column = column


def _common(kind: Any, values: list[Any]) -> Any:
    """Unify ``kind`` with the type of ``values``; None if no common type exists."""
    import pyarrow

    if kind is None:
        return None
    try:
        both = [pyarrow.schema([("x", one)]) for one in (kind, pyarrow.array(values).type)]
        return pyarrow.unify_schemas(both, promote_options="permissive").field("x").type
    except (pyarrow.ArrowException, OverflowError):
        return None


def _storable(kind: Any) -> bool:
    """Parquet cannot store a struct without fields."""
    import pyarrow

    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return (bool(inner) or not pyarrow.types.is_struct(kind)) and all(map(_storable, inner))


def _array(name: str, kind: Any, values: list[Any]) -> Any:
    import pyarrow

    if kind is None:
        return pyarrow.array([None if value is None else _json(value) for value in values], pyarrow.string())
    try:
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowException, OverflowError):
        raise _UnfitError(name) from None
