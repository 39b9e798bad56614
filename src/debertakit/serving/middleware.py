"""What happens around every endpoint, as plain ASGI. From the outside in:

Observe   counts and logs the request, and adds the security headers
Gate      refuses a wrong Host (400), requests during shutdown (503) and a missing key (401), before any body is read
Body      reads the body with limits on bytes and seconds (413, 408), and cancels the endpoint if the client leaves
"""

import asyncio
import json
import logging
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from debertakit.serving.access import Access
from debertakit.serving.endpoints import ServerState
from debertakit.serving.limits import Limits

logger = logging.getLogger("debertakit.serving")

SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
STATUS_PATHS = ("/health", "/ready", "/metrics")
"""Answered during shutdown too."""
BODIES = 64
"""All bodies in memory may have this many times the bytes of the largest one."""
LEFT = 499
"""Status in log and metrics if the client left before the answer, as in nginx."""


def problem(status: int, text: str, **headers: str) -> JSONResponse:
    """An error as JSON. Characters that are not Unicode text (lone surrogates) are replaced."""
    text = text if len(text) <= 500 else text[:500] + "..."
    return JSONResponse({"error": text.encode("utf-8", "replace").decode()}, status, headers=headers)


class Observe:
    def __init__(self, app: ASGIApp, server: ServerState, paths: set[str]):
        self.app, self.server, self.paths = app, server, paths
        self.headers = [(name.encode(), value.encode()) for name, value in SECURITY.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), LEFT

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *self.headers]}
            await send(message)

        self.server.open += 1
        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            status = 500
            raise
        finally:
            self.server.open -= 1
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", scope["path"])
        path = path if path in self.paths else "other"  # clients could create any number of label values
        self.server.metrics.requests.labels(path, str(status)).inc()
        self.server.metrics.seconds.labels(path).observe(seconds)
        entry = {"path": path, "method": scope["method"], "status": status, "ms": round(seconds * 1e3, 1)}
        logger.info(json.dumps({"time": round(time.time(), 3), **entry}))


class Gate:
    def __init__(self, app: ASGIApp, server: ServerState, access: Access):
        self.app, self.server, self.access = app, server, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = dict(scope["headers"]), scope["path"]
        host = headers.get(b"host", b"").decode("latin-1")
        if not self.access.allows_host(host):
            return problem(400, f"the host name {host!r} is not allowed; start the server with --allowed-host NAME")
        if self.server.draining and path not in STATUS_PATHS:
            return problem(503, "the server is shutting down", **{"Retry-After": "1", "Connection": "close"})
        if path not in self.access.public and not self.access.allows_key(headers):
            dialog = {"WWW-Authenticate": 'Basic realm="API key as password"'}  # a browser asks for it
            asks = b"text/html" in headers.get(b"accept", b"")
            return problem(401, "send the API key as X-API-Key or Authorization: Bearer", **(dialog if asks else {}))
        return None


class Body:
    def __init__(self, app: ASGIApp, limits: Limits):
        self.app, self.limits = app, limits
        self.held = 0
        """Bytes of all bodies in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with self._body(scope) as body:
            try:
                refusal = await asyncio.wait_for(self._read(receive, body), self.limits.receive)
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                refusal = problem(408, f"the request body did not arrive within {self.limits.receive:g} s")
            if refusal is not None:
                await refusal(scope, receive, send)
            elif not body.left:
                await self._answer(scope, bytes(body.data), receive, send)

    @contextmanager
    def _body(self, scope: Scope) -> Iterator["ReceivedBody"]:
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        body = ReceivedBody(int(announced) if announced.isdigit() and len(announced) < 16 else 1 << 60)
        try:
            yield body
        finally:
            self.held -= len(body.data)

    async def _read(self, receive: Receive, body: "ReceivedBody") -> Response | None:
        """Read the body. Returns the answer if it is refused: before it is read if its announced size says so."""
        more = True
        while more:
            if max(body.announced, len(body.data)) > self.limits.body:
                return problem(413, f"the request body is too large; at most {self.limits.body} bytes are accepted")
            if self.held > BODIES * self.limits.body:
                return problem(429, "too many requests are being received; try again in 1 s", **{"Retry-After": "1"})
            message = await receive()
            if message["type"] == "http.disconnect":
                body.left = True
                return None
            chunk = message.get("body", b"")
            body.data += chunk
            self.held += len(chunk)
            more = message.get("more_body", False)
        if len(body.data) > self.limits.body:
            return problem(413, f"the request body is too large; at most {self.limits.body} bytes are accepted")
        return None

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Call the endpoint with the body. If the client disconnects first, cancel the endpoint."""
        left = asyncio.ensure_future(_until_disconnect(receive))
        given = False

        async def receive_body() -> Message:
            nonlocal given
            if given:
                return await asyncio.shield(left)
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        answer = asyncio.ensure_future(self.app(scope, receive_body, send))
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        finally:
            for task in (answer, left):
                task.cancel()
            await asyncio.gather(answer, left, return_exceptions=True)


class ReceivedBody:
    def __init__(self, announced: int):
        self.announced, self.data, self.left = announced, bytearray(), False


async def _until_disconnect(receive: Receive) -> MutableMapping[str, Any]:
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)


async def _invalid_body(request: Request, error: Exception) -> Response:
    """Say which field is wrong and why, without repeating user text."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(400, f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
    status = 413 if first["type"] == "too_long" and first["loc"] == ("body", "inputs") else 422
    return problem(status, f"{'.'.join(map(str, first['loc'][1:])) or 'body'}: {first['msg']}")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, error.detail, **(error.headers or {}))


async def _internal_error(request: Request, error: Exception) -> Response:
    """Outside of ``Observe``, so it adds the security headers itself. The traceback is logged by the server."""
    return problem(500, "internal error", **SECURITY)
