"""HTTP application: the endpoints (endpoints.py) inside the middleware (middleware.py).

POST /classify /zero-shot /ner /answer /choose /fill /score /embed     {"inputs": [...], "model": name}
GET  /models   loaded models             GET /health  liveness     GET /ready  readiness
GET  /metrics  for Prometheus            GET /docs    OpenAPI      GET /       web page
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Security
from fastapi.security import APIKeyHeader

from debertakit.serving.access import Access
from debertakit.serving.batcher import Batcher
from debertakit.serving.endpoints import ServedModel, ServerState, add_task, router
from debertakit.serving.limits import Limits
from debertakit.serving.middleware import Body, Gate, Observe, add_error_handlers
from debertakit.serving.schemas import Problem

Responses = dict[int | str, dict[str, Any]]  # FastAPI's type
PROBLEMS = {
    400: "body or Host header not readable",
    401: "API key missing or wrong",
    404: "no such model",
    408: "body too slow",
    413: "request too large",
    422: "invalid request",
    429: "queue full",
    503: "shutting down, or the worker starts again",
    504: "timeout",
}


def create_app(models: list[ServedModel], limits: Limits | None = None, access: Access | None = None) -> FastAPI:
    names = [model.name for model in models]
    if len(set(names)) < len(names):
        raise ValueError(f"two models have the same name ({', '.join(names)}); name them with NAME=FOLDER")
    server, access = ServerState(models, limits or Limits()), access or Access()
    for model in models:
        model.languages  # uses the tokenizer: compute it before the batchers' threads start  # noqa: B018
    app = FastAPI(title="debertakit", lifespan=_lifespan, docs_url=None, redoc_url=None)
    app.state.server = server
    tasks = APIRouter()
    for predictor in {model.predictor.task: type(model.predictor) for model in models}.values():
        add_task(tasks, predictor, server.limits)
    # Only for the documentation: Gate checks the key, before the body is read.
    key = [Security(APIKeyHeader(name="X-API-Key", auto_error=False))] if access.api_key is not None else []
    problems: Responses = {status: {"model": Problem, "description": text} for status, text in PROBLEMS.items()}
    for each in (tasks, router):
        app.include_router(each, dependencies=key, responses=problems)
    for path in access.public:
        for operation in app.openapi()["paths"].get(path, {}).values():
            operation.pop("security", None)
    paths = {getattr(route, "path", "") for each in (app, tasks, router) for route in each.routes}
    add_error_handlers(app)
    app.add_middleware(Body, limits=server.limits)  # the last one added is the outermost
    app.add_middleware(Gate, server=server, access=access)
    app.add_middleware(Observe, server=server, paths=paths)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run a batcher for each model. At shutdown, finish the queued requests."""
    server: ServerState = app.state.server
    for model in server.models:
        batcher = Batcher(model.predictor, server.limits, server.metrics.observer(model.name))
        batcher.start()
        server.batchers[model.name] = batcher
    server.started = True
    yield
    server.started = False
    for batcher in server.batchers.values():
        await batcher.stop()
