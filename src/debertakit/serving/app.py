"""HTTP application: the endpoints (endpoints.py) with limits, metrics, authentication and the web page.

POST /classify /zero-shot /ner /answer /choose /fill /score /embed     {"inputs": [...], "model": name}
GET  /models   loaded models             GET /health  liveness     GET /ready  readiness
GET  /metrics  for Prometheus            GET /docs    OpenAPI      GET /       web page
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from debertakit.serving.batcher import Batcher
from debertakit.serving.endpoints import ServedModel, ServerState, add_task, guarded, public
from debertakit.serving.limits import Limits
from debertakit.serving.middleware import BodyLimit, add_error_handlers, key_check, measuring, refuse_empty
from debertakit.serving.schemas import Problem

Responses = dict[int | str, dict[str, Any]]  # FastAPI's type
PROBLEMS = {
    401: "API key missing or wrong",
    404: "no such model",
    413: "request too large",
    422: "invalid request",
    429: "queue full",
    504: "timeout",
}


def create_app(models: list[ServedModel], limits: Limits | None = None, api_key: str | None = None) -> FastAPI:
    refuse_empty(api_key)
    names = [model.name for model in models]
    if len(set(names)) < len(names):
        raise ValueError(f"two models have the same name ({', '.join(names)}); name them with NAME=FOLDER")
    server = ServerState(models, limits or Limits())
    app = FastAPI(title="debertakit", lifespan=_lifespan)
    app.state.server, app.state.ready = server, False
    app.add_middleware(BodyLimit, largest=server.limits.body)
    app.middleware("http")(measuring(server.metrics))
    add_error_handlers(app)
    tasks = APIRouter()
    for predictor in {model.predictor.task: type(model.predictor) for model in models}.values():
        add_task(tasks, predictor, server.limits)
    key = [Depends(key_check(api_key))] if api_key is not None else []
    problems: Responses = {status: {"model": Problem, "description": text} for status, text in PROBLEMS.items()}
    app.include_router(tasks, dependencies=key, responses=problems)
    app.include_router(guarded, dependencies=key, responses=problems)
    app.include_router(public)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run a batcher for each model. At shutdown, finish the queued requests."""
    server: ServerState = app.state.server
    for model in server.models:
        batcher = Batcher(model.predictor, server.limits, server.metrics.observer(model.name))
        batcher.start()
        server.batchers[model.name] = batcher
    app.state.ready = True
    yield
    app.state.ready = False
    for batcher in server.batchers.values():
        await batcher.stop()
