"""Select the tokens to mask, and their replacements. Independent of the objective that predicts them.

A strategy defines the *units* that are masked as a whole, and the number of consecutive units in a run:

    token   single tokens (BERT)
    word    whole words
    span    runs of words, geometric length with p = 0.2, at most 10 (SpanBERT)
    ngram   runs of 1 to 3 words, p(n) ~ 1 / n (DeBERTa)
    entity  whole words; an entity of the prepared corpus counts as one word (in Chinese by default: jieba's words)
    entity-or-token   single tokens, and in addition each entity of several tokens with probability ``rate``

The rate is exact. In a sequence with m maskable tokens (not special, not [UNK]) the target is t = rate * m. Runs are
drawn until t is reached. The last run is shortened at its end, and the unit that crosses t is masked as a whole with
probability (t - masked so far) / its length. So no unit is cut, the count differs from t by less than that unit, and
its mean is t. For single tokens the count is t rounded up or down. (``entity-or-token`` masks more: the entities come
on top of the t tokens.)

Runs wrap around: a run that reaches the end of the sequence continues at its beginning, where it counts as a second
span. By symmetry, all positions are treated equally. (The original DeBERTa goes from left to right until its budget
is used up, and at length 512 never masks a token after position 462.)

With ``density`` d > 0, the rate of a sequence follows its information: rate * clip(I_s / I, 1 - d, 1 + d). I_s is the
mean of -ln p(token) over the maskable tokens of the sequence, I its mean over the training text, p(token) the frequency
of the token there. Texts with rare words get more masks; on average over the text the rate stays the same, but for the
clipping.

Random numbers depend on (seed, chunk) for static masking and on (seed, chunk, epoch) for dynamic masking. They do not
depend on the batch, so masks do not change with the batch size or the number of processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from debertakit.text.manifest import Vocabulary
from debertakit.text.packing import PackedBatch

Ints = NDArray[np.int64]
Strategy = Literal["token", "word", "span", "ngram", "entity", "entity-or-token"]
TRIES = 8  # start positions tried for a run; if all overlap masked units, the run is shortened


@dataclass(frozen=True)
class Masking:
    strategy: Strategy = "ngram"
    rate: float = 0.15
    final_rate: float | None = None
    """Final rate of a linear schedule; None: constant rate."""
    density: float = 0.0
    """How far the rate of a sequence may follow its information, as a share of the rate; 0: the same rate for all."""
    mask: float = 0.8
    random: float = 0.1
    """``mask`` and ``random`` are the shares replaced by [MASK] and by a random token; the rest is unchanged."""
    replace_by: Literal["token", "span"] = "token"
    """Whether each token or each span chooses between [MASK], random and unchanged."""
    one_mask_per_span: bool = False
    """A span that is replaced by [MASK] becomes a single [MASK]; implies ``replace_by="span"``."""
    dynamic: bool = True
    """Draw new masks in every epoch; False: the same masks in every epoch."""
    max_ngram: int = 3
    span_p: float = 0.2
    max_span: int = 10

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"masking strategy must be one of {', '.join(get_args(Strategy))}, not {self.strategy!r}")
        for rate in (self.rate, self.final_rate):
            if rate is not None and not 0 < rate < 1:
                raise ValueError(f"masking rate must be between 0 and 1, not {rate}")
        if not 0 <= self.density < 1 or max(self.rate, self.final_rate or 0) * (1 + self.density) >= 1:
            raise ValueError(f"masking density={self.density}: must be >= 0, and rate * (1 + density) < 1")
        if min(self.mask, self.random) < 0 or self.mask + self.random > 1:
            raise ValueError(f"mask={self.mask} and random={self.random} must be >= 0, with a sum of at most 1")
        if self.replace_by not in ("token", "span"):
            raise ValueError(f"replace_by must be token or span, not {self.replace_by!r}")
        if min(self.max_ngram, self.max_span) < 1 or not 0 < self.span_p < 1:
            raise ValueError("max_ngram and max_span must be >= 1, span_p between 0 and 1")

    @property
    def masks_entities(self) -> bool:
        return self.strategy in ("entity", "entity-or-token")

    def rate_at(self, progress: float) -> float:
        """Masking rate when a share ``progress`` of the training is done."""
        return self.rate + ((self.final_rate or self.rate) - self.rate) * min(max(progress, 0.0), 1.0)

    def run_lengths(self) -> NDArray[np.float64]:
        """Probabilities p(1), p(2), ... of the number of units in a run."""
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
    """[T']: corrupted tokens; T' = T unless spans were replaced by a single [MASK]."""
    lengths: NDArray[np.int32]
    """[n]: length of each corrupted sequence."""
    positions: Ints
    """[M]: row of input_ids for each masked token. Tokens of a span replaced by a single [MASK] share one row."""
    targets: Ints
    """[M]: original tokens."""
    spans: Ints
    """[M]: span number of each masked token, ascending; the tokens of a span are consecutive in the text."""


def log_frequencies(counts: Ints) -> NDArray[np.float64]:
    """Log frequency of each token, with one added to each count."""
    return np.log((counts + 1) / (counts.sum() + len(counts)))


def relative_information(counts: Ints, special: Sequence[int]) -> NDArray[np.float64]:
    """-ln p of each token, divided by its mean over the text. ``counts``: of the training text. [vocabulary]"""
    ordinary = counts.copy()
    ordinary[list(special)] = 0
    information = -log_frequencies(ordinary)
    return information / np.average(information, weights=ordinary)


def apply(
    batch: PackedBatch,
    masking: Masking,
    vocabulary: Vocabulary,
    *,
    seed: int,
    progress: float = 0.0,
    information: NDArray[np.float64] | None = None,
) -> Masked:
    """Corrupt a batch. ``vocabulary``: ``corpus.train.vocabulary``. ``information``: for ``masking.density``."""
    if vocabulary["mask"] is None:
        raise ValueError("masking needs a tokenizer with a [MASK] token")
    if masking.density and information is None:
        raise ValueError("masking.density needs the information of each token (relative_information)")
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
        sequence_rate = rate
        if masking.density and information is not None and len(rows):
            density = float(information[batch.input_ids[rows]].mean())
            sequence_rate *= min(max(density, 1 - masking.density), 1 + masking.density)
        if masking.strategy == "token":
            picked = _pick_tokens(len(rows), sequence_rate, rng)
            run: Ints = np.arange(len(picked))
        elif masking.strategy == "entity-or-token":
            picked, run = _pick_entities_and_tokens(starts[rows], sequence_rate, rng)
        else:
            picked, run = _pick_runs(starts[rows], sequence_rate, odds, rng)
        hidden.append(rows[picked])
        runs.append(run + runs_before)
        runs_before += 2 * len(rows) + 1  # more than any number of a run
        draws.append(rng.random((len(picked), 2)))
    positions, run, draw = np.concatenate(hidden), np.concatenate(runs), np.concatenate(draws)
    # a span ends at the end of its run and before a token that is not masked
    span = np.cumsum((np.diff(positions, prepend=-2) != 1) | (np.diff(run, prepend=-1) != 0)) - 1
    draw, replacement = draw[:, 0], ordinary[(draw[:, 1] * len(ordinary)).astype(np.int64)]
    if masking.replace_by == "span" or masking.one_mask_per_span:
        draw = draw[np.searchsorted(span, span)]  # use the draw of the span's first token
    targets = batch.input_ids[positions]
    by_mask, by_random = draw < masking.mask, (draw >= masking.mask) & (draw < masking.mask + masking.random)
    ids = batch.input_ids.copy()
    ids[positions[by_mask]] = vocabulary["mask"]
    ids[positions[by_random]] = replacement[by_random]
    if not masking.one_mask_per_span:
        return Masked(ids, batch.lengths, positions, targets, span)
    keep = np.ones(len(ids), bool)
    keep[positions[by_mask & (np.diff(span, prepend=-1) == 0)]] = False  # drop all but the first [MASK] of a span
    lengths = np.add.reduceat(keep, ends - batch.lengths, dtype=np.int32)
    return Masked(ids[keep], lengths, (np.cumsum(keep) - 1)[positions], targets, span)


def _unit_starts(batch: PackedBatch, masking: Masking, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    starts = batch.word_starts.copy()
    if masking.masks_entities:
        if batch.inside_entity is None:
            raise ValueError(
                "entity masking needs a corpus prepared with entities: --tagger FOLDER, or data.entities=GAZETTEER or "
                "spacy:MODEL (in Python also a function)"
            )
        starts = ~batch.inside_entity if masking.strategy == "entity-or-token" else starts & ~batch.inside_entity
    starts[1:] |= ~allowed[:-1]  # after [CLS], and after [UNK] inside a word
    return starts


def _pick_tokens(size: int, rate: float, rng: np.random.Generator) -> Ints:
    """Pick single tokens: exactly the target number, randomly rounded up or down."""
    count = int(rate * size + rng.random())
    return np.sort(rng.permutation(size)[:count])


def _pick_entities_and_tokens(starts: NDArray[np.bool_], rate: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Pick each entity of several tokens with probability ``rate``, and a share ``rate`` of the tokens.

    ``starts``: False where a token continues an entity. Returns the indices of the masked tokens and the run of each.
    """
    entity = np.cumsum(starts) - 1
    several = np.bincount(entity)[entity] > 1 if len(entity) else starts
    chosen = (rng.random(len(starts)) < rate)[entity] & several  # one draw per entity
    hidden = chosen.copy()
    hidden[_pick_tokens(len(starts), rate, rng)] = True
    picked = np.flatnonzero(hidden)
    return picked, np.where(chosen, entity, len(starts) + np.arange(len(starts)))[picked]


def _pick_runs(
    starts: NDArray[np.bool_], rate: float, odds: NDArray[np.float64], rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Pick whole units in runs. Returns the indices of the masked tokens, ascending, and the run of each."""
    size = len(starts)
    if not size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    bounds = np.flatnonzero(np.append(starts, True))
    units = len(bounds) - 1
    lengths = np.diff(bounds).tolist()
    run_of = [-1] * units
    target, taken, run = rate * size, 0, 0
    coin = rng.random()
    while True:  # draw in blocks: single draws would cost more than the rest of the loop
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
                if taken + lengths[unit] > target:  # the unit crosses the target: all or nothing
                    if coin * lengths[unit] < target - taken:
                        run_of[unit] = run
                    chosen = np.repeat(np.array(run_of), lengths)
                    picked = np.flatnonzero(chosen >= 0)
                    return picked, chosen[picked]
                run_of[unit] = run
                taken += lengths[unit]
            run += 1
