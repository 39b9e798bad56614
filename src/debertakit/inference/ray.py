"""Predict on several machines with Ray Data, from Parquet to Parquet.

Ray sends blocks of rows to workers, each with the model in memory. If a worker dies, Ray restarts it and gives its
block to another worker. A block's output file has the same name on every attempt, so every row is written exactly once.
``OUT`` is a folder of Parquet files in row order; it is called ``OUT.part`` until it is complete. Set RAY_ADDRESS to
use a cluster; otherwise Ray runs on this machine. All machines must see the same paths.
"""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
from pyarrow import dataset

from debertakit.data.tables import TableRow
from debertakit.files import replacing, require_new, temporary_path
from debertakit.inference.files import Counts, check_columns, predict_rows
from debertakit.inference.output import append_predictions
from debertakit.inference.predictor import LOOK_AHEAD, Predictor, Result
from debertakit.inference.tasks import load
from debertakit.installation import install


class Stage:
    """Ray worker: loads the model once and predicts on blocks."""

    def __init__(self, model: str, task: str | None, options: dict[str, Any], columns: dict[str, str]):
        self.predictor, self.columns = load(model, task, **options), columns

    def __call__(self, block: pyarrow.Table) -> pyarrow.Table:
        rows = [TableRow("", values) for values in block.to_pylist()]
        return append_predictions(block, predict_rows(self.predictor, rows, self.columns), self.predictor.numeric)


def predict_with_ray(
    predictor: Predictor[Result],
    model: str,
    task: str | None,
    options: dict[str, Any],
    source: Path,
    out: Path,
    *,
    columns: dict[str, str] | None = None,
    workers: int | None = None,
    block: int = LOOK_AHEAD,
) -> Counts:
    """Predict on the Parquet file or folder ``source`` and write the folder ``out``.

    Every worker loads its own copy of the model; ``predictor`` only checks the columns before Ray starts.
    ``workers``: default one per GPU of the cluster, or one per CPU if there are no GPUs.
    """
    ray = _ray()
    _check(predictor, source, out, columns or {})
    source, out = source.resolve(), out.resolve()  # workers may have another working directory
    model = str(Path(model).resolve()) if Path(model).exists() else model
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(include_dashboard=False, logging_level="WARNING")
    resources = ray.cluster_resources()
    # Reserve only half a CPU per worker, so that Ray can also schedule its own list, read and write tasks.
    each = {"num_gpus": 1} if resources.get("GPU") else {"num_cpus": 0.5}
    size = workers or max(1, int(resources.get("GPU") or resources["CPU"]))
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    predictions = (
        ray.data.read_parquet(str(source))
        .repartition(target_num_rows_per_block=block)
        .map_batches(
            Stage,
            batch_size=None,
            batch_format="pyarrow",
            fn_constructor_args=(model, task, options, columns or {}),
            compute=ray.data.ActorPoolStrategy(size=size),
            **each,
        )
    )
    rows = dataset.dataset(source, format="parquet").count_rows()
    with replacing(out) as temporary:
        predictions.write_parquet(str(temporary), mode=ray.data.SaveMode.ERROR)
        check_count(temporary, rows)
    written = dataset.dataset(out, format="parquet")
    return Counts(written.count_rows(), written.count_rows(filter=dataset.field("error").is_valid()))


def check_count(folder: Path, rows: int) -> None:
    """Raise if the Parquet files of ``folder`` do not have ``rows`` rows together."""
    found = dataset.dataset(folder, format="parquet").count_rows()
    if found != rows:
        raise ValueError(f"{folder} has {found} rows instead of {rows}; remove it and run the command again")


def _ray() -> ModuleType:
    try:
        import ray.data
    except ImportError:
        raise ValueError(f"--engine ray needs Ray: {install('ray')}") from None
    return ray


def _check(predictor: Predictor[Result], source: Path, out: Path, columns: dict[str, str]) -> None:
    """Validate the arguments before the cluster starts."""
    require_new(out)
    if temporary_path(out).exists():
        raise ValueError(
            f"{temporary_path(out)} already exists: another run is writing it, or was interrupted; remove it first"
        )
    if out.suffix not in (".parquet", ""):
        raise ValueError(
            f"{out}: --engine ray writes a folder of Parquet files; name it {out.stem} or {out.stem}.parquet"
        )
    if not source.exists():
        raise ValueError(f"{source}: no such file or folder")
    try:
        given = dataset.dataset(source, format="parquet")
        empty = given.count_rows() == 0
    except pyarrow.ArrowInvalid:
        raise ValueError(f"{source}: --engine ray reads only Parquet") from None
    if empty:
        raise ValueError(f"{source}: no rows to predict on")
    check_columns(predictor, given.schema.names, columns)
