"""Run the server in a thread, on a real port, and talk to it over sockets."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from debertakit.serving.access import Access
from debertakit.serving.app import create_app
from debertakit.serving.connections import Server
from debertakit.serving.endpoints import ServedModel
from debertakit.serving.limits import Limits


@contextmanager
def running_server(
    models: list[ServedModel], limits: Limits | None = None, access: Access | None = None
) -> Iterator[tuple[int, Server]]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(create_app(models, limits, access))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield listening.getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def running(models: list[ServedModel], limits: Limits | None = None, access: Access | None = None) -> Iterator[int]:
    with running_server(models, limits, access) as (port, _):
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=120)


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


def post(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    return head(path, len(content)) + content


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def status(connection: socket.socket) -> int | None:
    """Status of the next answer; None if the connection was closed."""
    found = b""
    try:
        while b"\r\n\r\n" not in found:
            chunk = connection.recv(1)
            if not chunk:
                return None
            found += chunk
        length = int(found.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while length:
            length -= len(connection.recv(length))
    except ConnectionResetError:
        return None
    return int(found.split()[1])
