"""A real process on a real port: ready, answering, and finishing its work when told to end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from debertakit.serving.command import parse
from tests.inference import material
from tests.inference.test_tasks import LABELS


def test_names_of_models():
    assert parse("runs/sst2") == ("sst2", "runs/sst2", None)
    assert parse("mood=runs/sst2") == ("mood", "runs/sst2", None)
    assert parse("z=runs/mnli::zero-shot") == ("z", "runs/mnli", "zero-shot")
    with pytest.raises(ValueError, match=r"\[NAME=\]MODEL"):
        parse("=x")


def test_it_drains_on_sigterm(tmp_path):
    folder = material.saved(tmp_path / "m", "SequenceClassification", **LABELS)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "debertakit.cli", "serve", str(folder), "--port", str(port), "--wait", "0.5"]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            try:
                if httpx.get(f"{url}/ready", timeout=1).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        answers = []
        body = {"inputs": [{"text": "the cat"}]}
        threads = [
            threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/classify", json=body, timeout=20)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # they wait for company half a second long
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * 4
        assert process.wait(20) in (0, -signal.SIGTERM)  # uvicorn ends as the signal would have ended it
    finally:
        process.kill()
        log.close()
    assert "the cat" not in (tmp_path / "log").read_text()
