"""The clients of overload.py: well-behaved ones, and those that leave, send nonsense, send slowly or do not read.

Requests are written by hand on asyncio streams: httpx would use more CPU than the server.
"""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(str, Enum):
    SMALL = "small"
    BIG = "big"
    LEAVES = "leaves"
    MALFORMED = "malformed"
    SLOW = "slow"
    DEAF = "does not read"
    HEALTH = "/health"


IDLE = 2.0
"""Seconds after which a client no longer reuses a connection. The server closes idle connections after 5."""


@dataclass(frozen=True)
class Request:
    path: str
    body: bytes
    expected: list[Any]


@dataclass(frozen=True)
class Answer:
    kind: Kind
    status: int
    """0: the connection was refused or closed without an answer."""
    began: float
    seconds: float
    expected: bool
    """Whether this kind of request may get this status."""
    request: Request | None = None
    results: list[Any] | None = None


class Clients:
    def __init__(self, port: int, requests: dict[Kind, list[Request]], malformed: list[tuple[bytes, int]], slow: float):
        self.port, self.requests, self.malformed, self.slow = port, requests, malformed, slow
        self.random = random.Random(2)
        self.idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.answered: list[Answer] = []
        self.sent: Counter[str] = Counter()
        self.drain_began = float("inf")
        self.lost = 0
        """Requests sent before the drain that got no answer."""
        self.errors: list[str] = []

    async def send(self, kind: Kind) -> None:
        self.sent[kind.value] += 1
        try:
            match kind:
                case Kind.SMALL | Kind.BIG:
                    await self._ask(kind, self.random.choice(self.requests[kind]))
                case Kind.MALFORMED:
                    body, status = self.random.choice(self.malformed)
                    await self._ask(kind, None, body, status)
                case Kind.LEAVES:
                    await self._leave(self.random.choice(self.requests[self.random.choice([Kind.SMALL, Kind.BIG])]))
                case Kind.SLOW:
                    await self._send_slowly()
                case Kind.DEAF:
                    await self._never_read()
                case Kind.HEALTH:
                    await self._ask_health()
        except Exception as error:  # a fault of this program must not end the run unseen
            self.errors.append(f"{kind.value}: {error!r}")

    def close(self) -> None:
        for _, _, writer in self.idle:
            writer.close()
        self.idle.clear()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self.idle:
            since, reader, writer = self.idle.pop()
            if time.monotonic() - since < IDLE and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def _ask(self, kind: Kind, request: Request | None, body: bytes = b"", status: int = 200) -> None:
        began = time.monotonic()
        found, content, writer = 0, b"", None
        try:
            reader, writer = await self._connection()
            path, body = (request.path, request.body) if request is not None else ("/classify", body)
            writer.write(head(path, len(body)) + body)
            found, content, keep = await read_answer(reader)
            if keep:
                self.idle.append((time.monotonic(), reader, writer))
            else:
                writer.close()
        except (OSError, EOFError):
            if writer is not None:
                writer.close()
        results = json.loads(content)["results"] if request is not None and found == 200 else None
        self._note(kind, found, began, {status, 429} if request is not None else {status}, request, results)

    def _note(
        self,
        kind: Kind,
        status: int,
        began: float,
        expected: set[int],
        request: Request | None = None,
        results: list[Any] | None = None,
    ) -> None:
        before = began < self.drain_began
        self.lost += status == 0 and before and 0 not in expected
        # A server that drains answers 503 and then refuses connections.
        fine = status in expected or (status in (0, 503) and time.monotonic() > self.drain_began and not before)
        fine |= status == 503 and time.monotonic() > self.drain_began  # its head arrived after SIGTERM
        self.answered.append(Answer(kind, status, began, time.monotonic() - began, fine, request, results))

    async def _leave(self, request: Request) -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return
        cut = self.random.choice([len(request.body), len(request.body), len(request.body) // 2])
        writer.write(head(request.path, len(request.body)) + request.body[:cut])
        await asyncio.sleep(self.random.uniform(0, 0.2))
        writer.transport.abort()

    async def _send_slowly(self) -> None:
        """Send a byte of the body now and then. The server must answer 408 before the end."""
        began, status = time.monotonic(), 0
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(head("/classify", 1000))
                answer = asyncio.ensure_future(read_answer(reader))
                while not answer.done() and time.monotonic() - began < 10 * self.slow:
                    writer.write(b" ")
                    await asyncio.wait({answer}, timeout=self.slow / 20)
                status, _, _ = await asyncio.wait_for(answer, 1)
            finally:
                writer.close()
        except (OSError, EOFError):
            pass
        self._note(Kind.SLOW, status, began, {408})

    async def _never_read(self) -> None:
        """Ask many times and read nothing. The server must close the connection."""
        began, status = time.monotonic(), -1
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            try:
                while time.monotonic() - began < 20 * self.slow:
                    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
                    await asyncio.wait_for(writer.drain(), 20 * self.slow)
                    await asyncio.sleep(self.slow / 30)
            finally:
                writer.transport.abort()
        except (OSError, EOFError):
            status = 0
        self._note(Kind.DEAF, status, began, {0})

    async def _ask_health(self) -> None:
        """What an orchestrator does: a new connection each time."""
        began, status = time.monotonic(), 0
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status, _, _ = await read_answer(reader)
            writer.close()
        except (OSError, EOFError):
            pass
        self._note(Kind.HEALTH, status, began, {200})


def head(path: str, length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """(status, body, whether the connection stays open)"""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(lines.split("content-length:")[1].split("\r\n")[0])
    return int(lines.split()[1]), await reader.readexactly(length), "connection: close" not in lines
