"""Write the rows of a file together with their predictions, as JSONL, CSV, TSV or Parquet."""

import csv
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from debertakit.inference.predictor import LOOK_AHEAD
from debertakit.installation import install

if TYPE_CHECKING:
    import pyarrow

OUTPUTS = (".jsonl", ".csv", ".tsv", ".parquet")
ADDED = ("prediction", "score", "details", "error")
"""Columns that are added to a row. An input that has a column ``score`` of its own keeps it, and gets no other."""
Row = dict[str, object]


class RowPrediction(TypedDict):
    """The columns that are added to a row."""

    prediction: str | float | None
    score: float | None
    """Confidence of the prediction, 0 to 1 (``Result.confidence``)."""
    details: Row | None
    error: str | None


Blocks = Callable[[], Iterator[tuple[list[Row], list[RowPrediction]]]]
"""Reads the rows and their predictions from the start, block by block."""


def write_output(file: Path, suffix: str, source: Path, names: list[str], blocks: Blocks, numeric: bool) -> None:
    """Write ``file`` in the format of ``suffix``. ``numeric``: predictions are numbers."""
    if suffix == ".jsonl":
        with file.open("w", encoding="utf-8", newline="") as stream:
            stream.writelines(to_json(row) + "\n" for row in _merged(blocks))
    elif suffix != ".parquet":
        _write_table(file, "," if suffix == ".csv" else "\t", names, blocks)
    elif source.suffix.lower() == ".parquet":
        _parquet_from_parquet(file, source, blocks, numeric)
    else:
        _parquet_from_rows(file, names, blocks, numeric)


def count_rows(file: Path, suffix: str) -> int:
    """Number of rows in a file that ``write_output`` wrote."""
    if suffix == ".parquet":
        from pyarrow.parquet import read_metadata

        return read_metadata(file).num_rows
    if suffix == ".jsonl":
        with file.open("rb") as stream:
            return sum(block.count(b"\n") for block in iter(partial(stream.read, 1 << 20), b""))
    before = csv.field_size_limit(2**31 - 1)
    try:
        with file.open(encoding="utf-8", newline="") as table:
            return sum(1 for _ in csv.reader(table, delimiter="," if suffix == ".csv" else "\t")) - 1
    finally:
        csv.field_size_limit(before)


def added(names: Collection[str]) -> tuple[str, ...]:
    """Columns that the output adds to an input with the columns ``names``."""
    return tuple(name for name in ADDED if name != "score" or name not in names)


def _merged(blocks: Blocks) -> Iterator[Row]:
    for rows, predictions in blocks():
        for row, prediction in zip(rows, predictions, strict=True):
            yield {**row, **{name: value for name, value in prediction.items() if name in added(row)}}


def _write_table(file: Path, delimiter: str, names: list[str], blocks: Blocks) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*names, *added(names)], delimiter=delimiter)
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
        raise ValueError(f"{file}: writing Parquet needs pyarrow: {install('parquet')}") from None


def append_predictions(table: "pyarrow.Table", predictions: Sequence[RowPrediction], numeric: bool) -> "pyarrow.Table":
    """Append the output columns, with the same types in every block. Input columns keep their types."""
    import pyarrow

    rows: list[Row] = [{**prediction} for prediction in predictions]
    for name in added(table.column_names):
        number = name == "score" or (numeric and name == "prediction")
        values = [_cell(row.get(name)) for row in rows]
        table = table.append_column(name, pyarrow.array(values, pyarrow.float64() if number else pyarrow.string()))
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
