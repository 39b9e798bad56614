"""What happens around every endpoint: body size, API key, metrics, log, and errors as JSON."""

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from debertakit.serving.metrics import Metrics

logger = logging.getLogger("debertakit.serving")


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

        async def receive_limited() -> Message:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.largest:
                refused = True
                return {"type": "http.disconnect"}
            return message

        async def send_unless_refused(message: Message) -> None:
            if not refused:
                await send(message)

        try:
            await self.app(scope, receive_limited, send_unless_refused)
        except Exception:
            if not refused:
                raise
        if refused:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = {"error": f"the request body is too large; at most {self.largest} bytes are accepted"}
        await JSONResponse(problem, 413, headers={"Connection": "close"})(scope, receive, send)


Next = Callable[[Request], Awaitable[Response]]


def measuring(metrics: Metrics) -> Callable[[Request, Next], Awaitable[Response]]:
    """Middleware that counts, times and logs every request."""

    async def measure(request: Request, call: Next) -> Response:
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
            entry = {"path": path, "method": request.method, "status": status, "ms": round(seconds * 1e3, 1)}
            logger.info(json.dumps({"time": round(time.time(), 3), **entry}))

    return measure


def refuse_empty(api_key: str | None) -> None:
    """Raise if the API key is empty: it would silently disable authentication."""
    if api_key is not None and not api_key.strip():
        raise ValueError("the API key is empty; set one, or leave out --api-key and DEBERTA_API_KEY")


def key_check(api_key: str) -> Callable[[Request], Awaitable[None]]:
    """Dependency that refuses a request without the API key."""

    async def check(request: Request) -> None:
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), api_key.encode()):
            raise HTTPException(401, "send the API key as X-API-Key or Authorization: Bearer")

    return check


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)


async def _invalid_body(request: Request, error: Exception) -> Response:
    """Say which field is wrong and why, without repeating user text."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"error": f"{'.'.join(map(str, first['loc'][1:])) or 'body'}: {first['msg']}"}, 422)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
