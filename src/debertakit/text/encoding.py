"""Texts to tokens with word and entity marks, on all cores.

Plain text goes through the tokenizer's own threads, without offsets: the vocabulary says where words begin. Words of
Chinese and entities are looked for in Python and need offsets: that runs in worker processes, each with a tokenizer of
its own.
"""

import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from debertakit.text import boundaries

T = TypeVar("T")


class Encoded(NamedTuple):
    tokens: NDArray
    words: NDArray[np.bool_]
    inside: NDArray[np.bool_] | None
    lengths: NDArray[np.int64]


class Encoder:
    """Texts -> tokens with word starts. Made once a process: in this one, or in each worker."""

    def __init__(self, tokenizer_json: str, specials: list[int], dtype: Any, language: str, entities: Any):
        from tokenizers import Tokenizer

        self.backend = Tokenizer.from_str(tokenizer_json)
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.encode_special_tokens = True  # "[MASK]" in a text is text
        self.dtype, self.chinese = dtype, language == "zh"
        self.detect = None if entities is None else boundaries.entity_detector(entities)
        self.tables = boundaries.word_tables(self.backend)
        # some vocabularies hold "[SEP]" as a piece all the same: such tokens are left out
        self.dropped = np.zeros(self.backend.get_vocab_size() + 1, bool)
        self.dropped[specials] = True

    def __call__(self, texts: list[str]) -> Encoded:
        plain = not self.chinese and self.detect is None
        encode = self.backend.encode_batch_fast if plain else self.backend.encode_batch  # fast: no offsets
        ids, words, inside = [], [], []
        for text, encoding in zip(texts, encode(texts, add_special_tokens=False), strict=True):
            tokens = np.array(encoding.ids, self.dtype)
            keep = ~self.dropped[tokens]
            offsets = None
            if not plain:  # twice as fast as np.array on a list of pairs
                offsets = np.fromiter(chain.from_iterable(encoding.offsets), np.int64, 2 * len(tokens)).reshape(-1, 2)
            if self.chinese and offsets is not None:
                starts = boundaries.starts_on_tokens(boundaries.chinese_words(text), offsets)
            else:
                starts = boundaries.word_starts(tokens, self.tables)
            ids.append(tokens[keep])
            words.append(starts[keep])
            if self.detect is not None and offsets is not None:
                inside.append(boundaries.inside_on_tokens(self.detect(text), offsets)[keep])
        lengths = np.array([len(tokens) for tokens in ids], np.int64)
        return Encoded(np.concatenate(ids), np.concatenate(words), np.concatenate(inside) if inside else None, lengths)


_worker_encoder: Encoder  # one in each worker process


def _start_worker(*args: Any) -> None:
    global _worker_encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _worker_encoder = Encoder(*args)


def _encode_in_worker(texts: list[str]) -> Encoded:
    return _worker_encoder(texts)


def encode_all(
    batches: Iterable[T], texts: Callable[[T], list[str]], workers: int | None, encoder_args: tuple
) -> Iterator[tuple[T, Encoded]]:
    """Each batch with its tokens, in order, a few batches ahead of the one being yielded."""
    *_, language, entities = encoder_args
    cores = workers or os.cpu_count() or 1
    slow = language == "zh" or entities is not None
    pool: Executor
    encode: Callable[[list[str]], Encoded]
    if slow and cores > 1 and not callable(entities):
        # fork shares rjieba's dictionary; the children touch neither torch nor the parent's tokenizer threads
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        pool, encode = ProcessPoolExecutor(cores, context, _start_worker, encoder_args), _encode_in_worker
    else:  # two threads: while one turns its result into arrays, the tokenizer's threads work for the other
        pool, encode = ThreadPoolExecutor(1 if slow else 2), Encoder(*encoder_args)
    waiting: deque = deque()
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
