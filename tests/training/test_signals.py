"""Signals during training, in processes of their own."""

import os
import subprocess
import sys

import pytest

from debertakit.training import signals

SCRIPT = """
import os, signal, sys
from debertakit.training.signals import Stopped, deferred, received, stop_on_signals
sys.argv = ["deberta", "pretrain", "tiny", "--out", "my run"]
stop_on_signals()
try:
    with deferred():
        for number in sys.stdin.readline().split():
            os.kill(os.getpid(), int(number))
        print("deferred", received(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
except Stopped as stopped:
    print(stopped, stopped.code)
"""


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("", ["deferred None", "stopped by SIGTERM; resume with: deberta pretrain tiny --out 'my run' --resume 143"]),
        ("15 15", ["deferred 15", "stopped by SIGTERM"]),
        ("2 2", ["stopped by SIGINT; resume with: deberta pretrain tiny --out 'my run' --resume 130"]),
    ],
)
def test_signals_wait_for_the_end_of_a_step_but_a_second_ctrl_c_does_not(sent, expected):
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=sent + "\n", capture_output=True, text=True, check=True
    )
    assert not found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))


STOPPING = """
import os, signal, sys
from debertakit.training.signals import Stopped, let_signals_end_the_process, stop_on_signals
stop_on_signals()
try:
    os.kill(os.getpid(), signal.SIGINT)
except Stopped as stopped:
    if "after" in sys.argv:
        let_signals_end_the_process()
    os.kill(os.getpid(), signal.SIGINT)
    print("still here")
"""


@pytest.mark.parametrize(
    ("mode", "environment", "code", "said"),
    [("during", {}, 130, ""), ("during", {"WORLD_SIZE": "2"}, 0, "still here\n"), ("after", {}, -2, "")],
)
def test_a_signal_while_the_process_stops_causes_no_traceback(mode, environment, code, said):
    """torchrun passes on the Ctrl-C that its ranks have already received."""
    found = subprocess.run(
        [sys.executable, "-c", STOPPING, mode], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert (found.returncode, found.stdout, found.stderr) == (code, said, "")


def test_the_command_that_resumes(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["deberta", "finetune", "--resume", "--out", "run"])
    monkeypatch.setattr(
        signals._signals, "resume_option", "--resume"
    )  # a command run earlier in this process may have changed it
    assert signals.resume_command() == "deberta finetune --out run --resume"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert signals.resume_command() == "the same torchrun command, with --resume"


def test_a_command_that_resumes_when_repeated(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["deberta", "corpus", "prepare", "a.txt", "--out", "corpus"])
    monkeypatch.setattr(signals._signals, "resume_option", "")
    assert signals.resume_command() == "deberta corpus prepare a.txt --out corpus"
