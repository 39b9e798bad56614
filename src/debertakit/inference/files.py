"""A file of inputs in, a file with predictions out: of any size, a block at a time, in the order of the rows.

Input: CSV, TSV, JSONL, JSON, Parquet, or .txt with a text a line. Output, by its suffix: JSONL, CSV, TSV or Parquet. A
row is the input's columns and

    prediction   the answer in short: label, score, entities, option ...
    details      all that the predictor says (results.py), as JSON
    error        why there is no prediction; such rows are counted and do not stop the work

Each block of rows is a file in ``OUT.parts``, written aside and renamed; when all are there they become ``OUT``. A run
that was cut off finds its blocks and goes on behind them.
"""

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debertakit.finetuning.problems import Problems
from debertakit.finetuning.rows import Row, lines, quoting_of, read_rows, table
from debertakit.inference.predictor import LOOK_AHEAD, Input, Predictor
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
from debertakit.text.progress import Progress

if TYPE_CHECKING:
    import pyarrow

ADDED = ("prediction", "details", "error")
OUTPUTS = (".jsonl", ".csv", ".tsv", ".parquet")
JOB = "job.json"


@dataclass(frozen=True)
class Counts:
    rows: int = 0
    errors: int = 0
    """Rows without a prediction, with those that could not be read at all."""


def predict_file(
    predictor: Predictor, source: str | Path, out: str | Path, *, columns: dict[str, str] | None = None, name: str = ""
) -> Counts:
    """``columns``: which column holds a field of the predictor, where the names differ. ``name``: of the model, so that
    a run is not taken up by another."""
    path, target = Path(source), Path(out)
    if target.suffix not in OUTPUTS:
        raise ValueError(f"{target}: write to {', '.join(OUTPUTS)}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if target.resolve() == path.resolve():
        raise ValueError(f"{target} is the input itself")
    given = columns or {}
    problems = Problems(path)
    rows = _rows(path, problems)
    first = list(islice(rows, LOOK_AHEAD))
    if not first:
        raise ValueError(f"{path}: no rows to predict on" + (f"; {problems.skipped[0]}" if problems.skipped else ""))
    check_columns(predictor, list(dict.fromkeys(column for row in first for column in row.values)), given)
    rows = chain(first, rows)
    parts = _open_parts(target, path, given, f"{name} {type(predictor).__name__}")
    counts = Counts()
    suffix = target.suffix
    before = LOOK_AHEAD * sum(1 for _ in parts.glob(f"*{suffix}"))
    with Progress("predicting", "rows", _count(path), before, before) as progress:
        for number in range(sys.maxsize):
            block = list(islice(rows, LOOK_AHEAD))
            if not block:
                break
            file = parts / f"{number:08d}{suffix}"
            if not file.exists():
                _write_aside(file, answer(predictor, block, given))
            counts = Counts(counts.rows + len(block), counts.errors + _errors(file, suffix))
            progress.show(counts.rows, counts.rows)
    _join(parts, target)
    for problem in problems.skipped[:5]:
        print(f"{problem}; left out", file=sys.stderr)
    return replace(counts, errors=counts.errors + len(problems.skipped))


def answer(predictor: Predictor, block: Sequence[Row], columns: dict[str, str]) -> list[dict[str, Any]]:
    """The rows with their predictions, or with what is wrong with them."""
    items = [_attempt(_input, predictor, row, columns) for row in block]
    good = [item for item in items if not isinstance(item, str)]
    results = _attempt(predictor, good) if good else []
    if isinstance(results, str):  # one of them spoils it; then each for itself
        results = [_attempt(predictor, item) for item in good]
    answers = iter(results)
    found = []
    for row, item in zip(block, items, strict=True):
        result = item if isinstance(item, str) else next(answers)
        said: dict[str, Any]
        if isinstance(result, str):
            where = f"row {row.number}: " if row.number else ""
            said = {"prediction": None, "details": None, "error": f"{where}{result}"}
        else:
            said = {"prediction": headline(result), "details": asdict(result), "error": None}
        found.append({**row.values, **said})
    return found


def _attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    """What it gives, or a line about why it cannot."""
    try:
        return work(*arguments)
    except ValueError as error:
        return str(error)


def check_columns(predictor: Predictor, names: Collection[str], columns: dict[str, str]) -> None:
    """Refuses a file that has not what every row needs."""
    for field in predictor.fields:
        column = columns.get(field, field)
        if column not in names:
            raise ValueError(f"no column {column!r}; there are {', '.join(names)} (--column {field}=NAME)")


def _input(predictor: Predictor, row: Row, columns: dict[str, str]) -> Input:
    values = row.values
    item = {}
    for field in (*predictor.fields, *predictor.optional):
        column = columns.get(field, field)
        if column in values and values[column] is not None:
            value = values[column]
            # a cell of a table that holds a list: options, labels
            item[field] = json.loads(value) if isinstance(value, str) and value.startswith('["') else value
        elif field in predictor.fields:
            raise ValueError(f"no column {column!r}; there are {', '.join(values)}")
    return predictor.check(item)


def headline(result: Result) -> str | float:
    """A result in one cell."""
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


# ------------------------------------------------------------------------------------------------------ in and out


def _rows(path: Path, problems: Problems) -> Iterator[Row]:
    if path.suffix == ".txt":
        return (Row(number, {"text": line.rstrip("\r\n")}) for number, line in lines(path, problems))
    if path.suffix in (".csv", ".tsv"):
        return table(path, problems, quoting=quoting_of(path))
    return read_rows(path, problems)


def _count(path: Path) -> int:
    """How many rows there will be, more or less, for the time left."""
    if path.suffix == ".parquet":
        from pyarrow.parquet import read_metadata

        return read_metadata(path).num_rows
    with path.open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def _open_parts(target: Path, source: Path, columns: dict[str, str], name: str) -> Path:
    """The folder of blocks: new, or that of the same job, cut off."""
    stat = source.stat()
    job = {"source": str(source.resolve()), "bytes": stat.st_size, "changed": stat.st_mtime_ns}
    job |= {"columns": columns, "by": name, "block": LOOK_AHEAD}
    parts = target.with_name(target.name + ".parts")
    record = parts / JOB
    if target.exists():
        raise ValueError(f"{target} is there already; choose another name or remove it")
    if record.exists():
        if json.loads(record.read_text(encoding="utf-8")) != job:
            raise ValueError(f"{parts} holds blocks of another job; remove it, or choose another output")
        return parts
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True)
    record.write_text(json.dumps(job), encoding="utf-8")
    return parts


def _write_aside(file: Path, rows: list[dict[str, Any]]) -> None:
    aside = file.with_name(file.name + ".tmp")
    if file.suffix == ".parquet":
        _write_parquet(aside, rows)
    else:
        aside.write_text(_as_text(rows, file.suffix), encoding="utf-8", newline="")
    aside.replace(file)


def _as_text(rows: list[dict[str, Any]], suffix: str) -> str:
    if suffix == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    stream = io.StringIO()
    names = [name for name in rows[0] if name not in ADDED] + list(ADDED)
    writer = csv.DictWriter(stream, names, delimiter="," if suffix == ".csv" else "\t", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "details": row["details"] and json.dumps(row["details"], ensure_ascii=False)})
    return stream.getvalue()


def _write_parquet(file: Path, rows: list[dict[str, Any]]) -> None:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{file}: writing Parquet needs pyarrow: pip install 'debertakit[finetune]'") from None
    parquet.write_table(as_table(rows), file)


def as_table(rows: list[dict[str, Any]]) -> "pyarrow.Table":
    """The rows as Arrow holds them, with the same types in every block."""
    import pyarrow

    flat = [{**row, "details": row["details"] and json.dumps(row["details"], ensure_ascii=False)} for row in rows]
    made = pyarrow.Table.from_pylist(flat)
    texts = {name: made.schema.get_field_index(name) for name in ("details", "error")}
    for name, index in texts.items():  # a block without errors has no type for them
        made = made.set_column(index, name, made.column(name).cast(pyarrow.string()))
    number = pyarrow.types.is_floating(made.schema.field("prediction").type)
    kind = pyarrow.float64() if number else pyarrow.string()
    index = made.schema.get_field_index("prediction")
    return made.set_column(index, "prediction", made.column("prediction").cast(kind))


def _errors(file: Path, suffix: str) -> int:
    """Rows of a finished block that have no prediction."""
    if suffix == ".parquet":
        from pyarrow import parquet

        column = parquet.read_table(file, columns=["error"]).column("error")
        return len(column) - column.null_count
    with file.open(encoding="utf-8", newline="") as stream:
        if suffix == ".jsonl":
            return sum(json.loads(line)["error"] is not None for line in stream)
        return sum(bool(row["error"]) for row in csv.DictReader(stream, delimiter="," if suffix == ".csv" else "\t"))


def _join(parts: Path, target: Path) -> None:
    files = sorted(path for path in parts.iterdir() if path.suffix == target.suffix)
    aside = parts / f"whole{target.suffix}.tmp"
    if target.suffix == ".parquet":
        from pyarrow import parquet

        schema = parquet.read_schema(files[0])
        with parquet.ParquetWriter(aside, schema) as writer:
            for file in files:
                writer.write_table(parquet.read_table(file).cast(schema))
    else:
        with aside.open("wb") as whole:
            for number, file in enumerate(files):
                with file.open("rb") as stream:
                    if number and target.suffix != ".jsonl":
                        stream.readline()  # the header stands there already
                    shutil.copyfileobj(stream, whole)
    aside.replace(target)
    shutil.rmtree(parts)
