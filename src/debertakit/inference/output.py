"""Write the rows of a file together with their predictions, as JSONL, CSV, TSV or Parquet."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from debertakit import files
from debertakit.inference.predictor import LOOK_AHEAD

if TYPE_CHECKING:
    import pyarrow

OUTPUTS = (".jsonl", ".csv", ".tsv", ".parquet")
ADDED = ("prediction", "details", "error")
Row = dict[str, object]


class RowPrediction(TypedDict):
    """The columns that are added to a row."""

    prediction: str | float | None
    details: Row | None
    error: str | None


Blocks = Callable[[], Iterator[tuple[list[Row], list[RowPrediction]]]]
"""Reads the rows and their predictions from the start, block by block."""


def write_output(target: Path, source: Path, names: list[str], blocks: Blocks, numeric: bool) -> None:
    """Write ``target``, which appears only when it is complete. ``numeric``: predictions are numbers."""
    suffix = target.suffix.lower()
    with files.replacing(target) as temporary:
        if suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                stream.writelines(to_json(row) + "\n" for row in _merged(blocks))
        elif suffix != ".parquet":
            _write_table(temporary, "," if suffix == ".csv" else "\t", names, blocks)
        elif source.suffix.lower() == ".parquet":
            _parquet_from_parquet(temporary, source, blocks, numeric)
        else:
            _parquet_from_rows(temporary, names, blocks, numeric)


def _merged(blocks: Blocks) -> Iterator[Row]:
    for rows, predictions in blocks():
        for row, prediction in zip(rows, predictions, strict=True):
            yield {**row, **prediction}


def _write_table(file: Path, delimiter: str, names: list[str], blocks: Blocks) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*names, *ADDED], delimiter=delimiter)
        writer.writeheader()
        for row in _merged(blocks):
            writer.writerow({name: _cell(value) for name, value in row.items()})


def to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _cell(value: object) -> object:
    return to_json(value) if isinstance(value, (dict, list)) else value


# --------------------------------------------------------------------------------------------------------- Parquet


def require_pyarrow(file: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ValueError(f"{file}: writing Parquet needs pyarrow: pip install 'debertakit[parquet]'") from None


def append_predictions(table: "pyarrow.Table", predictions: Sequence[RowPrediction], numeric: bool) -> "pyarrow.Table":
    """Append the three output columns, with the same types in every block. Input columns keep their types."""
    import pyarrow

    rows: list[Row] = [{**prediction} for prediction in predictions]
    for name in ADDED:
        kind = pyarrow.float64() if numeric and name == "prediction" else pyarrow.string()
        table = table.append_column(name, pyarrow.array([_cell(row[name]) for row in rows], kind))
    return table


def _parquet_from_parquet(file: Path, source: Path, blocks: Blocks, numeric: bool) -> None:
    """Write Parquet with the source's schema."""
    import pyarrow
    from pyarrow.parquet import ParquetFile, ParquetWriter

    opened = ParquetFile(source)
    predictions = chain.from_iterable(of_block for _, of_block in blocks())
    with ParquetWriter(file, append_predictions(opened.schema_arrow.empty_table(), [], numeric).schema) as writer:
        for batch in opened.iter_batches(batch_size=LOOK_AHEAD):
            table = pyarrow.Table.from_batches([batch])
            writer.write_table(append_predictions(table, list(islice(predictions, batch.num_rows)), numeric))


def _parquet_from_rows(file: Path, names: list[str], blocks: Blocks, numeric: bool) -> None:
    """Write Parquet with types common to all blocks. A column without a common type becomes JSON text."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    types: dict[str, pyarrow.DataType | None] = dict.fromkeys(names, pyarrow.null())
    for rows, _ in blocks():
        types = {name: _common_type(kind, [row.get(name) for row in rows]) for name, kind in types.items()}
    types = {name: kind if kind is not None and _storable(kind) else None for name, kind in types.items()}
    while True:
        schema = pyarrow.schema([(name, kind or pyarrow.string()) for name, kind in types.items()])
        try:
            with ParquetWriter(file, append_predictions(schema.empty_table(), [], numeric).schema) as writer:
                for rows, predictions in blocks():
                    arrays = [_array(name, kind, [row.get(name) for row in rows]) for name, kind in types.items()]
                    table = pyarrow.Table.from_arrays(arrays, schema=schema)
                    writer.write_table(append_predictions(table, predictions, numeric))
            return
        except _UnfitError as error:  # the types unify, but a value does not fit the common type
            types[error.column] = None


class _UnfitError(ValueError):
    def __init__(self, column: str):
        super().__init__(column)
        self.column = column


def _common_type(kind: "pyarrow.DataType | None", values: list[object]) -> "pyarrow.DataType | None":
    """Unify ``kind`` with the type of ``values``; None if no common type exists."""
    import pyarrow

    if kind is None:
        return None
    try:
        both = [pyarrow.schema([("x", one)]) for one in (kind, pyarrow.array(values).type)]
        return pyarrow.unify_schemas(both, promote_options="permissive").field("x").type
    except (pyarrow.ArrowException, OverflowError):
        return None


def _storable(kind: "pyarrow.DataType") -> bool:
    """Whether Parquet can store the type. It cannot store a struct without fields."""
    import pyarrow

    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return (bool(inner) or not pyarrow.types.is_struct(kind)) and all(map(_storable, inner))


def _array(name: str, kind: "pyarrow.DataType | None", values: list[object]) -> "pyarrow.Array":
    import pyarrow

    if kind is None:
        return pyarrow.array([None if value is None else to_json(value) for value in values], pyarrow.string())
    try:
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowException, OverflowError):
        raise _UnfitError(name) from None
