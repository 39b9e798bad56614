"""Predict on a local Ray cluster with two workers and kill one of them: every row must appear exactly once."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pyarrow
import pytest
from pyarrow import dataset, parquet

from debertakit.inference.ray import Stage, check_count, predict_with_ray
from debertakit.inference.tasks import load
from tests.inference import material
from tests.inference.material import LABELS, TEXTS

ROWS = [{"id": i, "words": f"{TEXTS[i % 5]} {'cat ' * (i % 50)}"} for i in range(2400)]
EMPTY = 1432


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return material.saved(tmp_path_factory.mktemp("model"), "SequenceClassification", **LABELS)


@pytest.fixture
def source(tmp_path):
    rows = [{**row, "words": " "} if row["id"] == EMPTY else row for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


def ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


def kill_a_worker(folder: Path, killed: list[int]) -> None:
    """Send SIGKILL to one worker of this process as soon as the first blocks are written."""
    while len(list(folder.glob("*.parquet"))) < 3:
        time.sleep(0.02)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            ours = os.getpid() in ancestors(int(process.name))
        except OSError:
            continue
        if ours and command.startswith(b"ray::") and b"Stage" in command:
            os.kill(int(process.name), signal.SIGKILL)
            killed.append(int(process.name))
            return


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds its workers in /proc")
def test_every_row_once_though_a_worker_was_killed(folder, source, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # at the default niceness, workers starve when other tests run
    out, killed = tmp_path / "out.parquet", []
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        threading.Thread(target=kill_a_worker, args=(tmp_path / "out.parquet.part", killed), daemon=True).start()
        counts = predict_with_ray(
            load(folder), str(folder), None, {}, source, out, columns={"text": "words"}, workers=2, block=50
        )
    finally:
        ray.shutdown()
    assert len(killed) == 1
    assert not Path(f"/proc/{killed[0]}").exists()
    assert (counts.rows, counts.errors) == (len(ROWS), 1)
    rows = dataset.dataset(sorted(map(str, out.glob("*.parquet")))).to_table().to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in ROWS]
    assert rows[EMPTY]["error"] == "text is empty"
    some = [i for i in range(0, len(ROWS), 61) if i != EMPTY]
    expected = load(folder)([ROWS[i]["words"] for i in some])
    assert [rows[i]["prediction"] for i in some] == [result.labels[0] for result in expected]
    assert not (tmp_path / "out.parquet.part").exists()


def test_a_block_keeps_its_types(folder):
    kinds = pyarrow.schema([("words", pyarrow.large_string()), ("n", pyarrow.int8())], metadata={"made": "by hand"})
    block = pyarrow.table({"words": [" ", "the cat"], "n": [None, 3]}, schema=kinds)
    stage = Stage(str(folder), None, {}, {"text": "words"})
    found = stage(block)
    assert found.select(range(2)).equals(block, check_metadata=True)
    assert found.column("error").to_pylist() == ["text is empty", None]
    assert stage(block.slice(0, 1)).schema == found.schema == stage(block.slice(1)).schema


def test_rows_that_are_missing_are_noticed(source):
    check_count(source, len(ROWS))
    with pytest.raises(ValueError, match=f"has {len(ROWS)} rows instead of {len(ROWS) + 1}; remove it"):
        check_count(source, len(ROWS) + 1)


def test_what_cannot_be_done_is_said_before_the_cluster_starts(folder, source, tmp_path, monkeypatch):
    def refused(message, source=source, out=tmp_path / "out", **options):
        with pytest.raises(ValueError, match=message):
            predict_with_ray(load(folder), str(folder), None, {}, source, out, **options)

    refused(r"no column 'text'; there are id, words \(--column text=NAME\)")
    refused("no such file", source=tmp_path / "none.parquet")
    refused("a folder of Parquet files", out=tmp_path / "out.csv")
    refused("already exists", out=source)
    (tmp_path / "text.parquet").write_text("id,words\n")
    refused("reads only Parquet", source=tmp_path / "text.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS[:1]).slice(1), tmp_path / "empty.parquet")
    refused("no rows", source=tmp_path / "empty.parquet", columns={"text": "words"})
    monkeypatch.setitem(sys.modules, "ray.data", None)
    refused(r"pip install .*\[ray\]'", columns={"text": "words"})
