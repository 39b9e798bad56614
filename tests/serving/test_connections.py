"""Clients on real sockets: slow, idle, vanishing, too many, and a server that shuts down."""

import threading
import time

import httpx
import pytest

from debertakit.inference.tasks import TextClassifier
from debertakit.serving import batcher as batching
from debertakit.serving.endpoints import ServedModel
from debertakit.serving.limits import Limits
from tests.inference import material
from tests.inference.material import LABELS
from tests.serving.running import connect, get, head, post, running, running_server, status

BODY = {"inputs": [{"text": "the cat"}]}


@pytest.fixture
def model():
    return ServedModel("m", TextClassifier(material.model("SequenceClassification", **LABELS), material.tokenizer()))


@pytest.fixture
def held(model, monkeypatch):
    """Make the model wait for an event. Returns the event and the number of rows of each call."""
    go, calls, original = threading.Event(), [], model.predictor.run

    def waits(rows):
        calls.append(len(rows))
        go.wait(120)
        return original(rows)

    monkeypatch.setattr(model.predictor, "run", waits)
    yield go, calls
    go.set()


def until(true):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("never true")


def answer(port, path):
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=120)


def send_slowly(connection, seconds):
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        connection.sendall(b" " * 1000)
        time.sleep(0.01)


def test_slow_headers_and_idle_connections_are_closed(model):
    with running([model], Limits(receive=0.3)) as port, connect(port) as idle, connect(port) as slow:
        slow.sendall(b"POST /classify HTTP/1.1\r\nHost: local")
        began = time.monotonic()
        assert (status(idle), status(slow)) == (None, None)
        assert time.monotonic() - began < 5
    # A second request on the same connection may be slow too. The first must arrive in time on a busy machine.
    with running([model], Limits(receive=1)) as port, connect(port) as kept:
        kept.sendall(get("/health"))
        assert status(kept) == 200
        kept.sendall(b"GET /health HTTP/1.1\r\n")
        assert status(kept) is None


def test_a_slow_body_is_refused(model):
    with running([model], Limits(receive=0.3)) as port, connect(port) as slow:
        slow.sendall(head("/classify", 1000) + b'{"inputs": ')
        assert status(slow) == 408


def test_a_refused_body_is_not_swallowed_for_ever(model):
    with running([model], Limits(receive=0.5, body=1000)) as port, connect(port) as large:
        large.sendall(head("/classify", 1 << 40) + b" " * 1000)
        assert status(large) == 413
        with pytest.raises(OSError, match=r"reset|pipe|abort"):
            send_slowly(large, seconds=60)


def test_a_chunked_body_is_limited(model):
    with running([model], Limits(body=1000)) as port, connect(port) as chunked:
        start = "POST /classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunked.sendall(start.encode() + b"200\r\n" + b" " * 512 + b"\r\n200\r\n" + b" " * 512 + b"\r\n")
        assert status(chunked) == 413


def test_too_many_connections(model):
    with running_server([model], Limits(connections=3)) as (port, server):
        connections = [connect(port) for _ in range(3)]
        for each in connections:
            each.sendall(get("/health"))
        assert [status(each) for each in connections] == [200] * 3
        with connect(port) as fourth:
            assert status(fourth) == 503
        connections.pop().close()
        until(lambda: len(server.server_state.connections) == 2)
        with connect(port) as again:
            again.sendall(get("/health"))
            assert status(again) == 200
        for each in connections:
            each.close()


def test_a_client_that_leaves_frees_its_place(model, held):
    go, calls = held
    with running_server([model], Limits(wait=0)) as (port, server):
        batcher = server.state.batchers["m"]
        first, second = connect(port), connect(port)
        first.sendall(post("/classify", BODY))
        until(lambda: calls)
        second.sendall(post("/classify", {"inputs": BODY["inputs"] * 100}))
        until(lambda: batcher.in_work == 4 + 400)
        second.close()
        until(lambda: batcher.in_work == 4)  # at once, while the model is still busy
        go.set()
        assert status(first) == 200
        first.close()
        until(lambda: server.state.open == 0)
        assert calls == [1]
        metrics = answer(port, "/metrics").text
        assert 'requests_total{path="/classify",status="499"} 1.0' in metrics


def test_a_client_that_does_not_read_is_dropped(model):
    with running_server([model], Limits(receive=0.5)) as (port, server), connect(port) as deaf:
        deaf.sendall(get("/health"))
        assert status(deaf) == 200
        deaf.sendall(get("/openapi.json") * 2000)  # the answers are far more than the buffers of both sides hold
        until(lambda: not server.server_state.connections)


def test_a_server_that_shuts_down_finishes_what_it_accepted(model, held):
    go, calls = held
    with running_server([model], Limits(wait=0)) as (port, server):
        accepted, kept = connect(port), connect(port)
        kept.sendall(get("/ready"))
        assert status(kept) == 200
        accepted.sendall(post("/classify", BODY))
        until(lambda: calls)
        server.drain()
        for path, wanted in (("/ready", 503), ("/health", 200), ("/models", 503)):
            assert answer(port, path).status_code == wanted
        kept.sendall(post("/classify", BODY))
        assert status(kept) == 503
        assert status(kept) is None  # closed: the client should go elsewhere
        go.set()
        assert status(accepted) == 200
        until(lambda: server.should_exit)
        accepted.close()


def test_ready_says_which_worker_does_not_run(model, monkeypatch):
    monkeypatch.setattr(batching, "RESTART", 3)  # a busy machine must see it before the worker starts again
    with running_server([model]) as (port, server), httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        client.timeout = 120
        assert client.get("/ready").status_code == 200
        batcher = server.state.batchers["m"]
        batcher.thread.shutdown()
        assert client.post("/classify", json=BODY).status_code == 503
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"ready": False, "not_ready": ["m"]})
        until(lambda: client.get("/ready").status_code == 200)
        assert client.post("/classify", json=BODY).status_code == 200
        assert 'worker_restarts{model="m"} 1.0' in client.get("/metrics").text
