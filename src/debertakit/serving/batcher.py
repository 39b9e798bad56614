"""Dynamic batching: requests that arrive within a few milliseconds run through the model together.

    submit    encodes a request, puts it in the queue and waits for its outputs
    _work     waits briefly for more requests, takes requests from the front of the queue up to a token budget, runs
              them in the model thread, and gives each caller the outputs of its own rows

The queue is bounded in tokens. When it is full, ``submit`` raises ``Busy`` at once, with an estimated retry time. A
request larger than the whole queue raises ``TooLarge``. A request is removed from the queue as soon as its
caller disconnects or times out.

A tokenizer keeps the settings of its last call, so all calls to it run in one thread, ``encoders``.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from debertakit.inference.predictor import Input, Predictor, Result
from debertakit.serving.limits import Limits
from debertakit.tasks.features import TokenRow

MASK_TOKENS = 8
"""Cost of a mask in the batch budget, in tokens: the logits of a mask are as wide as the vocabulary."""


class Busy(Exception):
    """The queue is full."""

    def __init__(self, retry_after: int):
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class TooLarge(Exception):
    """The request exceeds a limit; retrying does not help."""


@dataclass(eq=False)
class QueuedRequest:
    rows: list[TokenRow]
    tokens: int
    masks: int
    done: "asyncio.Future[list[np.ndarray]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def weight(self) -> int:
        """Cost in the batch budget, in tokens."""
        return self.tokens + MASK_TOKENS * self.masks


class Batcher:
    def __init__(
        self,
        predictor: Predictor[Result],
        limits: Limits | None = None,
        observe: Callable[[int, int, float], None] = lambda requests, tokens, seconds: None,
    ):
        self.predictor, self.limits, self.observe = predictor, limits or Limits(), observe
        self.queue: deque[QueuedRequest] = deque()
        self.waiting = 0
        self.rate = 2000.0  # tokens per second, a running average
        self.arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "model")
        self.encoders = ThreadPoolExecutor(1, "tokenizer")
        self.worker: asyncio.Task[None] | None = None

    async def submit(self, items: Sequence[Input]) -> list[Result]:
        """Queue inputs that passed ``predictor.check`` and return their results."""
        estimate = sum(map(estimated_tokens, items))
        if estimate > 2 * self.limits.queue:  # the estimate may be off by a factor of 2: near the limit, count first
            raise TooLarge(f"about {estimate:,} tokens; a request may have {self.limits.queue:,}")
        self._check_room(estimate)
        self.waiting += estimate  # includes requests being encoded, so that a full queue refuses before encoding
        loop = asyncio.get_running_loop()
        try:
            rows, masks = await loop.run_in_executor(self.encoders, self._encode, items)
        finally:
            self.waiting -= estimate
        request = QueuedRequest(rows, sum(row.tokens for row in rows), masks)
        if request.tokens > self.limits.queue:
            raise TooLarge(f"{request.tokens:,} tokens; a request may have {self.limits.queue:,}")
        self._check_room(request.tokens)
        self.queue.append(request)
        self.waiting += request.tokens
        self.arrived.set()
        try:
            outputs = await request.done
        except asyncio.CancelledError:  # the caller disconnected or timed out
            if request in self.queue:
                self.queue.remove(request)
                self.waiting -= request.tokens
            raise
        return await loop.run_in_executor(self.encoders, self.predictor.decide, items, rows, outputs)

    def _check_room(self, tokens: int) -> None:
        if self.waiting and self.waiting + tokens > self.limits.queue:
            raise Busy(max(1, math.ceil(self.waiting / self.rate)))

    def _encode(self, items: Sequence[Input]) -> tuple[list[TokenRow], int]:
        """Return the rows and the number of masks in them."""
        rows = self.predictor.encode(items)
        masks = sum(map(self.predictor.masks, rows))
        longest, most = max(row.tokens for row in rows), max(self.predictor.budget, self.predictor.max_length)
        if masks and longest > most:  # only for masks: other tasks read long texts in windows
            raise TooLarge(f"a text of {longest:,} tokens; with masks it may have {most:,}")
        if masks > self.limits.masks:
            raise TooLarge(f"{masks:,} masks; a request may have {self.limits.masks}")
        return rows, masks

    def start(self) -> None:
        self.worker = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Finish all queued requests, then stop."""
        while self.queue:
            await asyncio.sleep(0.01)
        if self.worker is not None:
            self.worker.cancel()
            await asyncio.gather(self.worker, return_exceptions=True)
        self.thread.shutdown()
        self.encoders.shutdown()

    async def _work(self) -> None:
        while True:
            while not self.queue:
                self.arrived.clear()
                await self.arrived.wait()
            if sum(request.weight for request in self.queue) < self.predictor.budget and self.limits.wait:
                await asyncio.sleep(self.limits.wait)
            await self._run(self._take())

    async def _run(self, requests: list[QueuedRequest]) -> None:
        """Run the requests as one batch. If it fails, run each request alone, so that only the faulty one fails."""
        requests = [request for request in requests if not request.done.done()]  # skip cancelled requests
        if not requests:
            return
        rows = [row for request in requests for row in request.rows]
        tokens = sum(request.tokens for request in requests)
        began = time.perf_counter()
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self.thread, self.predictor.run, rows)
        except Exception as error:  # any error belongs to these callers and must not stop the worker
            if len(requests) > 1:
                for request in requests:
                    await self._run([request])
            elif not requests[0].done.done():
                requests[0].done.set_exception(error)
            return
        seconds = time.perf_counter() - began
        self.rate = 0.9 * self.rate + 0.1 * tokens / max(seconds, 1e-6)
        self.observe(len(requests), tokens, seconds)
        start = 0
        for request in requests:
            if not request.done.done():
                request.done.set_result(outputs[start : start + len(request.rows)])
            start += len(request.rows)

    def _take(self) -> list[QueuedRequest]:
        """Take requests from the front of the queue up to the budget, at least one if the queue is not empty."""
        requests: list[QueuedRequest] = []
        room = self.predictor.budget
        while self.queue and (not requests or self.queue[0].weight <= room):
            request = self.queue.popleft()
            self.waiting -= request.tokens
            requests.append(request)
            room -= request.weight
        return requests


def estimated_tokens(item: Input) -> int:
    """Estimate the number of tokens before encoding: about four bytes per token, in English and in Chinese.

    A text with labels or options is read once per label or option.
    """
    once = sum(_bytes(value) for value in item.values() if isinstance(value, str))
    lists = [value for value in item.values() if isinstance(value, (list, tuple))]
    with_each = [_bytes(str(text)) for texts in lists for text in texts] or [0]
    return sum(3 + (once + size) // 4 for size in with_each)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def check_inputs(predictor: Predictor[Result], items: Sequence[Input]) -> list[Input]:
    """Check all inputs. An error names the index of the wrong input."""
    return [_check_input(predictor, number, item) for number, item in enumerate(items)]


def _check_input(predictor: Predictor[Result], number: int, item: Input) -> Input:
    try:
        return predictor.check(item)
    except ValueError as error:
        raise ValueError(f"inputs[{number}]: {error}") from None
