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
"""

from dataclasses import dataclass, field
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
    _orders: dict[int, tuple[NDArray, NDArray]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.max_length < 3:
            raise ValueError(f"max_length={self.max_length} must be at least 3, for [CLS], one token and [SEP]")
        if self.mode not in ("documents", "blocks"):
            raise ValueError(f"mode must be documents or blocks, not {self.mode!r}")
        if not self.shards.tokens:
            raise ValueError("no tokens to pack; a corpus prepared with validation=0 has no validation part")
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

    @property
    def chunks(self) -> int:
        return len(self._bounds) - 1

    def batch(self, step: int, part: int = 0, parts: int = 1) -> PackedBatch:
        """Return part ``part`` of ``parts`` of a step. With accumulation, part = rank * accumulation + i."""
        if step < 0 or not 0 <= part < parts:
            raise ValueError(f"no step {step}, part {part} of {parts}")
        if self.step_tokens // parts < self.max_length:
            raise ValueError(
                f"step_tokens={self.step_tokens} in {parts} parts is less than max_length={self.max_length} each"
            )
        begin = step * self.step_tokens
        chunks, epochs = self._between(
            begin + part * self.step_tokens // parts, begin + (part + 1) * self.step_tokens // parts
        )
        return self._pack(chunks, epochs)

    def once(self, tokens: int) -> "list[PackedBatch]":
        """Return all chunks exactly once, in batches of about ``tokens`` tokens, for validation."""
        cuts = range(0, self.epoch_tokens, tokens)
        spans = [self._between(cut, min(cut + tokens, self.epoch_tokens)) for cut in cuts]
        return [self._pack(chunks, epochs) for chunks, epochs in spans if len(chunks)]

    def _between(self, begin: int, end: int) -> tuple[NDArray, NDArray]:
        """Return the chunks that begin in [begin, end) of the token stream, and their epochs."""
        chunks, epochs = [], []
        for epoch in range(begin // self.epoch_tokens, (end - 1) // self.epoch_tokens + 1):
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
            order = np.arange(self.chunks)
            if self.shuffle:
                order = np.random.default_rng([self.seed, epoch]).permutation(self.chunks)
            lengths = self._bounds[order + 1] - self._bounds[order] + 2
            self._orders[epoch] = order, np.cumsum(lengths) - lengths
        return self._orders[epoch]

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
        documents = np.searchsorted(self.shards.ends, starts, side="right") - 1
        return PackedBatch(input_ids, lengths, word_starts, inside_entity, documents, chunks, epochs)


def _even_bounds(ends: NDArray[np.int64], body: int) -> NDArray[np.int64]:
    """Return the boundaries that cut each document into equal chunks of at most ``body`` tokens."""
    lengths = np.diff(ends)
    counts = -(-lengths // body)
    document = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.append(ends[document] + within * lengths[document] // counts[document], ends[-1])
