"""Run the server as a process on a real port: readiness, answers, and graceful shutdown."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import httpx
import pytest

from debertakit.cli import main
from debertakit.inference.options import LoadOptions
from debertakit.serving import server
from debertakit.serving.access import Access
from debertakit.serving.addresses import bound
from debertakit.serving.limits import Limits
from debertakit.serving.server import parse
from tests.inference import material
from tests.inference.material import LABELS


def test_names_of_models():
    assert parse("runs/sst2") == ("sst2", "runs/sst2", None)
    assert parse("mood=runs/sst2") == ("mood", "runs/sst2", None)
    assert parse("z=runs/mnli::zero-shot") == ("z", "runs/mnli", "zero-shot")
    with pytest.raises(ValueError, match=r"\[NAME=\]MODEL"):
        parse("=x")


def refused(monkeypatch, capsys, *arguments, model="no-such-model"):
    """Return the stderr lines of a ``deberta serve`` that exits with code 2."""
    monkeypatch.setattr(sys, "argv", ["deberta", "serve", str(model), *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_a_taken_port_is_one_line_before_anything_is_loaded(monkeypatch, capsys, tmp_path):
    (tmp_path / "config.json").write_text("not a config")  # would be an error if it were loaded
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (line,) = refused(monkeypatch, capsys, "--port", str(port), model=tmp_path)
    reason = f"Address already in use; another port: --port {port + 1}"
    assert line == f"deberta: could not serve on 127.0.0.1:{port}: {reason}"
    *_, line = refused(monkeypatch, capsys, "--host", "localhost.invalid", "--api-key", "secret", model=tmp_path)
    assert line.startswith("deberta: could not serve on localhost.invalid:8000: ")


def test_every_address_of_a_host_is_bound():
    for made in bound("localhost", 0):
        with made:
            assert made.getsockname()[1] > 0


def test_keys_and_times_that_cannot_be(monkeypatch, capsys):
    (line,) = refused(monkeypatch, capsys, "--api-key", "")
    assert line.startswith("deberta: the API key is empty")
    for seconds in ("nan", "inf", "0"):
        assert "timeout" in "".join(refused(monkeypatch, capsys, "--timeout", seconds))
    assert "queue=0" in "".join(refused(monkeypatch, capsys, "--queue", "0"))
    (line,) = refused(monkeypatch, capsys, "--api-key", "two\nlines")
    assert line.startswith("deberta: the API key may contain only printable ASCII")
    (line,) = refused(monkeypatch, capsys, "--public", "metrics")
    assert line == "deberta: public path 'metrics' must start with /, for example /metrics"
    monkeypatch.setenv("DEBERTA_API_KEY", "")
    (line,) = refused(monkeypatch, capsys)
    assert line.startswith("deberta: the API key is empty")


@pytest.mark.slow
def test_it_drains_on_sigterm(tmp_path):
    folder = material.saved(tmp_path / "m", "SequenceClassification", **LABELS)
    # Bound, but not listening: nobody else gets this port, and the server may listen on it.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    command = [sys.executable, "-m", "debertakit.cli", "serve", str(folder), "--port", str(port), "--wait", "2"]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            for _ in range(900):  # startup takes more than a minute on a busy machine
                assert process.poll() is None
                try:
                    if client.get("/ready").status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.2)
            answers = []
            body = {"inputs": [{"text": "the cat"}]}
            threads = [
                threading.Thread(target=lambda: answers.append(client.post("/classify", json=body))) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            # The requests wait two seconds (--wait 2) for more: 4 requests x 4 tokens.
            while not answers and 'tokens_in_work{model="m"} 16.0' not in client.get("/metrics").text:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join()
        assert [answer.status_code for answer in answers] == [200] * 4
        assert process.wait(60) == 0
    finally:
        process.kill()
        log.close()
        reserved.close()
    assert "the cat" not in (tmp_path / "log").read_text()


def test_threads_share_two_heaps_of_glibc(monkeypatch):
    """With a heap per thread, memory grew for more than ten minutes under load (docs/reliability.md)."""
    calls = []
    monkeypatch.setattr(server.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *given: calls.append(given)))
    monkeypatch.setattr(server.sys, "platform", "linux")
    monkeypatch.setattr(server, "bound", lambda host, port: 1 / 0)  # stop before loading
    with pytest.raises(ZeroDivisionError):
        server.serve(["m"], host="127.0.0.1", port=0, loading=LoadOptions(), access=Access(), limits=Limits())
    assert calls == [(-8, 2)]
