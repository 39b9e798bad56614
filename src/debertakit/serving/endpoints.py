"""All endpoints. Access is checked before them (middleware.py).

``add_task`` adds the endpoint of a task: POST /classify, /zero-shot, ... {"inputs": [...], "model": name}.
"""

import asyncio
import mimetypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from debertakit.explain.page import SCRIPTS, PageData, page_data
from debertakit.explain.parts import Anatomy, Subject, encode, look
from debertakit.inference.fill import MaskFiller
from debertakit.inference.predictor import Predictor, Result
from debertakit.model import DebertaPreTrainedModel
from debertakit.serving import schemas
from debertakit.serving.batcher import Batcher, Busy, TooLarge, WorkerEnded, check_inputs
from debertakit.serving.limits import Limits
from debertakit.serving.metrics import Metrics
from debertakit.text.characters import UNIT
from debertakit.theme import THEME

_PAGE_FILES = {
    "debertakit.serving": (
        *("index.html", "app.js", "ask.js", "results.js", "words.js", "style.css", "icon.svg"),
        *("docs.html", "docs.js"),
    ),
    "debertakit.explain": (*SCRIPTS, "explorer.css"),
}
PAGE = {name: files(package) / "page" / name for package, names in _PAGE_FILES.items() for name in names}
PAGE["theme.css"] = THEME
SAMPLES = {"en": "The film was good, and we saw it in the city.", "zh": "这部电影很好看，我们在城里看的。"}
PAIR_LABELS = ("entail", "not_entail", "contradict", "equivalent", "paraphrase")
"""Labels that start with one of these words belong to models of two texts."""


@dataclass(frozen=True)
class ServedModel:
    name: str
    predictor: Predictor[Result]
    pairs: bool | None = None
    """Whether the model was fine-tuned on pairs of texts; None: not known."""

    @property
    def reads_pairs(self) -> bool:
        """Whether the page asks for an optional second text."""
        if self.pairs is not None:
            return self.pairs
        return any(label.casefold().startswith(PAIR_LABELS) for label in self.predictor.encoder.labels)

    @cached_property
    def languages(self) -> list[str]:
        """Languages of the examples on the page, all if the vocabulary covers none of them.

        Covered: no unknown token, and fewer than two tokens for a word or Chinese character. A byte-level vocabulary
        has no unknown token, but needs three for most Chinese characters.
        """

        def covered(text: str) -> bool:
            ids = self.predictor.tokenizer(text, add_special_tokens=False)["input_ids"]
            return self.predictor.tokenizer.unk_token_id not in ids and len(ids) < 2 * len(UNIT.findall(text))

        return [name for name, text in SAMPLES.items() if covered(text)] or list(SAMPLES)

    @property
    def explains(self) -> bool:
        """Whether /explain supports the model: DeBERTa in torch, not ONNX or other encoders."""
        return isinstance(self.predictor.model, DebertaPreTrainedModel)


@dataclass
class ServerState:
    """What the endpoints and the middleware share: ``app.state.server``."""

    models: list[ServedModel]
    limits: Limits
    metrics: Metrics = field(default_factory=Metrics)
    batchers: dict[str, Batcher] = field(default_factory=dict)
    """Model name -> its batcher, from startup to shutdown."""
    explaining: asyncio.Lock = field(default_factory=asyncio.Lock)
    started: bool = False
    draining: bool = False
    """Whether the server finishes its open requests and refuses new ones."""
    open: int = 0
    """Requests without a complete answer."""

    def not_ready(self) -> list[str]:
        """Models whose worker does not run."""
        return [name for name, batcher in self.batchers.items() if not batcher.ready]


async def _server(request: Request) -> ServerState:  # async: FastAPI runs other dependencies in threads
    return request.app.state.server


Server = Annotated[ServerState, Depends(_server)]
router = APIRouter()


# ----------------------------------------------------------------------------------------------------------- tasks


def add_task(router: APIRouter, predictor: type[Predictor[Result]], limits: Limits) -> None:
    async def endpoint(body: schemas.PredictRequest, server: Server) -> dict[str, object]:
        return await _predict(server, predictor.task, body)

    endpoint.__annotations__["body"] = schemas.request_type(predictor, limits)  # FastAPI reads the schema from here
    summary = (predictor.__doc__ or "").strip().splitlines()[0]
    response = schemas.response_type(predictor)
    router.post(f"/{predictor.task}", response_model=response, summary=summary, name=predictor.task)(endpoint)


async def _predict(server: ServerState, task: str, body: schemas.PredictRequest) -> dict[str, object]:
    model = _choose(server.models, task, body.model)
    items = [item.model_dump(exclude_none=True) for item in body.inputs]
    _check_sizes(items, server.limits)
    with _errors_as_status(server.limits):
        checked = check_inputs(model.predictor, items)
        results = await asyncio.wait_for(server.batchers[model.name].submit(checked), server.limits.timeout)
    return {"model": model.name, "results": [asdict(result) for result in results]}


def _choose(models: list[ServedModel], task: str, name: str | None) -> ServedModel:
    for_task = [model for model in models if model.predictor.task == task]
    if name is None:
        return for_task[0]
    for model in for_task:
        if model.name == name:
            return model
    raise HTTPException(404, f"no model {name!r} for {task}; there is {', '.join(model.name for model in for_task)}")


def _check_sizes(items: list[dict[str, str | list[str]]], limits: Limits) -> None:
    for number, item in enumerate(items):
        for name, value in item.items():
            size = len(value) if isinstance(value, str) else sum(map(len, value))
            if size > limits.characters:
                raise HTTPException(413, f"inputs[{number}].{name} has {size} characters; at most {limits.characters}")


@contextmanager
def _errors_as_status(limits: Limits) -> Iterator[None]:
    """Turn the errors of a request into HTTP status codes."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    except TooLarge as error:
        raise HTTPException(413, str(error)) from None
    except Busy as busy:
        raise HTTPException(429, str(busy), headers={"Retry-After": str(busy.retry_after)}) from None
    except WorkerEnded as error:
        raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from None
    except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
        raise HTTPException(504, f"no answer within {limits.timeout:g} s") from None


# --------------------------------------------------------------------------------------------- attention explorer


@router.post("/explain", response_model=None)
async def explain(body: schemas.ExplainRequest, server: Server) -> PageData:
    """Return the attention of every head on a text, with its content and position parts. Runs one at a time."""
    named = {model.name: model for model in server.models}
    wanted = [name for name in (body.model, body.against) if name is not None]
    for name in wanted:
        if name not in named:
            raise HTTPException(404, f"no model {name!r}; there is {', '.join(named)}")
        if not named[name].explains:
            raise HTTPException(422, f"{name} cannot be explained: only DeBERTa models that run in torch can")
    if server.explaining.locked():
        raise HTTPException(429, "another text is being explained; try again in 1 s", headers={"Retry-After": "1"})

    async def explained() -> PageData:
        anatomies = [await _anatomy(named[name], server, body.text) for name in wanted]
        return await asyncio.to_thread(page_data, [[anatomy] for anatomy in anatomies])

    async with server.explaining:
        with _errors_as_status(server.limits):
            return await asyncio.wait_for(explained(), server.limits.timeout)


async def _anatomy(model: ServedModel, server: ServerState, text: str) -> Anatomy:
    """Encode in the batcher's tokenizer thread, because tokenizers keep state. Run in its model thread."""
    subject = Subject(model.name, model.predictor.model, model.predictor.tokenizer)
    batcher, loop = server.batchers[model.name], asyncio.get_running_loop()
    encoded = await loop.run_in_executor(batcher.encoders, encode, subject, text, None, server.limits.explained)
    return await loop.run_in_executor(batcher.thread, look, subject, encoded)


# ---------------------------------------------------------------------------------------------------------- status


@router.get("/models")
async def models(server: Server) -> list[schemas.ModelInfo]:
    """List the loaded models."""
    return [_info(model) for model in server.models]


def _info(model: ServedModel) -> schemas.ModelInfo:
    predictor = model.predictor
    labels = list(predictor.encoder.labels)
    fields = [
        schemas.FieldInfo(name=field.name, required=field.required, list=field.holds != "text", example=field.example)
        for field in predictor.fields
        if field.instead_of is None and (field.required or field.name != "pair" or model.reads_pairs)
    ]
    return schemas.ModelInfo(
        name=model.name,
        task=predictor.task,
        labels=labels if len(labels) > 1 else [],  # a regression model has one output without a name
        fields=fields,
        explains=model.explains,
        languages=model.languages,
        mask=predictor.tokenizer.mask_token if isinstance(predictor, MaskFiller) else None,
    )


@router.get("/health")
async def health() -> dict[str, str]:
    """Liveness check."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"model": schemas.Readiness, "description": "not ready"}})
async def ready(server: Server, response: Response) -> schemas.Readiness:
    """Readiness check: 503 during shutdown, and while the worker of a model does not run."""
    waiting_for = server.not_ready()
    found = server.started and not server.draining and not waiting_for
    response.status_code = 200 if found else 503
    return schemas.Readiness(ready=found, not_ready=waiting_for)


@router.get("/metrics", include_in_schema=False)
async def metrics(server: Server) -> Response:
    for name, batcher in server.batchers.items():
        server.metrics.queue.labels(name).set(batcher.in_work)
        server.metrics.restarts.labels(name).set(batcher.restarts)
    return Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/", include_in_schema=False)
@router.get("/page/{name}", include_in_schema=False)
async def page(name: str = "index.html") -> Response:
    if name not in PAGE:
        raise HTTPException(404, "no such page")
    return Response(PAGE[name].read_bytes(), media_type=mimetypes.guess_type(name)[0])


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return await page("docs.html")
