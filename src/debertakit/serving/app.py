"""HTTP application: one endpoint per task, limits, metrics and the web page.

POST /classify /zero-shot /ner /answer /choose /fill /score /embed     {"inputs": [...], "model": name}
GET  /models   loaded models             GET /health  liveness     GET /ready  readiness
GET  /metrics  for Prometheus            GET /docs    OpenAPI      GET /       web page
"""

import asyncio
import hmac
import json
import logging
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from debertakit.explain.page import page_data
from debertakit.explain.parts import Anatomy, Subject, encode, look
from debertakit.inference.predictor import Predictor
from debertakit.inference.tasks import PREDICTORS
from debertakit.loading import labels_of
from debertakit.serving import schemas
from debertakit.serving.batcher import Batcher, Busy, TooLarge, checked
from debertakit.serving.limits import Limits

logger = logging.getLogger("debertakit.serving")
_FOLDERS = {
    "debertakit.serving": ("index.html", "app.js", "style.css"),
    "debertakit.explain": ("explorer.js", "explorer.css"),
}
PAGE = {name: files(package) / "page" / name for package, names in _FOLDERS.items() for name in names}


@dataclass(frozen=True)
class Model:
    name: str
    task: str
    predictor: Predictor


class Metrics:
    """Per-server metrics. User text is never recorded."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests", ["path", "status"], registry=self.registry)
        self.seconds = Histogram("request_seconds", "Time to answer", ["path"], registry=self.registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.jobs = Histogram("batch_requests", "Requests in a batch", ["model"], buckets=sizes, registry=self.registry)
        tokens = tuple(2**n for n in range(4, 15))
        self.tokens = Histogram("batch_tokens", "Tokens of a batch", ["model"], buckets=tokens, registry=self.registry)
        self.model_seconds = Histogram("batch_seconds", "Time in the model", ["model"], registry=self.registry)
        self.queue = Gauge("waiting_tokens", "Tokens in the queue", ["model"], registry=self.registry)

    def observer(self, name: str) -> Callable[[int, int, float], None]:
        def observe(jobs: int, tokens: int, seconds: float) -> None:
            self.jobs.labels(name).observe(jobs)
            self.tokens.labels(name).observe(tokens)
            self.model_seconds.labels(name).observe(seconds)

        return observe


def create_app(models: list[Model], limits: Limits | None = None, api_key: str | None = None) -> FastAPI:
    limits = limits or Limits()
    metrics = Metrics()
    names = [model.name for model in models]
    refuse_empty(api_key)
    if len(set(names)) < len(names):
        raise ValueError(f"two models have one name among {', '.join(names)}; name them NAME=FOLDER")
    batchers: dict[str, Batcher] = {}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for model in models:
            batchers[model.name] = Batcher(model.predictor, limits, metrics.observer(model.name))
            batchers[model.name].start()
        app.state.ready = True
        yield
        app.state.ready = False
        for batcher in batchers.values():
            await batcher.stop()

    app = FastAPI(title="debertakit", lifespan=lifespan, responses=_problems())
    app.state.ready = False
    app.state.models, app.state.batchers = models, batchers
    app.add_middleware(BodyLimit, largest=limits.body)
    app.middleware("http")(_observed(metrics))
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(HTTPException, _plain)
    guard = [Depends(_guard(api_key))] if api_key is not None else []
    explaining = asyncio.Lock()

    async def answer(task: str, request: Any) -> dict[str, Any]:
        model = choose(models, task, request.model)
        items = [item.model_dump(exclude_none=True) for item in request.inputs]
        _within(items, limits)
        with _told(limits):
            passed = checked(model.predictor, items)
            results = await asyncio.wait_for(batchers[model.name].submit(passed), limits.timeout)
        return {"model": model.name, "results": [asdict(result) for result in results]}

    for task in dict.fromkeys(model.task for model in models):
        _add_endpoint(app, task, answer, guard)

    @app.post("/explain", dependencies=guard)
    async def explain(request: schemas.Explain) -> dict[str, Any]:
        """Return the attention of every head on a text, with its content and position parts. Runs one at a time."""
        named = [model for name in (request.model, request.against) if name for model in models if model.name == name]
        if len(named) < 1 + (request.against is not None):
            raise HTTPException(404, f"no such model; there is {', '.join(names)}")
        for model in named:
            if not _explains(model):
                raise HTTPException(422, f"{model.name} cannot be explained: only a DeBERTa that runs in torch can")
        if explaining.locked():
            raise HTTPException(429, "another text is being explained; try again in 1 s", headers={"Retry-After": "1"})

        async def explained() -> dict[str, Any]:
            anatomies = [await _anatomy(model, batchers[model.name], request.text, limits) for model in named]
            return await asyncio.to_thread(page_data, [[anatomy] for anatomy in anatomies])

        async with explaining:
            with _told(limits):
                return await asyncio.wait_for(explained(), limits.timeout)

    @app.get("/", include_in_schema=False)
    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        if name not in PAGE:
            raise HTTPException(404, "no such page")
        return Response(PAGE[name].read_bytes(), media_type=mimetypes.guess_type(name)[0])

    @app.get("/models", response_model=list[schemas.ModelInfo], dependencies=guard)
    async def loaded() -> list[dict[str, Any]]:
        """List the loaded models."""
        return [_info(model) for model in models]

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Liveness check."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        """Readiness check: 503 before startup is complete and during shutdown."""
        return JSONResponse({"ready": app.state.ready}, 200 if app.state.ready else 503)

    @app.get("/metrics", include_in_schema=False)
    async def measured() -> Response:
        for name, batcher in batchers.items():
            metrics.queue.labels(name).set(batcher.waiting)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _add_endpoint(app: FastAPI, task: str, answer: Callable[[str, Any], Awaitable[Any]], guard: list[Any]) -> None:
    taken, given = schemas.BODIES[task]

    async def endpoint(request: Any) -> Any:
        return await answer(task, request)

    endpoint.__annotations__["request"] = taken  # FastAPI reads the schema from the annotation
    summary = (PREDICTORS[task].__doc__ or "").strip().splitlines()[0]
    app.post(f"/{task}", response_model=given, dependencies=guard, summary=summary, name=task)(endpoint)


def choose(models: list[Model], task: str, name: str | None) -> Model:
    able = [model for model in models if model.task == task]
    if name is None:
        return able[0]
    for model in able:
        if model.name == name:
            return model
    raise HTTPException(404, f"no model {name!r} for {task}; there is {', '.join(model.name for model in able)}")


def _within(items: list[dict[str, Any]], limits: Limits) -> None:
    if len(items) > limits.inputs:
        raise HTTPException(413, f"{len(items)} inputs; at most {limits.inputs} in a request")
    for number, item in enumerate(items):
        for field, value in item.items():
            size = len(value) if isinstance(value, str) else sum(map(len, value))
            if size > limits.characters:
                raise HTTPException(413, f"inputs[{number}].{field} has {size} characters; at most {limits.characters}")


@contextmanager
def _told(limits: Limits) -> Iterator[None]:
    """Turn the errors of a request into HTTP status codes."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    except TooLarge as error:
        raise HTTPException(413, str(error)) from None
    except Busy as busy:
        raise HTTPException(429, str(busy), headers={"Retry-After": str(busy.retry_after)}) from None
    except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
        raise HTTPException(504, f"not answered within {limits.timeout:g} s") from None


async def _anatomy(model: Model, batcher: Batcher, text: str, limits: Limits) -> Anatomy:
    """Encode in the batcher's tokenizer thread, because tokenizers keep state. Run in its model thread."""
    subject = Subject(model.name, model.predictor.model, model.predictor.tokenizer)
    loop = asyncio.get_running_loop()
    encoded = await loop.run_in_executor(batcher.encoders, encode, subject, text, None, limits.explained)
    return await loop.run_in_executor(batcher.thread, look, subject, encoded)


def _explains(model: Model) -> bool:
    """Whether /explain supports the model: DeBERTa in torch, not ONNX or other encoders."""
    from debertakit.model import DebertaPreTrainedModel

    return isinstance(model.predictor.model, DebertaPreTrainedModel)


def _info(model: Model) -> dict[str, Any]:
    config = model.predictor.model.config
    named = model.task in ("classify", "ner") and config.num_labels > 1
    labels = list(labels_of(config)) if named else []
    return {"name": model.name, "task": model.task, "labels": labels, "explains": _explains(model)}


# ------------------------------------------------------------------------------- middleware, authentication and errors


class BodyLimit:
    """Refuse a body that is too large with 413 before reading it into memory, with or without Content-Length."""

    def __init__(self, app: ASGIApp, largest: int):
        self.app, self.largest = app, largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self.largest:
            await self._refuse(scope, receive, send)
            return
        received, refused = 0, False

        async def counted() -> Message:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.largest:
                refused = True
                return {"type": "http.disconnect"}
            return message

        async def guarded(message: Message) -> None:
            if not refused:
                await send(message)

        try:
            await self.app(scope, counted, guarded)
        except Exception:
            if not refused:
                raise
        if refused:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = {"error": f"a request of at most {self.largest} bytes is taken"}
        await JSONResponse(problem, 413, headers={"Connection": "close"})(scope, receive, send)


def _observed(metrics: Metrics) -> Any:
    async def observe(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        status = 500
        try:
            response = await call(request)
            status = response.status_code
            return response
        finally:
            seconds = time.perf_counter() - began
            route = request.scope.get("route")
            path = getattr(route, "path", "other")  # not the raw path: clients could create any number of label values
            metrics.requests.labels(path, str(status)).inc()
            metrics.seconds.labels(path).observe(seconds)
            line = {"path": path, "method": request.method, "status": status, "ms": round(seconds * 1e3, 1)}
            logger.info(json.dumps({"time": round(time.time(), 3), **line}))

    return observe


def refuse_empty(api_key: str | None) -> None:
    """Raise if the API key is empty: it would silently disable authentication."""
    if api_key is not None and not api_key.strip():
        raise ValueError("the API key is empty; give one, or leave --api-key and DEBERTA_API_KEY out")


def _guard(api_key: str) -> Callable[[Request], None]:
    def guard(request: Request) -> None:
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), api_key.encode()):
            raise HTTPException(401, "give the key as X-API-Key or Authorization: Bearer")

    return guard


async def _unreadable(request: Request, error: Exception) -> Response:
    """Say which field is wrong and why, without repeating user text."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"error": f"{'.'.join(map(str, first['loc'][1:])) or 'body'}: {first['msg']}"}, 422)


async def _plain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


def _problems() -> dict[int | str, dict[str, Any]]:
    said = {401: "no key", 404: "no such model", 413: "too large", 422: "not readable", 429: "busy", 504: "too slow"}
    return {status: {"model": schemas.Problem, "description": text} for status, text in said.items()}
