"""Worker processes: they start without fork, from any script, and report their errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import debertakit
from debertakit.text.encoding import CorpusEncoder, EncoderOptions, Workers, encode_all
from tests.text.material import ARTICLES, byte_level


@pytest.fixture
def options(tmp_path):
    (tmp_path / "places").write_text("New York City\n")
    tokenizer = byte_level().backend_tokenizer.to_str()
    return EncoderOptions(tokenizer, [], np.dtype(np.uint16), "en", tmp_path / "places")


def test_workers_give_what_one_process_gives_in_order_and_without_fork(options, monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked, with threads running"))
    batches = [[f"{text} New York City {i}"] for i, text in enumerate(ARTICLES)]
    alone = CorpusEncoder(options)
    results = list(encode_all(batches, lambda batch: batch, 2, options))
    assert [batch for batch, _ in results] == batches
    for batch, encoded in results:
        for ours, expected in zip(encoded, alone(batch), strict=True):
            np.testing.assert_array_equal(ours, expected)


def test_no_module_forks():
    """Forking a process with threads can deadlock, and Python 3.12 and later warn about it."""
    forks = re.compile(r"os\.fork|preexec_fn|ProcessPoolExecutor|^\s*(import|from) multiprocessing", re.MULTILINE)
    files = Path(debertakit.__file__).parent.rglob("*.py")
    assert not [str(file) for file in files if forks.search(file.read_text(encoding="utf-8"))]


def test_an_error_in_a_worker_is_raised_here(options, tmp_path):
    (tmp_path / "places").write_text("")
    with pytest.raises(ValueError, match="the gazetteer has no phrases"):
        list(encode_all([["a text"]], lambda batch: batch, 2, options))


def test_a_dead_worker_is_reported(options):
    workers = Workers(1, options)
    try:
        workers(["it works"])
        workers.processes[0].kill()
        with pytest.raises(RuntimeError, match=r"worker died \(exit code -9\)"):
            workers(["no longer"])
    finally:
        workers.close()


def test_workers_end_with_an_interrupted_preparation(options, monkeypatch):
    started = []

    class Recorded(Workers):
        def __init__(self, *args):
            super().__init__(*args)
            started.extend(self.processes)

    monkeypatch.setattr("debertakit.text.encoding.Workers", Recorded)
    encoding = encode_all([["one"]] * 9, lambda batch: batch, 2, options)
    next(encoding)
    encoding.close()
    assert [process.returncode for process in started] == [-9, -9]


UNGUARDED = """
import sys
from debertakit.text.corpus import prepare
from tests.text.material import byte_level

print("started")
corpus = prepare(sys.argv[1], byte_level(), sys.argv[1] + ".out", entities=sys.argv[2], validation=0, workers=2)
print(corpus.train.tokens > 0)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_can_prepare_a_corpus(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    (tmp_path / "text.txt").write_text(ARTICLES[0])
    (tmp_path / "places").write_text("New York City\n")
    command = [sys.executable, "script.py", "text.txt", "places"]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert run.stdout == "started\nTrue\n", run.stderr
