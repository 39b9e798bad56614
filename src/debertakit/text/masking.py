"""Which tokens to hide, and behind what. Independent of the objective that then predicts them.

A strategy only says what is hidden together (a *unit*, or a run of them):

    token   single tokens (BERT)
    word    whole words
    span    runs of words, length geometric, p = 0.2, up to 10 (SpanBERT)
    ngram   runs of 1 to 3 words, p(n) ~ 1 / n (DeBERTa)
    entity  whole words, an entity counting as one: what the corpus was prepared with, or jieba's words

The rate is exact. In a sequence with m tokens that may be hidden (not special, not [UNK]) the target is t = rate * m.
Runs are drawn until t is reached; the last gives up units from its end, and the unit that lies across t is taken
whole with probability (t - hidden so far) / its length. So no unit is cut, the count is off by less than that unit, and
its mean is t: for single tokens it is t rounded up or down.

Runs are laid on a circle: a run that leaves the sequence at its end goes on at its beginning, where it counts as a
second span. Every place is then the same by symmetry. (The original DeBERTa walks left to right until its budget
is used up, and at length 512 never hides a token behind 462.)

Everything is drawn from (seed, chunk) for static masking and (seed, chunk, epoch) for dynamic: not from the batch, so
it does not change with batch size or number of processes.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from debertakit.text.packing import PackedBatch

Ints = NDArray[np.int64]
TRIES = 8  # places tried for a run before it is shortened by what is hidden already


@dataclass(frozen=True)
class Masking:
    strategy: Literal["token", "word", "span", "ngram", "entity"] = "ngram"
    rate: float = 0.15
    final_rate: float | None = None
    """Where a linear schedule ends; None: constant."""
    mask: float = 0.8
    random: float = 0.1
    """Share replaced by [MASK], and by a random token; the rest stays as it is."""
    replace_by: Literal["token", "span"] = "token"
    """What draws its replacement together."""
    one_mask_per_span: bool = False
    """A span that becomes [MASK] shrinks to a single one; replacement is then by span."""
    dynamic: bool = True
    """New in every epoch; False: fixed at first sight."""
    max_ngram: int = 3
    span_p: float = 0.2
    max_span: int = 10

    def __post_init__(self) -> None:
        if self.strategy not in ("token", "word", "span", "ngram", "entity"):
            raise ValueError(f"masking strategy {self.strategy!r}: token, word, span, ngram or entity")
        for rate in (self.rate, self.final_rate):
            if rate is not None and not 0 < rate < 1:
                raise ValueError(f"masking rate {rate}: between 0 and 1")
        if min(self.mask, self.random) < 0 or self.mask + self.random > 1:
            raise ValueError(f"mask={self.mask} and random={self.random}: shares, together at most 1")
        if self.replace_by not in ("token", "span"):
            raise ValueError(f"replace_by={self.replace_by!r}: token or span")
        if min(self.max_ngram, self.max_span) < 1 or not 0 < self.span_p < 1:
            raise ValueError("max_ngram and max_span are at least 1, span_p lies between 0 and 1")

    def rate_at(self, progress: float) -> float:
        """``progress``: the share of training that is done."""
        return self.rate + ((self.final_rate or self.rate) - self.rate) * min(max(progress, 0.0), 1.0)

    def run_lengths(self) -> NDArray[np.float64]:
        """p(1), p(2), ...: how many units are hidden in a row."""
        if self.strategy == "span":
            p = self.span_p * (1 - self.span_p) ** np.arange(self.max_span)
        elif self.strategy == "ngram":
            p = 1 / np.arange(1, self.max_ngram + 1)
        else:
            p = np.ones(1)
        return p / p.sum()


@dataclass(frozen=True)
class Masked:
    input_ids: Ints
    """[T']: the corrupted tokens; T' = T unless spans shrank to one [MASK]."""
    lengths: NDArray[np.int32]
    """[n]: tokens of each sequence now."""
    positions: Ints
    """[M]: the row of input_ids behind which each hidden token is; the tokens of a shrunk span share theirs."""
    targets: Ints
    """[M]: the tokens that were there."""
    spans: Ints
    """[M]: the number of the span each belongs to, ascending; tokens of a span follow one another in the text."""


def apply(batch: PackedBatch, masking: Masking, vocabulary: dict, *, seed: int, progress: float = 0.0) -> Masked:
    """Corrupt a batch. ``vocabulary``: ``corpus.train.vocabulary``."""
    if vocabulary["mask"] is None:
        raise ValueError("masking needs a tokenizer with a [MASK] token")
    special = np.zeros(vocabulary["size"], bool)
    special[vocabulary["special"]] = True
    ordinary = np.flatnonzero(~special)
    allowed = ~special[batch.input_ids]
    starts = _unit_starts(batch, masking, allowed)
    rate, odds = masking.rate_at(progress), np.cumsum(masking.run_lengths())
    ends = np.cumsum(batch.lengths)
    hidden, runs, draws = [], [], []
    runs_before = 0
    for begin, end, chunk, epoch in zip(ends - batch.lengths, ends, batch.chunks, batch.epochs, strict=True):
        rng = np.random.default_rng([seed, int(chunk), *([int(epoch)] if masking.dynamic else [])])
        rows = begin + allowed[begin:end].nonzero()[0]
        if masking.strategy == "token":
            picked = _pick_tokens(len(rows), rate, rng)
            run = np.arange(len(picked))
        else:
            picked, run = _pick_runs(starts[rows], rate, odds, rng)
        hidden.append(rows[picked])
        runs.append(run + runs_before)
        runs_before += len(rows)  # more than there are runs
        draws.append(rng.random((len(picked), 2)))
    positions, run, draw = np.concatenate(hidden), np.concatenate(runs), np.concatenate(draws)
    # a span ends where its run does, and where a token between is not hidden
    span = np.cumsum((np.diff(positions, prepend=-2) != 1) | (np.diff(run, prepend=-1) != 0)) - 1
    draw, replacement = draw[:, 0], ordinary[(draw[:, 1] * len(ordinary)).astype(np.int64)]
    if masking.replace_by == "span" or masking.one_mask_per_span:
        draw = draw[np.searchsorted(span, span)]  # that of the span's first token
    targets = batch.input_ids[positions]
    by_mask, by_random = draw < masking.mask, (draw >= masking.mask) & (draw < masking.mask + masking.random)
    ids = batch.input_ids.copy()
    ids[positions[by_mask]] = vocabulary["mask"]
    ids[positions[by_random]] = replacement[by_random]
    if not masking.one_mask_per_span:
        return Masked(ids, batch.lengths, positions, targets, span)
    keep = np.ones(len(ids), bool)
    keep[positions[by_mask & (np.diff(span, prepend=-1) == 0)]] = False  # all but the first [MASK] of a span
    lengths = np.add.reduceat(keep, ends - batch.lengths, dtype=np.int32)
    return Masked(ids[keep], lengths, (np.cumsum(keep) - 1)[positions], targets, span)


def _unit_starts(batch: PackedBatch, masking: Masking, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    starts = batch.word_starts.copy()
    if masking.strategy == "entity":
        if batch.inside_entity is None:
            raise ValueError(
                "entity masking needs a corpus prepared with entities=GAZETTEER, spacy:MODEL or a function"
            )
        starts &= ~batch.inside_entity
    starts[1:] |= ~allowed[:-1]  # behind [CLS], and behind [UNK] in the middle of a word
    return starts


def _pick_tokens(size: int, rate: float, rng: np.random.Generator) -> Ints:
    """Single tokens: exactly the target, rounded up or down by chance."""
    count = int(rate * size + rng.random())
    return np.sort(rng.permutation(size)[:count])


def _pick_runs(
    starts: NDArray[np.bool_], rate: float, odds: NDArray[np.float64], rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Whole units in runs: indices of the hidden tokens, ascending, and the run each is from."""
    size = len(starts)
    if not size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    bounds = np.flatnonzero(np.append(starts, True))
    units = len(bounds) - 1
    lengths = np.diff(bounds).tolist()
    run_of = [-1] * units
    target, taken, run = rate * size, 0, 0
    coin = rng.random()
    while True:  # in blocks of draws: one number at a time costs more than all the rest
        wanted = (np.searchsorted(odds, rng.random(32), side="right") + 1).tolist()
        places = rng.integers(units, size=(32, TRIES)).tolist()
        for length, tries in zip(wanted, places, strict=True):
            length = min(length, units)
            for place in tries:
                if all(run_of[(place + k) % units] < 0 for k in range(length)):
                    break
            for k in range(length):
                unit = (place + k) % units
                if run_of[unit] >= 0:
                    break
                if taken + lengths[unit] > target:  # it lies across the target: all of it or nothing
                    if coin * lengths[unit] < target - taken:
                        run_of[unit] = run
                    chosen = np.repeat(np.array(run_of), lengths)
                    picked = np.flatnonzero(chosen >= 0)
                    return picked, chosen[picked]
                run_of[unit] = run
                taken += lengths[unit]
            run += 1
