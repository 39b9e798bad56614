"""``deberta serve``: load the models, then serve until SIGTERM or Ctrl-C; what is under way is finished first."""

import logging
import sys
from pathlib import Path
from typing import Any

from debertakit.inference.tasks import load


def serve(
    specs: list[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    backend: Any = "torch",
    api_key: str | None = None,
    labels: list[str] | None = None,
    **limits: Any,
) -> None:
    """``specs``: [NAME=]MODEL[::TASK], for example sentiment=runs/sst2 or runs/mnli::zero-shot."""
    try:
        import uvicorn

        from debertakit.serving.app import Limits, Model, create_app
    except ImportError as error:
        raise ImportError(f"serving needs packages ({error.name}): pip install 'debertakit[serve]'") from None
    if host not in ("127.0.0.1", "localhost", "::1") and api_key is None:
        print(f"deberta: serving on {host} without an API key: whoever reaches it may use it", file=sys.stderr)
    models = []
    for spec in specs:
        name, path, task = parse(spec)
        options = {"labels": labels} if labels and task == "zero-shot" else {}
        print(f"loading {path}", file=sys.stderr)
        predictor = load(path, task, backend=backend, **options)
        models.append(Model(name, _task_of(predictor), predictor))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    app = create_app(models, Limits(**limits), api_key)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.ready = False  # /ready says so while the last requests are answered
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app, host, port, log_config=None, access_log=False, timeout_graceful_shutdown=int(limits.get("seconds", 30)) + 5
    )
    server = Server(config)
    print(f"http://{host}:{port}  (page: /, API: /docs, metrics: /metrics)", file=sys.stderr)
    server.run()
    if not server.started:
        raise OSError(f"could not serve on {host}:{port}; is the port taken?")


def parse(spec: str) -> tuple[str, str, str | None]:
    """Name, path or hub name, task."""
    name, equals, rest = spec.partition("=")
    path, _, task = (rest if equals else spec).partition("::")
    if not path or (equals and not name):
        raise ValueError(f"{spec!r}: write a model as [NAME=]MODEL[::TASK]")
    return (name if equals else Path(path).name or path), path, task or None


def _task_of(predictor: Any) -> str:
    from debertakit.inference.tasks import TASKS

    return next(task for task, cls in TASKS.items() if type(predictor) is cls)
