"""The fault-injection harness (benchmarks/faults): five of its runs, and its damage to files."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.damage import damage

ROOT = Path(__file__).parents[1]
# MLM, SIGKILL; corpus, SIGKILL; prediction, SIGTERM; corpus, disk full (skipped unless root); prediction, truncation
RUNS = ("0", "4", "16", "40", "74")


@pytest.mark.slow
def test_nothing_is_lost(tmp_path):
    command = [sys.executable, "-m", "benchmarks.faults", "--runs", "80", "--folder", tmp_path, "--only", *RUNS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" resumed ") >= 4, done.stdout


@pytest.mark.parametrize("kind", ["flipped bit", "truncation", "read error"])
def test_damage_can_be_repaired(kind, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(100)))
    before = file.stat()
    damaged = damage(file, kind, random.Random(0), tmp_path / "backups")
    if kind == "read error":
        with pytest.raises(OSError, match=r"Errno (5|21)"):
            file.read_bytes()
    else:
        assert file.read_bytes() != bytes(range(100))
        assert file.stat().st_mtime_ns == before.st_mtime_ns
    damaged.repair()
    assert file.read_bytes() == bytes(range(100))
