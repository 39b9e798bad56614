"""Dynamic batching: requests that arrive within a few milliseconds run through the model together.

    submit    encodes a request part by part, puts its rows in the queue and waits for their outputs
    _work     waits briefly for more requests, takes rows from the queue up to a token budget, runs them in the model
              thread, and gives each request the outputs of its own rows
    _watch    starts _work again if it ends with an error

Requests take turns: a batch takes a few rows from each request in the queue, so a small request waits for about two
batches, however large the requests before it are. The tokenizer thread takes turns too, by parts of requests.

Tokens in work are bounded: those of requests that are being encoded, that wait, or that run. When the bound is reached,
``submit`` raises ``Busy`` at once, with an estimated retry time. A request that alone exceeds the bound raises
``TooLarge``. When a caller disconnects or times out, the rows that the model has not taken yet are dropped.

A tokenizer keeps the settings of its last call, so all calls to it run in one thread, ``encoders``.
"""

import asyncio
import json
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from debertakit.inference.predictor import Input, InputField, Predictor, Result
from debertakit.serving.limits import Limits
from debertakit.tasks.features import TokenRow

MASK_TOKENS = 8
"""Cost of a mask in the batch budget, in tokens: the logits of a mask are as wide as the vocabulary."""
TURNS = 8
"""A turn of a request is this fraction of a batch, and at least one row."""
PART = 4096
"""Estimated tokens that a request encodes in one turn of the tokenizer thread; at least one input."""
NICE = 10
"""Added to the niceness of the threads that compute. 10 is a tenth of the CPU share of other threads."""
RESTART = 1.0
"""Seconds until a worker that ended with an error starts again."""

logger = logging.getLogger("debertakit.serving")


class Busy(Exception):
    """The bound on tokens in work is reached."""

    def __init__(self, retry_after: int):
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class TooLarge(Exception):
    """The request exceeds a limit; retrying does not help."""


class WorkerEnded(Exception):
    """The worker ended with an error while it ran this request."""

    def __init__(self) -> None:
        super().__init__("the model's worker ended with an error and starts again; try again in 1 s")


@dataclass(eq=False)
class QueuedRequest:
    rows: list[TokenRow]
    weights: list[int]
    """Cost of each row in the batch budget, in tokens."""
    done: "asyncio.Future[list[np.ndarray]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: int = 0
    """The model has taken the rows before this index."""
    outputs: list[np.ndarray] = field(default_factory=list)

    @property
    def tokens_left(self) -> int:
        """Tokens of the rows that the model has not taken."""
        return sum(row.tokens for row in self.rows[self.taken :])


Turn = tuple[QueuedRequest, TokenRow]
"""A row in a batch, and its request."""


class Batcher:
    def __init__(
        self,
        predictor: Predictor[Result],
        limits: Limits | None = None,
        observe: Callable[[int, int, float], None] = lambda requests, tokens, seconds: None,
    ):
        self.predictor, self.limits, self.observe = predictor, limits or Limits(), observe
        self.queue: deque[QueuedRequest] = deque()
        self.in_work = 0
        """Tokens of requests that are being encoded (estimated), that wait, and that run."""
        self.rate = 2000.0  # tokens per second, a running average
        self.arrived = asyncio.Event()
        self.alive, self.restarts = False, 0
        self.busy_since: float | None = None
        self.watcher: asyncio.Task[None] | None = None
        self.worker: asyncio.Task[None] | None = None
        self._start_threads()

    def _start_threads(self) -> None:
        self.thread = ThreadPoolExecutor(1, "model", initializer=_yield_to_event_loop)
        self.encoders = ThreadPoolExecutor(1, "tokenizer", initializer=_yield_to_event_loop)

    @property
    def ready(self) -> bool:
        """False while the worker is not running, and while a batch takes longer than any request may take."""
        stuck = self.busy_since is not None and time.monotonic() - self.busy_since > self.limits.timeout
        return self.alive and not stuck

    # --------------------------------------------------------------------------------------------------- one request

    async def submit(self, items: Sequence[Input]) -> list[Result]:
        """Queue inputs that passed ``predictor.check`` and return their results."""
        estimates = [estimated_tokens(item, self.predictor.fields) for item in items]
        estimate = sum(estimates)
        if estimate > 2 * self.limits.queue:  # the estimate may be off by a factor of 2: near the limit, count first
            raise TooLarge(f"about {estimate:,} tokens; a request may have {self.limits.queue:,}")
        self._check_room(estimate)
        self.in_work += estimate  # includes requests being encoded, so that a full queue refuses before encoding
        try:
            parts = await self._encode(items, estimates)
        finally:
            self.in_work -= estimate
        outputs = iter(await self._outputs([row for _, rows in parts for row in rows]))
        results: list[Result] = []
        loop = asyncio.get_running_loop()
        for part, rows in parts:
            own = [next(outputs) for _ in rows]
            results += await loop.run_in_executor(self.encoders, self.predictor.decide, part, rows, own)
        return results

    def _check_room(self, tokens: int) -> None:
        if self.in_work and self.in_work + tokens > self.limits.queue:
            raise Busy(max(1, math.ceil(self.in_work / self.rate)))

    async def _encode(
        self, items: Sequence[Input], estimates: Sequence[int]
    ) -> list[tuple[Sequence[Input], list[TokenRow]]]:
        """Encode part by part, so that other requests can use the tokenizer thread in between."""
        loop = asyncio.get_running_loop()
        parts: list[tuple[Sequence[Input], list[TokenRow]]] = []
        masks = tokens = 0
        most = max(self.predictor.budget, self.predictor.max_length)
        for start, end in part_bounds(estimates):
            part = items[start:end]
            rows = await loop.run_in_executor(self.encoders, self.predictor.encode, part)
            parts.append((part, rows))
            with_masks = [row for row in rows if self.predictor.masks(row)]
            masks += sum(map(self.predictor.masks, with_masks))
            tokens += sum(row.tokens for row in rows)
            longest = max((row.tokens for row in with_masks), default=0)
            if longest > most:  # only for masks: other tasks read long texts in windows
                raise TooLarge(f"a text of {longest:,} tokens; with masks it may have {most:,}")
            if masks > self.limits.masks:
                raise TooLarge(f"{masks:,} masks; a request may have {self.limits.masks}")
            if tokens > self.limits.queue:
                raise TooLarge(f"{tokens:,} tokens; a request may have {self.limits.queue:,}")
        return parts

    async def _outputs(self, rows: list[TokenRow]) -> list[np.ndarray]:
        """Queue the rows and return the model's output for each. A row with many options is run in pieces."""
        pieces = [_pieces(row, self.predictor.budget // TURNS) for row in rows]
        flat = [piece for row in pieces for piece in row]
        request = QueuedRequest(flat, [row.tokens + MASK_TOKENS * self.predictor.masks(row) for row in flat])
        self._check_room(request.tokens_left)
        self.in_work += request.tokens_left
        self.queue.append(request)
        self.arrived.set()
        try:
            outputs = iter(await request.done)
        except asyncio.CancelledError:  # the caller disconnected or timed out
            self._drop(request)
            raise
        return [next(outputs) if len(row) == 1 else np.concatenate([next(outputs) for _ in row]) for row in pieces]

    def _drop(self, request: QueuedRequest) -> None:
        """Forget the rows that the model has not taken. Those that it runs stay in work until their batch ends."""
        if request in self.queue:
            self.queue.remove(request)
        self.in_work -= request.tokens_left
        request.taken = len(request.rows)

    def _fail(self, request: QueuedRequest, error: BaseException) -> None:
        self._drop(request)
        if not request.done.done():
            request.done.set_exception(error)

    # -------------------------------------------------------------------------------------------------------- worker

    def start(self) -> None:
        self.watcher = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Finish all requests in work, for as long as a request may take, then stop."""
        until = time.monotonic() + self.limits.timeout
        while self.in_work and time.monotonic() < until:
            await asyncio.sleep(0.01)
        self.alive = False
        if self.watcher is not None:
            self.watcher.cancel()
            await asyncio.gather(self.watcher, return_exceptions=True)
        for executor in (self.thread, self.encoders):
            executor.shutdown(wait=False, cancel_futures=True)

    async def _watch(self) -> None:
        """Run the worker. If it ends, start it again with new threads after ``RESTART`` seconds."""
        while True:
            self.worker = asyncio.get_running_loop().create_task(self._work())
            self.alive = True
            try:
                await asyncio.wait({self.worker})
            finally:
                self.alive = False
                self.worker.cancel()
                ended = await asyncio.gather(self.worker, return_exceptions=True)
            self.restarts += 1
            logger.error(json.dumps({"event": "worker ended", "error": type(ended[0]).__name__}))  # no user text
            for executor in (self.thread, self.encoders):
                executor.shutdown(wait=False)
            self._start_threads()
            await asyncio.sleep(RESTART)

    async def _work(self) -> None:
        while True:
            while not self.queue:
                self.arrived.clear()
                await self.arrived.wait()
            if self.limits.wait and sum(sum(r.weights[r.taken :]) for r in self.queue) < self.predictor.budget:
                await asyncio.sleep(self.limits.wait)
            batch = self._take()
            self.busy_since = time.monotonic()
            try:
                await self._run(batch)
            except BaseException:
                self.alive = False  # before the callers know
                for request, _ in batch:
                    self._fail(request, WorkerEnded())
                raise
            finally:
                self.busy_since = None
                self.in_work -= sum(row.tokens for _, row in batch)

    def _take(self) -> list[Turn]:
        """Take rows from each request in turn, up to the budget, and at least one row if there is one."""
        batch: list[Turn] = []
        room = self.predictor.budget
        while self.queue and (not batch or self.queue[0].weights[self.queue[0].taken] <= room):
            request = self.queue.popleft()
            turn = room - self.predictor.budget // TURNS
            while request.taken < len(request.rows):
                weight = request.weights[request.taken]
                if batch and (weight > room or room <= turn):
                    break
                batch.append((request, request.rows[request.taken]))
                request.taken += 1
                room -= weight
            if request.taken < len(request.rows):
                self.queue.append(request)
        return batch

    async def _run(self, batch: list[Turn]) -> None:
        """Run rows as one batch. If it fails, run each request alone, so that only the faulty one fails."""
        batch = [(request, row) for request, row in batch if not request.done.done()]  # skip cancelled requests
        if not batch:
            return
        requests = list(dict.fromkeys(request for request, _ in batch))
        rows = [row for _, row in batch]
        began = time.perf_counter()
        running = asyncio.get_running_loop().run_in_executor(self.thread, self.predictor.run, rows)
        try:
            outputs = await running
        except Exception as error:  # any error of the model belongs to these callers and must not stop the worker
            if len(requests) == 1:
                self._fail(requests[0], error)
                return
            for request in requests:
                await self._run([turn for turn in batch if turn[0] is request])
            return
        seconds = time.perf_counter() - began
        tokens = sum(row.tokens for row in rows)
        self.rate = 0.9 * self.rate + 0.1 * tokens / max(seconds, 1e-6)
        self.observe(len(requests), tokens, seconds)
        for (request, _), output in zip(batch, outputs, strict=True):
            request.outputs.append(output)
            if len(request.outputs) == len(request.rows) and not request.done.done():
                request.done.set_result(request.outputs)


def _yield_to_event_loop() -> None:
    """Lower the priority of this thread, and of the threads that torch starts from it.

    With several models there are more computing threads than cores. At equal priority, the thread that accepts and
    refuses requests would wait seconds for a core. Only Linux has priorities of threads.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, os.nice(0) + NICE))


def part_bounds(estimates: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split inputs into consecutive parts of about ``PART`` tokens: their (start, end)."""
    start = tokens = 0
    for index, estimate in enumerate(estimates):
        if index > start and tokens + estimate > PART:
            yield start, index
            start, tokens = index, 0
        tokens += estimate
    yield start, len(estimates)


def _pieces(row: TokenRow, tokens: int) -> list[TokenRow]:
    """Split a row with many options into rows with a few options, of about ``tokens`` tokens each."""
    step = max(1, tokens * len(row.ids) // max(1, row.tokens))
    if len(row.ids) <= step:
        return [row]
    segments = row.segments
    return [
        replace(row, ids=row.ids[at : at + step], segments=segments[at : at + step] if segments else None)
        for at in range(0, len(row.ids), step)
    ]


def estimated_tokens(item: Input, fields: Sequence[InputField]) -> int:
    """Estimate the number of tokens before encoding: four bytes per token, in English and in Chinese, and at least one
    token per word. A text with labels or options is read once per label or option.
    """
    once, with_each = 0, [0]
    for each in fields:
        value = item.get(each.name)
        if isinstance(value, str):
            once += _tokens(value)
        elif value is not None and each.holds == "choices":
            with_each = list(map(_tokens, value))
        elif value is not None and item.get(each.instead_of or "") is None:  # words; ``check`` may have joined them
            once += sum(map(_tokens, value))
    return sum(3 + once + size for size in with_each)


def _tokens(text: str) -> int:
    return max(len(text.encode("utf-8", "replace")) // 4, text.count(" "))


def check_inputs(predictor: Predictor[Result], items: Sequence[Input]) -> list[Input]:
    """Check all inputs. An error names the index of the wrong input."""
    return [_check_input(predictor, number, item) for number, item in enumerate(items)]


def _check_input(predictor: Predictor[Result], number: int, item: Input) -> Input:
    try:
        return predictor.check(item)
    except ValueError as error:
        raise ValueError(f"inputs[{number}]: {error}") from None
