"""The HTTP server: load models and serve until SIGTERM or Ctrl-C. Open requests are finished before exit."""

import ctypes
import json
import logging
import sys
from contextlib import ExitStack
from pathlib import Path

from debertakit.inference.options import LoadOptions
from debertakit.inference.tasks import load
from debertakit.installation import install
from debertakit.serving.access import Access
from debertakit.serving.addresses import bound
from debertakit.serving.limits import Limits


def serve(specs: list[str], *, host: str, port: int, loading: LoadOptions, access: Access, limits: Limits) -> None:
    """Serve ``specs``: [NAME=]MODEL[::TASK], for example sentiment=runs/sst2 or runs/mnli::zero-shot."""
    try:
        from debertakit.serving.app import create_app
        from debertakit.serving.connections import Server
        from debertakit.serving.endpoints import ServedModel
    except ImportError as error:
        raise ImportError(f"serving needs packages ({error.name}): {install('serve')}") from None
    if host not in ("127.0.0.1", "localhost", "::1") and access.api_key is None:
        print(f"deberta: serving on {host} without an API key: anyone who can connect can use it", file=sys.stderr)
    _share_heaps()
    with ExitStack() as closing:
        sockets = [closing.enter_context(each) for each in bound(host, port)]  # fail on a used port before loading
        models = []
        for spec in specs:
            name, path, task = parse(spec)
            print(f"loading {path}", file=sys.stderr)
            predictor = load(path, task, backend=loading.backend, precision=loading.precision)
            if predictor.backend:
                print(f"backend {predictor.backend}", file=sys.stderr)
            models.append(ServedModel(name, predictor, trained_on_pairs(path)))
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        server = Server(create_app(models, limits, access))
        print(f"http://{host}:{port}  (page: /, API: /docs, metrics: /metrics)", file=sys.stderr)
        server.run(sockets=sockets)
        if server.interrupted:
            raise KeyboardInterrupt


def _share_heaps() -> None:
    """Let all threads share two heaps of glibc.

    Each model has threads of its own, and glibc gives them up to eight heaps per core. What is freed stays in its heap:
    memory grew for longer than ten minutes under load, to twice the size.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(-8, 2)  # M_ARENA_MAX


def trained_on_pairs(path: str) -> bool | None:
    """Whether the first dev example of a fine-tuning run has a second text. None: there is no run to read."""
    predictions = Path(path) / "predictions-dev.jsonl"
    if not predictions.is_file():
        return None
    with predictions.open(encoding="utf-8") as file:
        first = json.loads(file.readline() or "{}")
    return bool(first.get("example", {}).get("pair"))


def parse(spec: str) -> tuple[str, str, str | None]:
    """Parse [NAME=]MODEL[::TASK] into (name, path or hub name, task)."""
    name, equals, rest = spec.partition("=")
    path, _, task = (rest if equals else spec).partition("::")
    if not path or (equals and not name):
        raise ValueError(f"{spec!r}: write a model as [NAME=]MODEL[::TASK]")
    return (name if equals else Path(path).name or path), path, task or None
