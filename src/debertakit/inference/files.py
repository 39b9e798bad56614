"""Predict on a file of any size: read it in blocks and write a file with predictions, in the same row order.

Input: CSV, TSV, JSONL, JSON, Parquet, Excel, or .txt with one text per line. Output, chosen by suffix: JSONL, CSV, TSV
or Parquet. An output row has the input's columns and

    prediction   the short answer: label, score, entities, option ...
    score        the confidence of the prediction, 0 to 1, unless the input has a column of this name
    details      the full result, as JSON
    error        why there is no prediction; such rows are counted and do not stop the run

The predictions of each block are written to a file in ``OUT.parts`` (blocks.py). When all blocks are done, the source
is read again and merged with them into ``OUT`` (output.py). An interrupted run reuses its finished blocks and computes
the others. Two commands cannot write the same ``OUT`` at once: the second one stops.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from debertakit.data.problems import Problems
from debertakit.data.tables import (
    JSON_LINES,
    NUMBERS,
    Quoting,
    TableRow,
    excel,
    json_lines,
    json_values,
    lines,
    parquet,
    quoting_of,
    table,
)
from debertakit.files import naming, replacing, require_new
from debertakit.inference.blocks import (
    JobRecord,
    finish,
    finished_blocks,
    finished_job,
    job_record,
    open_parts,
    read_block,
    remove_parts,
    write_block,
)
from debertakit.inference.output import (
    OUTPUTS,
    Row,
    RowPrediction,
    added,
    count_rows,
    require_pyarrow,
    write_output,
)
from debertakit.inference.predictor import LOOK_AHEAD, Input, Predictor, Result
from debertakit.text.progress import ProgressBar

Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Counts:
    rows: int = 0
    errors: int = 0
    """Rows without a prediction, including rows that could not be read."""
    first_error: str = ""
    """Why the first of these rows has no prediction."""


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
    earlier = finished_job(target)
    if earlier is None:
        require_new(target)
    if target.suffix.lower() == ".parquet":
        require_pyarrow(target)
    columns = columns or {}
    stamp = _stamp(path)
    names, total = _columns_and_size(path, columns)
    check_columns(predictor, names, columns)
    job = job_record(predictor, path, columns, name, LOOK_AHEAD)
    if earlier is not None and earlier["job"] == job:
        return Counts(earlier["rows"], earlier["errors"])
    with open_parts(target, job) as parts:
        return _predict_blocks(predictor, path, target, columns, names, total, stamp, job, parts)


def read_inputs(
    predictor: Predictor[Result], source: str | Path, columns: Mapping[str, str], limit: int
) -> list[Input]:
    """Return the inputs in the first ``limit`` rows of a file. Rows that cannot be used are left out."""
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    names, _ = _columns_and_size(path, columns)
    check_columns(predictor, [name for name in names if name not in added(names)], columns)  # nothing is added here
    rows = islice(_rows(path, Problems(path), columns), limit)
    items = [_value_or_error(partial(_input, predictor, row, columns)) for row in rows]
    return [item for item in items if not isinstance(item, str)]


def _predict_blocks(
    predictor: Predictor[Result],
    path: Path,
    target: Path,
    columns: Mapping[str, str],
    names: list[str],
    total: int,
    stamp: tuple[int, int],
    job: JobRecord,
    parts: Path,
) -> Counts:
    """Compute the missing blocks, write ``target`` and delete ``parts``."""
    counts = Counts()
    problems = Problems(path)
    rows = _rows(path, problems, columns)
    done = LOOK_AHEAD * finished_blocks(parts)
    with ProgressBar("predicting", "rows", total, done, done) as progress:
        for number in range(sys.maxsize):
            block = list(islice(rows, LOOK_AHEAD))
            if not block:
                break
            predictions = read_block(parts, number, len(block))
            if predictions is None:
                predictions = predict_rows(predictor, block, columns)
                write_block(parts, number, predictions)
            errors = [row["error"] for row in predictions if row["error"] is not None]
            first_error = counts.first_error or next(iter(errors), "")
            counts = Counts(counts.rows + len(block), counts.errors + len(errors), first_error)
            progress.show(counts.rows, counts.rows)
    with replacing(target) as temporary:
        blocks = partial(_merged_blocks, path, columns, parts)
        write_output(temporary, target.suffix.lower(), path, names, blocks, predictor.numeric)
        if _stamp(path) != stamp:
            raise ValueError(f"{path} changed during the run; remove {parts} and start again")
        written = count_rows(temporary, target.suffix.lower())
        if written != counts.rows:
            raise ValueError(f"{temporary} has {written} rows instead of {counts.rows}; run the command again")
        counts = replace(counts, errors=counts.errors + len(problems.skipped))
        finish(parts, job, temporary, counts.rows, counts.errors)
    remove_parts(parts)
    for problem in problems.skipped[:5]:
        print(f"{problem}; skipped", file=sys.stderr)
    return counts


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
            answer, score = result.headline(), result.confidence()
            predictions.append(RowPrediction(prediction=answer, score=score, details=asdict(result), error=None))
        else:
            where = f"row {row.number}: " if row.number else ""
            predictions.append(RowPrediction(prediction=None, score=None, details=None, error=f"{where}{result}"))
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
    for name in added(names):
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


def _rows(path: Path, problems: Problems, columns: Mapping[str, str]) -> Iterator[TableRow]:
    with naming(path):
        yield from _read_rows(path, problems, columns)


def _read_rows(path: Path, problems: Problems, columns: Mapping[str, str]) -> Iterator[TableRow]:
    """Read the rows of a file. A table whose ``columns`` are numbers (from 1) has no header."""
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return (TableRow(number, {"text": line.rstrip("\r\n")}) for number, line in lines(path, problems))
    if suffix in JSON_LINES:
        return json_lines(path, problems)
    if suffix == ".json":
        return json_values(path, problems)
    if suffix == ".parquet":
        return parquet(path, problems)
    if suffix == ".xlsx":
        return excel(path, problems)
    needed = {name.casefold() for name in columns.values()}
    headless = NUMBERS if needed and all(map(str.isdecimal, needed)) else ()
    quoting: Quoting = quoting_of(path) if suffix in (".csv", ".tsv") else "none"
    return table(path, problems, quoting=quoting, headless=headless, needed=needed)


def _columns_and_size(path: Path, columns: Mapping[str, str]) -> tuple[list[str], int]:
    """Return all columns in order of first appearance, and the number of rows. Raise if there are no rows."""
    problems = Problems(path)
    rows = _rows(path, problems, columns)
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


def _merged_blocks(
    path: Path, columns: Mapping[str, str], parts: Path
) -> Iterator[tuple[list[Row], list[RowPrediction]]]:
    """Read the source again, block by block, with the predictions of each block."""
    rows = _rows(path, Problems(path), columns)
    for number in range(sys.maxsize):
        block = [row.values for row in islice(rows, LOOK_AHEAD)]
        if not block:
            return
        predictions = read_block(parts, number, len(block))
        if predictions is None:
            raise ValueError(f"block {number} in {parts} is damaged; run the command again to compute it again")
        yield block, predictions


def _stamp(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns
