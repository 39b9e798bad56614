"""Pack documents into batches without padding. Each batch is a pure function of (seed, step, rank).

    packing = Packing(corpus.train, max_length=512, step_tokens=65536, seed=0)
    batch = packing.batch(step, rank, world_size)

Documents are cut into chunks of at most max_length - 2 tokens, with lengths as equal as possible (520 tokens become
260 + 260, not 510 + 10). Each chunk becomes [CLS] chunk [SEP], a separate sequence for attention. Every epoch
concatenates all chunks in a new random order, and the epochs form one endless stream of tokens. The token budget is
exact on this stream:

    step s of G tokens has the chunks that begin in [s G, (s + 1) G); part p of P of the step has those that begin in
    [s G + p G / P, s G + (p + 1) G / P)

So a batch differs from its budget by at most one chunk, no chunk is cut or lost, and the stream never drifts. The
number of parts is ranks times accumulation steps; the chunks of a step do not depend on it. The step is the only state.

mode="blocks" concatenates the documents and cuts every max_length - 2 tokens, ignoring document boundaries.

``weights`` mixes the sources of a corpus: each source is a separate stream, and a step of G tokens takes w G tokens
from a source of weight w. A small source with a large weight is read more often than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from debertakit.text.shards import Shards


@dataclass(frozen=True)
class PackedBatch:
    input_ids: NDArray[np.int64]
    """[T]: concatenated sequences, each [CLS] ... [SEP]."""
    lengths: NDArray[np.int32]
    """[n]: length of each sequence, for ``Layout.from_lengths``."""
    word_starts: NDArray[np.bool_]
    """[T]: whether the token begins a word; [CLS] and [SEP] count as words."""
    inside_entity: NDArray[np.bool_] | None
    """[T]: whether the token continues the entity of the previous token; None: the corpus has no entity marks."""
    documents: NDArray[np.int64]
    """[n]: document of each sequence (mode="blocks": the document in which it begins)."""
    chunks: NDArray[np.int64]
    """[n]: chunk number in the corpus, the same in every epoch; it seeds static masking."""
    epochs: NDArray[np.int64]
    """[n]: epoch of each sequence; a batch may contain the end of one epoch and the start of the next."""


@dataclass
class Packing:
    shards: Shards
    max_length: int
    step_tokens: int
    """Tokens per step, over all ranks and accumulation steps."""
    seed: int = 0
    mode: Literal["documents", "blocks"] = "documents"
    shuffle: bool = True
    """False (for validation): corpus order."""
    weights: Sequence[float] | None = None
    """Share of each source of the corpus in the tokens of a step. None: the sources are one text."""

    def __post_init__(self) -> None:
        if self.max_length < 3:
            raise ValueError(f"max_length={self.max_length} must be at least 3, for [CLS], one token and [SEP]")
        if self.mode not in ("documents", "blocks"):
            raise ValueError(f"mode must be documents or blocks, not {self.mode!r}")
        if not self.shards.tokens:
            raise ValueError("no tokens to pack; a corpus prepared with validation=0 has no validation part")
        if self.weights is not None and len(self.weights) != self.shards.source_count:
            raise ValueError(f"{len(self.weights)} weights for a corpus of {self.shards.source_count} sources")
        vocabulary = self.shards.vocabulary
        if vocabulary["cls"] is None or vocabulary["sep"] is None:
            raise ValueError("packing needs a tokenizer with a [CLS] and a [SEP] token")
        self._cls, self._sep = vocabulary["cls"], vocabulary["sep"]
        body = self.max_length - 2
        # bounds [chunks + 1]: chunk c is tokens bounds[c] to bounds[c + 1] of the concatenated documents
        if self.mode == "blocks":
            self._bounds = np.append(np.arange(0, self.shards.tokens, body), self.shards.tokens)
        else:
            self._bounds = _even_bounds(self.shards.ends, body)
        self.epoch_tokens = int(self._bounds[-1]) + 2 * self.chunks
        self._streams = self._make_streams()

    @property
    def chunks(self) -> int:
        return len(self._bounds) - 1

    def _make_streams(self) -> "list[tuple[float, _Stream]]":
        """One stream of all chunks, or one for each source that has chunks, with its share of the tokens."""
        lengths = np.diff(self._bounds) + 2
        if self.weights is None:
            return [(1.0, _Stream(np.arange(self.chunks), lengths, self.seed, self.shuffle))]
        source = self.shards.sources[self._documents(np.arange(self.chunks))]
        chunks = [np.flatnonzero(source == number) for number in range(self.shards.source_count)]
        total = sum(weight for weight, own in zip(self.weights, chunks, strict=True) if len(own))
        return [
            (weight / total, _Stream(own, lengths[own], self.seed, self.shuffle))
            for weight, own in zip(self.weights, chunks, strict=True)
            if len(own)
        ]

    def batch(self, step: int, part: int = 0, parts: int = 1) -> PackedBatch:
        """Return part ``part`` of ``parts`` of a step. With accumulation, part = rank * accumulation + i."""
        if step < 0 or not 0 <= part < parts:
            raise ValueError(f"no step {step}, part {part} of {parts}")
        if self.step_tokens // parts < self.max_length:
            raise ValueError(
                f"step_tokens={self.step_tokens} in {parts} parts is less than max_length={self.max_length} each"
            )
        chosen = []
        for budget, (_, stream) in zip(self._budgets(), self._streams, strict=True):
            begin = step * budget
            chosen.append(stream.between(begin + part * budget // parts, begin + (part + 1) * budget // parts))
        chunks, epochs = (np.concatenate(each) for each in zip(*chosen, strict=True))
        return self._pack(chunks, epochs)

    def _budgets(self) -> list[int]:
        """Tokens per step of each stream. Their sum is step_tokens."""
        cuts = np.round(np.cumsum([0.0, *(share for share, _ in self._streams)]) * self.step_tokens)
        return [int(budget) for budget in np.diff(cuts)]

    def once(self, tokens: int) -> "list[PackedBatch]":
        """Return all chunks exactly once, in batches of about ``tokens`` tokens, for validation."""
        batches = []
        for _, stream in self._streams:
            cuts = range(0, stream.epoch_tokens, tokens)
            spans = [stream.between(cut, min(cut + tokens, stream.epoch_tokens)) for cut in cuts]
            batches += [self._pack(chunks, epochs) for chunks, epochs in spans if len(chunks)]
        return batches

    def _documents(self, chunks: NDArray) -> NDArray[np.int64]:
        return np.searchsorted(self.shards.ends, self._bounds[chunks], side="right") - 1

    def _pack(self, chunks: NDArray, epochs: NDArray) -> PackedBatch:
        starts, stops = self._bounds[chunks], self._bounds[chunks + 1]
        ids, words, inside = self.shards.take(starts, stops)
        lengths = (stops - starts + 2).astype(np.int32)
        last = np.cumsum(lengths) - 1
        text = np.ones(int(lengths.sum()), bool)  # neither [CLS] nor [SEP]
        text[last] = text[last - lengths + 1] = False
        input_ids = np.full(len(text), self._sep, np.int64)
        input_ids[last - lengths + 1] = self._cls
        input_ids[text] = ids
        word_starts = np.ones(len(text), bool)
        word_starts[text] = words
        inside_entity = None
        if inside is not None:
            inside_entity = np.zeros(len(text), bool)
            inside_entity[text] = inside
        return PackedBatch(input_ids, lengths, word_starts, inside_entity, self._documents(chunks), chunks, epochs)


class _Stream:
    """An endless stream of tokens from some chunks: every epoch has all of them, in a new random order."""

    def __init__(self, chunks: NDArray[np.int64], lengths: NDArray[np.int64], seed: int, shuffle: bool):
        self.chunks, self.lengths, self.seed, self.shuffle = chunks, lengths, seed, shuffle
        self.epoch_tokens = int(lengths.sum())
        self._orders: dict[int, tuple[NDArray, NDArray]] = {}

    def between(self, begin: int, end: int) -> tuple[NDArray, NDArray]:
        """Return the chunks that begin in [begin, end) of the stream, and their epochs."""
        chunks, epochs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for epoch in range(begin // self.epoch_tokens, -(-end // self.epoch_tokens)):
            order, starts = self._order(epoch)
            base = epoch * self.epoch_tokens
            low, high = np.searchsorted(starts, [max(begin - base, 0), min(end - base, self.epoch_tokens)])
            chunks.append(order[low:high])
            epochs.append(np.full(high - low, epoch))
        return np.concatenate(chunks), np.concatenate(epochs)

    def _order(self, epoch: int) -> tuple[NDArray, NDArray]:
        """Return the chunks in the order of this epoch, and the start of each within it. Two epochs are cached."""
        if epoch not in self._orders:
            for old in sorted(self._orders)[:-1]:
                del self._orders[old]
            order: NDArray = np.arange(len(self.chunks))
            if self.shuffle:
                order = np.random.default_rng([self.seed, epoch]).permutation(len(self.chunks))
            lengths = self.lengths[order]
            self._orders[epoch] = self.chunks[order], np.cumsum(lengths) - lengths
        return self._orders[epoch]


def _even_bounds(ends: NDArray[np.int64], body: int) -> NDArray[np.int64]:
    """Return the boundaries that cut each document into equal chunks of at most ``body`` tokens."""
    lengths = np.diff(ends)
    counts = -(-lengths // body)
    document = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.append(ends[document] + within * lengths[document] // counts[document], ends[-1])
