"""Progress in a log file: lines with percentage, speed and time left."""

import json
import re
import time
from types import SimpleNamespace

import pytest

from debertakit.text import progress
from debertakit.text.progress import ProgressBar, duration, working
from debertakit.training.log import Log


def test_plain_progress_lines(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 1.0, 7.0, 8.0, 13.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with ProgressBar("tokenising", "tokens", 1000) as bar:
        bar.show(1_000_000, 100)
        bar.show(7_000_000, 700)
        bar.show(8_000_000, 800)
        bar.show(10_000_000, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "tokenising: 70%, 7.0 M tokens, 1.0 M/s, 3 s left",
        "tokenising: 100%, 10.0 M tokens, 769.2 k/s, 0 s left",
    ]


def test_a_call_that_cannot_be_counted(capsys, monkeypatch):
    monkeypatch.setattr(progress, "FIRST", 0.02)
    monkeypatch.setattr(progress, "EVERY", 0.02)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    shown = ""
    with working("reading"):
        while shown.count("\n") < 2:
            time.sleep(0.02)
            shown += capsys.readouterr().err
    assert set(shown.splitlines()) == {"reading: 0 s"}
    capsys.readouterr()
    with working("reading"):
        pass
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "shown"), [(3.4, "3 s"), (95, "1 min 35 s"), (7300, "2 h 1 min"), (-1, "0 s")])
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_training_in_a_log_file(tmp_path, capsys, monkeypatch):
    """Steps between two records are not silent."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = Log(tmp_path, "none", 100, "steps", -1)
    for step in range(1, 51):
        now[0] = step / 2
        log.advance(step, step, 0.5)
    log.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "progress: 4%, step 4, 2 steps/s, 48 s left"
    assert len(lines) == 5  # at 2, 7, 12, 17 and 22 s
    assert all(re.fullmatch(r"progress: \d+%, step \d+, 2 steps/s, \d+ s left", line) for line in lines)
    assert not [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
