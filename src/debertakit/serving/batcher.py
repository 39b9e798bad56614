"""Many callers, one model: what arrives within a few milliseconds goes through the model together.

    submit    encodes the caller's inputs and waits in the line
    _work     takes the first in line, adds those behind it up to a budget of tokens or a moment of waiting, and runs
              them in a thread of its own; each caller gets what its own rows gave

The line is bounded in tokens: past that ``Busy`` is raised at once, with a guess at when to come back. A caller that
has gone, or waited too long, is left out before the model runs.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from debertakit.finetuning.features import Row
from debertakit.inference.predictor import Input, Predictor
from debertakit.inference.results import Result


class Busy(Exception):
    """The line is full."""

    def __init__(self, retry_after: int):
        super().__init__(f"too much is waiting; try again in {retry_after} s")
        self.retry_after = retry_after


@dataclass
class Job:
    rows: list[Row]
    tokens: int
    done: "asyncio.Future[list[np.ndarray]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    def __init__(
        self,
        predictor: Predictor,
        *,
        wait: float = 0.003,
        line: int = 1 << 16,
        observe: Callable[[int, int, float], None] = lambda jobs, tokens, seconds: None,
    ):
        """``wait``: seconds that a first caller waits for others. ``line``: tokens that may wait."""
        self.predictor, self.wait, self.limit, self.observe = predictor, wait, line, observe
        self.line: deque[Job] = deque()
        self.waiting = 0
        self.rate = 2000.0  # tokens a second, as measured on the way
        self.arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "model")
        self.encoders = ThreadPoolExecutor(1, "tokenizer")
        self.worker: asyncio.Task[None] | None = None

    async def submit(self, items: Sequence[Input]) -> list[Result]:
        """Results for inputs that ``predictor.check`` has passed."""
        guess = sum(map(guessed_tokens, items))
        if self.waiting and self.waiting + guess > self.limit:
            raise Busy(max(1, math.ceil(self.waiting / self.rate)))
        self.waiting += guess  # of those that are being encoded; a full line is refused before that work
        try:
            loop = asyncio.get_running_loop()
            rows = await loop.run_in_executor(self.encoders, self.predictor.encode, items)
        finally:
            self.waiting -= guess
        job = Job(rows, sum(row.tokens for row in rows))
        self.line.append(job)
        self.waiting += job.tokens
        self.arrived.set()
        return self.predictor.decide(items, rows, await job.done)

    def start(self) -> None:
        self.worker = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """After the last job."""
        while self.line:
            await asyncio.sleep(0.01)
        if self.worker is not None:
            self.worker.cancel()
            await asyncio.gather(self.worker, return_exceptions=True)
        self.thread.shutdown()
        self.encoders.shutdown()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self.line:
                self.arrived.clear()
                await self.arrived.wait()
            if self.waiting < self.predictor.budget and self.wait:
                await asyncio.sleep(self.wait)
            jobs = self._take()
            if not jobs:
                continue
            rows = [row for job in jobs for row in job.rows]
            tokens = sum(job.tokens for job in jobs)
            began = time.perf_counter()
            try:
                outputs = await loop.run_in_executor(self.thread, self.predictor.run, rows)
            except Exception as error:  # whatever it was, it was these callers' and not the server's end
                for job in jobs:
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            seconds = time.perf_counter() - began
            self.rate = 0.9 * self.rate + 0.1 * tokens / max(seconds, 1e-6)
            self.observe(len(jobs), tokens, seconds)
            start = 0
            for job in jobs:
                if not job.done.done():
                    job.done.set_result(outputs[start : start + len(job.rows)])
                start += len(job.rows)

    def _take(self) -> list[Job]:
        """From the front of the line, up to the budget; at least one."""
        jobs: list[Job] = []
        room = self.predictor.budget
        while self.line and (not jobs or self.line[0].tokens <= room):
            job = self.line.popleft()
            self.waiting -= job.tokens
            if not job.done.done():  # a caller that gave up has cancelled it
                jobs.append(job)
                room -= job.tokens
        return jobs


def guessed_tokens(item: Input) -> int:
    """Before they are counted: four bytes of text to a token, in English as in Chinese, more or less."""
    values = [value if isinstance(value, (list, tuple)) else [value] for value in item.values()]
    return 3 + sum(len(str(text).encode("utf-8", "replace")) for texts in values for text in texts) // 4


def checked(predictor: Predictor, items: Sequence[Any]) -> list[Input]:
    """All of them, or an error that says which is wrong."""
    return [_checked(predictor, number, item) for number, item in enumerate(items)]


def _checked(predictor: Predictor, number: int, item: Any) -> Input:
    try:
        return predictor.check(item)
    except ValueError as error:
        raise ValueError(f"inputs[{number}]: {error}") from None
