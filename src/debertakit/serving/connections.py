"""The uvicorn server with limits on connections, and with a shutdown that finishes open requests.

uvicorn itself has no limit on idle connections, on the time that headers take, or on clients that do not read.
"""

import asyncio
import json
import signal
import time
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from debertakit.serving.endpoints import ServerState
from debertakit.serving.limits import Limits

LISTEN = 0.5
"""Seconds for which a server that shuts down answers 503 at least, so that load balancers see it."""
GRACE = 5
"""Seconds beyond the limit for a request until a shutdown stops waiting."""


class Server(uvicorn.Server):
    """On the first SIGTERM or SIGINT, refuse new requests with 503 and finish the open ones; on the second, stop."""

    def __init__(self, app: FastAPI):
        self.state: ServerState = app.state.server
        self.draining_since = 0.0
        self.interrupted = False
        config = uvicorn.Config(
            app,
            http=protocol(self.state.limits),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.state.draining:
            self.force_exit = True
            super().handle_exit(sig, frame)
            return
        self.interrupted = sig == signal.SIGINT
        self.drain()

    def drain(self) -> None:
        self.state.draining, self.draining_since = True, time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        if self.state.draining:
            seconds = time.monotonic() - self.draining_since
            finished = not self.state.open and seconds > LISTEN
            self.should_exit |= finished or seconds > self.state.limits.timeout + GRACE
        return await super().on_tick(counter)


def protocol(limits: Limits) -> type[H11Protocol]:
    """uvicorn's protocol for one connection, with our limits."""

    class LimitedProtocol(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.head_timer: asyncio.TimerHandle | None = None
            self.write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.write(_too_many(limits.connections))
                transport.close()
            else:
                self._start_head_timer()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_timers(write=False)  # the headers are complete; the middleware limits the body
            elif self.head_timer is None:  # the next headers, or the rest of a body that was refused
                self._start_head_timer()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.write_timer = self.loop.call_later(limits.receive, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_timers(head=False)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timers()
            super().connection_lost(exc)

        def _start_head_timer(self) -> None:
            self.head_timer = self.loop.call_later(limits.receive, self.transport.abort)

        def _stop_timers(self, head: bool = True, write: bool = True) -> None:
            if head and self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None
            if write and self.write_timer is not None:
                self.write_timer.cancel()
                self.write_timer = None

    return LimitedProtocol


def _too_many(connections: int) -> bytes:
    body = json.dumps({"error": f"more than {connections} connections; try again in 1 s"}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
