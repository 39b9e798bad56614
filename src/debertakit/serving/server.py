"""The HTTP server: load models and serve until SIGTERM or Ctrl-C. Open requests are finished before exit."""

import errno
import logging
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from debertakit.inference.options import Backend
from debertakit.inference.tasks import load
from debertakit.serving.limits import Limits

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
"""Of IPv4 or IPv6, as ``socket.getaddrinfo`` returns it."""


def serve(specs: list[str], *, host: str, port: int, backend: Backend, api_key: str | None, limits: Limits) -> None:
    """Serve ``specs``: [NAME=]MODEL[::TASK], for example sentiment=runs/sst2 or runs/mnli::zero-shot."""
    try:
        import uvicorn

        from debertakit.serving.app import create_app
        from debertakit.serving.endpoints import ServedModel
        from debertakit.serving.middleware import refuse_empty
    except ImportError as error:
        raise ImportError(f"serving needs packages ({error.name}): pip install 'debertakit[serve]'") from None
    refuse_empty(api_key)
    if host not in ("127.0.0.1", "localhost", "::1") and api_key is None:
        print(f"deberta: serving on {host} without an API key: anyone who can connect can use it", file=sys.stderr)
    with ExitStack() as closing:
        sockets = [closing.enter_context(each) for each in bound(host, port)]  # fail on a used port before loading
        models = []
        for spec in specs:
            name, path, task = parse(spec)
            print(f"loading {path}", file=sys.stderr)
            models.append(ServedModel(name, load(path, task, backend=backend)))
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        app = create_app(models, limits, api_key)

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                app.state.ready = False  # /ready gives 503 while the last requests are answered
                super().handle_exit(sig, frame)

        grace = int(limits.timeout) + 5
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=grace)
        print(f"http://{host}:{port}  (page: /, API: /docs, metrics: /metrics)", file=sys.stderr)
        Server(config).run(sockets=sockets)


def bound(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to each address of the host. They do not listen yet: no connections before models are loaded."""
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            if one := _bound(family, address):
                made.append(one)
        if not made:
            raise OSError(errno.EADDRNOTAVAIL, "no such address on this machine")
    except OSError as error:
        for one in made:
            one.close()
        raise OSError(f"could not serve on {host}:{port}: {error.strerror or error}") from None
    return made


def _bound(family: int, address: Address) -> socket.socket | None:
    """Bind one socket. Returns None if the machine lacks the address, for example ::1 without IPv6."""
    made = None
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # on Windows, SO_REUSEADDR lets two servers share a port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError as error:
        if made is not None:
            made.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise
    return made


def parse(spec: str) -> tuple[str, str, str | None]:
    """Parse [NAME=]MODEL[::TASK] into (name, path or hub name, task)."""
    name, equals, rest = spec.partition("=")
    path, _, task = (rest if equals else spec).partition("::")
    if not path or (equals and not name):
        raise ValueError(f"{spec!r}: write a model as [NAME=]MODEL[::TASK]")
    return (name if equals else Path(path).name or path), path, task or None
