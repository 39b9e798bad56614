"""Predict on a file of any size: read it in blocks and write a file with predictions, in the same row order.

Input: CSV, TSV, JSONL, JSON, Parquet, or .txt with one text per line. Output, chosen by suffix: JSONL, CSV, TSV or
Parquet. An output row has the input's columns and

    prediction   the short answer: label, score, entities, option ...
    details      the full result, as JSON
    error        why there is no prediction; such rows are counted and do not stop the run

The predictions of each block are written to a file in ``OUT.parts``. When all blocks are done, the source is read again
and merged with them into ``OUT`` (output.py). An interrupted run reuses its finished blocks and resumes after them.
"""

import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypedDict, TypeVar

from debertakit.data.problems import Problems
from debertakit.data.tables import JSON_LINES, TableRow, json_lines, json_values, lines, parquet, quoting_of, table
from debertakit.files import write_json, write_text
from debertakit.inference.output import (
    ADDED,
    OUTPUTS,
    Row,
    RowPrediction,
    require_pyarrow,
    to_json,
    write_output,
)
from debertakit.inference.predictor import LOOK_AHEAD, Input, Predictor, Result
from debertakit.text.progress import ProgressBar

JOB = "job.json"
WEIGHTS = (".safetensors", ".bin", ".onnx", ".data")
Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Counts:
    rows: int = 0
    errors: int = 0
    """Rows without a prediction, including rows that could not be read."""


def predict_file(
    predictor: Predictor[Result],
    source: str | Path,
    out: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    name: str = "",
) -> Counts:
    """Predict on every row of ``source`` and write ``out``.

    ``columns`` maps predictor fields to column names where they differ. ``name`` identifies the model, so that a run is
    not resumed with another model; default: where the model was loaded from.
    """
    path, target = Path(source), Path(out)
    if target.suffix.lower() not in OUTPUTS:
        raise ValueError(f"{target}: the output must end in {', '.join(OUTPUTS)}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if target.resolve() == path.resolve():
        raise ValueError(f"{target} is also the input; choose another output")
    if target.suffix.lower() == ".parquet":
        require_pyarrow(target)
    columns = columns or {}
    names, total = _columns_and_size(path)
    check_columns(predictor, names, columns)
    job = _job(predictor, path, columns, name)
    parts = _open_parts(target, job)
    counts = Counts()
    problems = Problems(path)
    rows = _rows(path, problems)
    done = LOOK_AHEAD * len(_block_files(parts))
    with ProgressBar("predicting", "rows", total, done, done) as progress:
        for number in range(sys.maxsize):
            block = list(islice(rows, LOOK_AHEAD))
            if not block:
                break
            file = parts / f"{number:08d}.jsonl"
            if not file.exists():
                write_text(file, "".join(to_json(row) + "\n" for row in predict_rows(predictor, block, columns)))
            errors = sum(row["error"] is not None for row in _read_block(file))
            counts = Counts(counts.rows + len(block), counts.errors + errors)
            progress.show(counts.rows, counts.rows)
    if _stamp(path) != job["source"][1:]:
        raise ValueError(f"{path} changed during the run; remove {parts} and start again")
    write_output(target, path, names, partial(_merged_blocks, path, parts), predictor.numeric)
    shutil.rmtree(parts)
    for problem in problems.skipped[:5]:
        print(f"{problem}; skipped", file=sys.stderr)
    return replace(counts, errors=counts.errors + len(problems.skipped))


def predict_rows(
    predictor: Predictor[Result], block: Sequence[TableRow], columns: Mapping[str, str]
) -> list[RowPrediction]:
    """Return the prediction or the error of each row."""
    items = [_value_or_error(partial(_input, predictor, row, columns)) for row in block]
    usable = [item for item in items if not isinstance(item, str)]
    results: list[Result] | list[Result | str] | str = _value_or_error(lambda: predictor(usable)) if usable else []
    if isinstance(results, str):  # one input failed the batch: run each input alone
        results = [_value_or_error(partial(predictor, item)) for item in usable]
    remaining = iter(results)
    predictions = []
    for row, item in zip(block, items, strict=True):
        result = item if isinstance(item, str) else next(remaining)
        if isinstance(result, Result):
            predictions.append(RowPrediction(prediction=result.headline(), details=asdict(result), error=None))
        else:
            where = f"row {row.number}: " if row.number else ""
            predictions.append(RowPrediction(prediction=None, details=None, error=f"{where}{result}"))
    return predictions


def _value_or_error(work: Callable[[], Returned]) -> Returned | str:
    """Return the result of ``work``, or its error message."""
    try:
        return work()
    except ValueError as error:
        return str(error)


def check_columns(predictor: Predictor[Result], names: Collection[str], columns: Mapping[str, str]) -> None:
    """Raise if a required or mapped column is missing, or if the input already has an output column."""
    known = [field.name for field in predictor.fields]
    for name in columns:
        if name not in known:
            raise ValueError(f"--column {name}={columns[name]}: this task reads {', '.join(known)}")
    for field in predictor.fields:
        if not field.required and field.name not in columns:
            continue
        accepted = [field.name, *(other.name for other in predictor.fields if other.instead_of == field.name)]
        if not any(columns.get(name, name) in names for name in accepted):
            column = columns.get(field.name, field.name)
            raise ValueError(f"no column {column!r}; there are {', '.join(names)} (--column {field.name}=NAME)")
    for name in ADDED:
        if name in names:
            raise ValueError(f"the input has a column {name!r}, which the output adds; rename it")


def _input(predictor: Predictor[Result], row: TableRow, columns: Mapping[str, str]) -> Input:
    replaceable = {field.instead_of for field in predictor.fields}
    item = {}
    for field in predictor.fields:
        column = columns.get(field.name, field.name)
        value = row.values.get(column)
        if field.holds != "text" and isinstance(value, str):
            value = _parsed_list(column, value)
        if value is not None:
            item[field.name] = value
        elif field.required and field.name not in replaceable:
            raise ValueError(f"{column} is missing")
    return predictor.check(item)


def _parsed_list(column: str, cell: str) -> object:
    """Parse a table cell that holds a JSON list (options, labels). An empty cell gives None."""
    try:
        return json.loads(cell) if cell.strip() else None
    except ValueError:
        raise ValueError(f'{column}: write a list as JSON, for example ["one", "two"]') from None


# ------------------------------------------------------------------------------------------------------ the source


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


def _columns_and_size(path: Path) -> tuple[list[str], int]:
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


def _merged_blocks(path: Path, parts: Path) -> Iterator[tuple[list[Row], list[RowPrediction]]]:
    """Read the source again, block by block, with the predictions of each block."""
    rows = _rows(path, Problems(path))
    for file in _block_files(parts):
        predictions = _read_block(file)
        yield [row.values for row in islice(rows, len(predictions))], predictions


# --------------------------------------------------------------------------------------------------- finished blocks


class JobRecord(TypedDict):
    """Fingerprint of a job. Finished blocks are reused only if it is the same."""

    source: list[str | int]
    columns: dict[str, str]
    model: str
    files: dict[str, list[int]]
    by: list[str]
    options: dict[str, object]
    block: int


def _job(predictor: Predictor[Result], source: Path, columns: Mapping[str, str], name: str) -> JobRecord:
    name = name or getattr(predictor.model, "name_or_path", "")
    folder = Path(name)
    files = sorted(folder.iterdir()) if name and folder.is_dir() else []
    job = JobRecord(
        source=[str(source.resolve()), *_stamp(source)],
        columns=dict(columns),
        model=str(folder.resolve()) if files else name,
        files={file.name: _stamp(file) for file in files if file.name == "config.json" or file.suffix in WEIGHTS},
        by=[type(predictor).__name__, type(predictor.model).__name__],
        options=predictor.settings(),
        block=LOOK_AHEAD,
    )
    return json.loads(json.dumps(job))  # tuples become lists, as in the stored record


def _stamp(file: Path) -> list[int]:
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _open_parts(target: Path, job: JobRecord) -> Path:
    """Create the folder of blocks, or reopen it if it belongs to the same, interrupted job."""
    parts = target.with_name(target.name + ".parts")
    record = parts / JOB
    if target.exists():
        raise ValueError(f"{target} already exists; choose another name or remove it")
    if record.exists():
        if json.loads(record.read_text(encoding="utf-8")) != job:
            raise ValueError(f"{parts} belongs to another job; remove it, or choose another output")
        return parts
    if parts.exists() and (not parts.is_dir() or any(parts.iterdir())):
        raise ValueError(f"{parts} already exists and was not written by a job; remove it, or choose another output")
    parts.mkdir(parents=True, exist_ok=True)
    write_json(record, job)
    return parts


def _block_files(parts: Path) -> list[Path]:
    return sorted(parts.glob("*.jsonl"))


def _read_block(file: Path) -> list[RowPrediction]:
    with file.open(encoding="utf-8", newline="") as stream:
        return [json.loads(line) for line in stream]
