"""Encode texts as tokens with word and entity marks, on all cores.

Plain text uses the tokenizer's own threads, without offsets, because the vocabulary tells where words begin. So does
Chinese text with a byte-level vocabulary. Entities, and Chinese words in other vocabularies, need offsets, which are
slow to read in Python, so they use worker processes, each with its own tokenizer.

The workers are new Python interpreters that exchange pickles with this process through pipes. Forking could deadlock,
because numpy, torch and tokenizers have already started threads. The spawn method of `multiprocessing` would import
the caller's script again in every worker, and a script without a `__main__` guard would run again.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from queue import SimpleQueue
from subprocess import PIPE
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from debertakit.installation import install
from debertakit.text import boundaries

T = TypeVar("T")


class MarkedTokens(NamedTuple):
    """Tokens of several texts, concatenated, with word and entity marks."""

    tokens: NDArray
    words: NDArray[np.bool_]
    inside: NDArray[np.bool_] | None
    lengths: NDArray[np.int64]


class EncoderOptions(NamedTuple):
    """Everything that an encoder needs, in a form that can be sent to a worker process."""

    tokenizer_json: str
    specials: list[int]
    """Ids to drop, if the text gives them."""
    dtype: np.dtype
    language: str
    entities: boundaries.EntitySource | None


class CorpusEncoder:
    """Encodes texts as tokens with word and entity marks. This process, or each worker process, creates one."""

    def __init__(self, options: EncoderOptions):
        self.backend = Tokenizer.from_str(options.tokenizer_json)
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.encode_special_tokens = True  # "[MASK]" in a text is ordinary text
        self.dtype, self.chinese = options.dtype, options.language == "zh"
        self.detect = None if options.entities is None else boundaries.entity_detector(options.entities)
        self.tables = boundaries.word_tables(self.backend)
        self.pieces = boundaries.piece_bytes(self.backend)
        # some vocabularies still contain "[SEP]" as an ordinary piece: drop such tokens
        self.dropped = np.zeros(self.backend.get_vocab_size() + 1, bool)
        self.dropped[options.specials] = True

    def __call__(self, texts: list[str]) -> MarkedTokens:
        # Offsets cost a quarter of the time. Byte-level pieces give word starts without them.
        plain = self.detect is None and (not self.chinese or self.pieces is not None)
        encode = self.backend.encode_batch_fast if plain else self.backend.encode_batch  # fast: no offsets
        ids, words, inside = [], [], []
        for text, encoding in zip(texts, encode(texts, add_special_tokens=False), strict=True):
            tokens = np.array(encoding.ids, self.dtype)
            keep = ~self.dropped[tokens]
            offsets = None if plain else _offsets(encoding)
            starts = self.word_starts(text, tokens, offsets)
            ids.append(tokens[keep])
            words.append(starts[keep])
            if self.detect is not None and offsets is not None:
                inside.append(boundaries.inside_on_tokens(self.detect(text), offsets)[keep])
        lengths = np.array([len(tokens) for tokens in ids], np.int64)
        return MarkedTokens(
            np.concatenate(ids), np.concatenate(words), np.concatenate(inside) if inside else None, lengths
        )

    def word_starts(self, text: str, tokens: NDArray, offsets: NDArray | None) -> NDArray[np.bool_]:
        if not self.chinese:
            return boundaries.word_starts(tokens, self.tables)
        first = None
        if offsets is None and self.pieces is not None:
            first = boundaries.first_characters(text, tokens, self.pieces)
        if first is None:
            found = _offsets(self.backend.encode(text, add_special_tokens=False)) if offsets is None else offsets
            first = found[:, 0]
        return boundaries.starts_on_tokens(boundaries.chinese_words(text), first)


def _offsets(encoding: Encoding) -> NDArray[np.int64]:
    """[tokens, 2]. Twice as fast as np.array on a list of pairs."""
    return np.fromiter(chain.from_iterable(encoding.offsets), np.int64, 2 * len(encoding.ids)).reshape(-1, 2)


class Workers:
    """A pool of `count` encoder processes. Call it like a `CorpusEncoder`, from up to `count` threads at a time."""

    def __init__(self, count: int, options: EncoderOptions):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the import path of this process
            "PYTHONSAFEPATH": "1",  # never import a tokenizers.py from the current folder
            "TOKENIZERS_PARALLELISM": "false",  # the processes already use all cores
        }
        command = [sys.executable, "-c", "from debertakit.text.encoding import serve; serve()"]
        arguments = pickle.dumps(options)
        self.processes = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, env=environment) for _ in range(count)]
        self.idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self.processes:
            process.stdin.write(arguments)  # type: ignore[union-attr]
            self.idle.put(process)

    def __call__(self, texts: list[str]) -> MarkedTokens:
        process = self.idle.get()
        try:
            pickle.dump(texts, process.stdin)  # type: ignore[arg-type]
            process.stdin.flush()  # type: ignore[union-attr]
            answer = pickle.load(process.stdout)  # type: ignore[arg-type]
        except (BrokenPipeError, EOFError):
            raise RuntimeError(f"a tokenisation worker died (exit code {process.wait()})") from None
        finally:
            self.idle.put(process)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        for process in self.processes:
            process.kill()  # a worker has no state to save
            process.communicate()  # wait, and close the pipes


class RayWorkers:
    """Encoder actors on a Ray cluster (RAY_ADDRESS), or on this machine. Called like ``Workers``."""

    def __init__(self, count: int | None, options: EncoderOptions):
        """``count``: default one per CPU of the cluster."""
        try:
            import ray
        except ImportError as error:
            raise ValueError(f"--engine ray needs Ray: {install('ray')}") from error
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(include_dashboard=False, logging_level=logging.WARNING)
        self.ray, self.count = ray, count or max(1, int(ray.cluster_resources()["CPU"]))
        encoder = ray.remote(num_cpus=1 if count is None else 0, max_restarts=-1, max_task_retries=-1)(CorpusEncoder)
        self.idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self.count):
            self.idle.put(encoder.remote(options))

    def __call__(self, texts: list[str]) -> MarkedTokens:
        actor = self.idle.get()
        try:
            return self.ray.get(actor.__call__.remote(texts))
        finally:
            self.idle.put(actor)

    def close(self) -> None:
        while not self.idle.empty():
            self.ray.kill(self.idle.get())


def serve() -> None:
    """Main loop of a worker: read EncoderOptions, then lists of texts, from stdin; write results to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent reports it and closes the workers
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # send library prints to stderr, to keep them out of the pickle stream
    encoder: CorpusEncoder | None = None
    with suppress(EOFError, BrokenPipeError):  # the parent has exited
        while True:
            request = pickle.load(requests)
            try:
                if encoder is None:
                    encoder = CorpusEncoder(request)
                    continue
                answer: MarkedTokens | Exception = encoder(request)
            except Exception as error:
                answer = error
            pickle.dump(answer, answers)
            answers.flush()


def encode_all(
    batches: Iterable[T],
    texts: Callable[[T], list[str]],
    workers: int | None,
    options: EncoderOptions,
    engine: Literal["local", "ray"] = "local",
) -> Iterator[tuple[T, MarkedTokens]]:
    """Yield each batch with its tokens, in order, while the next batches are being encoded."""
    cores = workers or os.cpu_count() or 1
    encoder = CorpusEncoder(options)
    slow = options.entities is not None or (options.language == "zh" and encoder.pieces is None)
    encode: CorpusEncoder | Workers | RayWorkers
    if engine == "ray":
        encode = RayWorkers(workers, options)
        cores, slow = encode.count, True
        pool = ThreadPoolExecutor(cores)
    elif slow and cores > 1 and not callable(options.entities):
        pool, encode = ThreadPoolExecutor(cores), Workers(cores, options)
    else:  # two threads: one converts its result to arrays while the tokenizer encodes for the other
        pool, encode = ThreadPoolExecutor(1 if slow else 2), encoder
    waiting: deque[tuple[T, Future[MarkedTokens]]] = deque()
    try:
        for batch in batches:
            waiting.append((batch, pool.submit(encode, texts(batch))))
            if len(waiting) > (2 * cores if slow else 3):
                ready, future = waiting.popleft()
                yield ready, future.result()
        while waiting:
            ready, future = waiting.popleft()
            yield ready, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        if not isinstance(encode, CorpusEncoder):
            encode.close()
