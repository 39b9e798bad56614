"""The rate is exact, units stay whole, all positions are equally likely, and nothing depends on the batch."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debertakit.text.corpus import prepare
from debertakit.text.masking import Masked, Masking, apply, relative_information
from debertakit.text.packing import PackedBatch, Packing
from tests.text.material import ARTICLES, CHINESE, byte_level

VOCABULARY = {"size": 200, "cls": 1, "sep": 2, "mask": 199, "unk": 3, "special": [0, 1, 2, 3, 199]}
STRATEGIES = ["token", "word", "span", "ngram", "entity"]


def make(lengths: list[int], seed: int = 0, word: float = 0.7, unknown: float = 0.0) -> PackedBatch:
    """Sequences of random tokens. ``word`` is the share of tokens that begin a word."""
    rng = np.random.default_rng(seed)
    sizes = np.array(lengths, np.int32) + 2
    total, last = int(sizes.sum()), np.cumsum(sizes) - 1
    ids = np.where(rng.random(total) < unknown, 3, rng.integers(4, 199, total))
    starts = rng.random(total) < word
    inside = ~starts & (rng.random(total) < 0.2)
    ids[last], ids[last - sizes + 1] = 2, 1
    starts[last] = starts[last - sizes + 1] = starts[np.minimum(last - sizes + 2, last)] = True
    inside[starts] = False
    inside[(last - sizes + 2)] = False
    numbers = np.arange(len(sizes))
    return PackedBatch(ids, sizes, starts, inside, numbers, numbers + 100, np.zeros_like(numbers))


def only(batch: PackedBatch, i: int) -> PackedBatch:
    """Sequence i alone."""
    end = int(batch.lengths[: i + 1].sum())
    rows, n = slice(end - int(batch.lengths[i]), end), slice(i, i + 1)
    inside = None if batch.inside_entity is None else batch.inside_entity[rows]
    return PackedBatch(
        batch.input_ids[rows],
        batch.lengths[n],
        batch.word_starts[rows],
        inside,
        batch.documents[n],
        batch.chunks[n],
        batch.epochs[n],
    )


def per_sequence(batch: PackedBatch, masked: Masked) -> np.ndarray:
    return np.bincount(
        np.searchsorted(np.cumsum(batch.lengths), masked.positions, side="right"), minlength=len(batch.lengths)
    )


sizes = st.lists(st.integers(1, 90), min_size=1, max_size=8)
strategies = st.sampled_from(STRATEGIES)


@given(sizes, strategies, st.integers(0, 1000), st.sampled_from([0.05, 0.15, 0.4, 0.9]), st.sampled_from([0.0, 0.3]))
@settings(max_examples=100)
def test_count_specials_and_targets(lengths, strategy, seed, rate, unknown):
    batch = make(lengths, seed, unknown=unknown)
    masked = apply(batch, Masking(strategy, rate), VOCABULARY, seed=seed)
    maskable = ~np.isin(batch.input_ids, VOCABULARY["special"])
    assert maskable[masked.positions].all()
    assert (np.diff(masked.positions) > 0).all()
    assert (masked.targets == batch.input_ids[masked.positions]).all()
    untouched = np.delete(np.arange(len(maskable)), masked.positions)
    assert (masked.input_ids[untouched] == batch.input_ids[untouched]).all()
    assert not np.isin(masked.input_ids[masked.positions], [0, 1, 2, 3]).any()
    counts = per_sequence(batch, masked)
    ends = np.cumsum(batch.lengths)
    for i, (begin, end) in enumerate(zip(ends - batch.lengths, ends, strict=True)):
        target = rate * maskable[begin:end].sum()
        longest = (
            1
            if strategy == "token"
            else max(np.diff(np.flatnonzero(np.append(unit_starts(batch, strategy)[begin:end], True))))
        )
        assert abs(counts[i] - target) < longest + 1e-9


def unit_starts(batch, strategy):
    return batch.word_starts & ~batch.inside_entity if strategy == "entity" else batch.word_starts


@given(sizes, st.sampled_from(STRATEGIES[1:]), st.integers(0, 1000))
@settings(max_examples=80)
def test_units_are_whole_and_spans_contiguous(lengths, strategy, seed):
    batch = make(lengths, seed, word=0.5)
    masked = apply(batch, Masking(strategy, 0.3), VOCABULARY, seed=seed)
    unit = np.cumsum(unit_starts(batch, strategy))
    hidden = np.zeros(len(unit), bool)
    hidden[masked.positions] = True
    for u in np.unique(unit):
        assert hidden[unit == u].all() or not hidden[unit == u].any()
    assert masked.spans[0] == 0 if len(masked.spans) else True
    longest = {"word": 1, "entity": 1, "ngram": 3, "span": 10}[strategy]
    for span in range(masked.spans[-1] + 1 if len(masked.spans) else 0):
        rows = masked.positions[masked.spans == span]
        assert (np.diff(rows) == 1).all()
        assert 1 <= len(np.unique(unit[rows])) <= longest


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("length", [5, 62])
def test_rate_is_exact_on_average(strategy, length):
    """Also for sequences so short that plain rounding would mask a fifth of the tokens, or none."""
    batch = make([length] * 4000)
    counts = per_sequence(batch, apply(batch, Masking(strategy), VOCABULARY, seed=3))
    error = counts.mean() - 0.15 * length
    assert abs(error) < 4 * counts.std() / len(counts) ** 0.5 + 1e-9


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_position_is_equally_likely(strategy):
    n, length = 6000, 60
    batch = make([length] * n, word=1.0)
    masked = apply(batch, Masking(strategy), VOCABULARY, seed=5)
    frequency = np.bincount(masked.positions % (length + 2), minlength=length + 2)[1:-1] / n
    error = (0.15 * 0.85 / n) ** 0.5
    assert abs(frequency - 0.15).max() < 4.2 * error  # 60 positions: 1 in 600 by chance, but the seed is fixed
    ends = np.concatenate([frequency[:6], frequency[-6:]]).mean()
    assert abs(ends - 0.15) < 4 * error / 2


def test_length_of_runs():
    batch = make([510] * 300, word=1.0)
    ngram = apply(batch, Masking("ngram", 0.05), VOCABULARY, seed=1)
    share = np.bincount(np.bincount(ngram.spans))[1:4] / (ngram.spans[-1] + 1)
    assert np.allclose(share, np.array([6, 3, 2]) / 11, atol=0.03)
    # long sequences: the last run of each is cut at the target
    span = apply(make([4000] * 30, word=1.0), Masking("span", 0.1), VOCABULARY, seed=1)
    lengths = np.bincount(span.spans)
    p = Masking("span").run_lengths()
    assert len(p) == 10
    assert p[1] / p[0] == pytest.approx(0.8)
    assert lengths.max() == 10
    assert lengths.mean() == pytest.approx((p * np.arange(1, 11)).sum(), rel=0.06)  # SpanBERT: 3.8


@pytest.mark.parametrize("masking", [Masking("word"), Masking("span", replace_by="span")])
def test_eighty_ten_ten(masking):
    batch = make([126] * 1500)
    runs = [apply(batch, masking, VOCABULARY, seed=seed) for seed in range(4)]
    now, targets = np.concatenate([[m.input_ids[m.positions], m.targets] for m in runs], axis=1)
    is_mask, kept = now == 199, now == targets
    assert is_mask.mean() == pytest.approx(0.8, abs=0.01)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 195, abs=0.01)
    drawn = np.bincount(now[~is_mask & ~kept], minlength=200)
    assert not drawn[VOCABULARY["special"]].any()
    ordinary = drawn[4:199]  # all equally likely: chi-square a degree of freedom, its standard deviation is 0.1
    assert ((ordinary - ordinary.mean()) ** 2 / ordinary.mean()).sum() / 194 < 1.4
    first = runs[0]
    masks = first.input_ids[first.positions] == 199
    mixed = [len(set(masks[first.spans == s].tolist())) > 1 for s in range(300)]
    assert any(mixed) == (masking.replace_by == "token")


@given(sizes, st.sampled_from(["word", "span", "ngram"]), st.integers(0, 100))
@settings(max_examples=60)
def test_one_mask_for_a_span(lengths, strategy, seed):
    batch = make(lengths, seed)
    plain = apply(batch, Masking(strategy, 0.3, replace_by="span"), VOCABULARY, seed=seed)
    masked = apply(batch, Masking(strategy, 0.3, one_mask_per_span=True), VOCABULARY, seed=seed)
    assert (masked.targets == plain.targets).all()
    assert (masked.spans == plain.spans).all()
    assert masked.lengths.sum() == len(masked.input_ids)
    assert masked.lengths.dtype == np.int32
    first = np.cumsum(masked.lengths) - masked.lengths
    assert (masked.input_ids[first] == 1).all()
    assert (masked.input_ids[first + masked.lengths - 1] == 2).all()
    by_mask = masked.input_ids[masked.positions] == 199
    assert (by_mask == (plain.input_ids[plain.positions] == 199)).all()
    assert (masked.input_ids == 199).sum() == len(np.unique(masked.spans[by_mask]))  # one each
    restored = []  # putting the targets back gives the text
    masks = {int(p): masked.targets[masked.positions == p] for p in np.unique(masked.positions)}
    for row, token in enumerate(masked.input_ids.tolist()):
        restored += masks[row].tolist() if row in masks else [token]
    assert restored == batch.input_ids.tolist()


@given(sizes, strategies, st.integers(0, 100))
@settings(max_examples=50)
def test_a_sequence_is_masked_alike_in_any_batch(lengths, strategy, seed):
    batch = make(lengths, seed)
    together = apply(batch, Masking(strategy), VOCABULARY, seed=seed)
    alone = [apply(only(batch, i), Masking(strategy), VOCABULARY, seed=seed) for i in range(len(lengths))]
    assert together.input_ids.tolist() == [t for one in alone for t in one.input_ids.tolist()]
    assert together.targets.tolist() == [t for one in alone for t in one.targets.tolist()]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_static_dynamic_and_seed(strategy):
    batch = make([200, 100])
    later = replace(batch, epochs=batch.epochs + 1)
    other = replace(batch, chunks=batch.chunks + 1)

    def hidden(batch, dynamic, seed=0):
        return apply(batch, Masking(strategy, dynamic=dynamic), VOCABULARY, seed=seed).positions.tolist()

    assert hidden(batch, True) == hidden(batch, True) != hidden(later, True)
    assert hidden(batch, False) == hidden(later, False)
    assert hidden(batch, False) != hidden(other, False)
    assert hidden(batch, True) != hidden(batch, True, seed=1)


def test_rate_schedule():
    masking = Masking("token", 0.3, final_rate=0.1)
    assert [masking.rate_at(p) for p in (-1, 0, 0.5, 1, 2)] == pytest.approx([0.3, 0.3, 0.2, 0.1, 0.1])
    assert Masking(rate=0.2).rate_at(0.7) == 0.2
    batch = make([100])
    assert len(apply(batch, masking, VOCABULARY, seed=0, progress=1.0).positions) == 10
    assert len(apply(batch, masking, VOCABULARY, seed=0).positions) == 30


def test_nothing_to_mask():
    batch = make([4], unknown=1.0)
    for strategy in STRATEGIES:
        assert len(apply(batch, Masking(strategy), VOCABULARY, seed=0).positions) == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"strategy": "sentence"},
        {"rate": 0.0},
        {"rate": 1.5},
        {"final_rate": 2.0},
        {"mask": 0.9, "random": 0.2},
        {"mask": -0.1},
        {"replace_by": "word"},
        {"max_ngram": 0},
        {"span_p": 1.0},
        {"density": 1.0},
        {"density": 0.5, "rate": 0.7},
    ],
)
def test_bad_settings(bad):
    with pytest.raises(ValueError, match=re_any(bad)):
        Masking(**bad)


def re_any(bad: dict) -> str:
    return "|".join(map(str, bad)) + "|rate"


def test_entity_masking_needs_entities_and_mask_token():
    batch = replace(make([20]), inside_entity=None)
    with pytest.raises(ValueError, match="prepared with entities"):
        apply(batch, Masking("entity"), VOCABULARY, seed=0)
    with pytest.raises(ValueError, match=r"\[MASK\]"):
        apply(batch, Masking("word"), VOCABULARY | {"mask": None}, seed=0)


def hidden_texts(tmp_path, text: str, **options) -> set[str]:
    """Sets of tokens that are masked together, over many epochs."""
    (tmp_path / "a.txt").write_text(text)
    tokenizer = byte_level()
    train = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", validation=0, **options).train
    batch = Packing(train, 128, 128, shuffle=False).once(10_000)[0]
    seen = set()
    for epoch in range(60):
        masked = apply(replace(batch, epochs=batch.epochs + epoch), Masking("entity", 0.15), train.vocabulary, seed=0)
        rows = np.split(masked.targets, np.flatnonzero(np.diff(masked.spans)) + 1)
        seen |= {tokenizer.decode(row).strip() for row in rows if len(row)}
    return seen


@given(sizes, st.integers(0, 1000), st.sampled_from([0.05, 0.15, 0.4]), st.sampled_from([0.0, 0.3]))
@settings(max_examples=60)
def test_entity_or_token_hides_tokens_and_whole_entities(lengths, seed, rate, unknown):
    """The single tokens are at most a share ``rate``; everything else that is masked is a whole entity."""
    batch = make(lengths, seed, word=0.5, unknown=unknown)
    masked = apply(batch, Masking("entity-or-token", rate), VOCABULARY, seed=seed)
    maskable = ~np.isin(batch.input_ids, VOCABULARY["special"])
    assert maskable[masked.positions].all()
    assert (np.diff(masked.positions) > 0).all()
    hidden = np.zeros(len(maskable), bool)
    hidden[masked.positions] = True
    entities: list[list[int]] = []
    for row in np.flatnonzero(maskable).tolist():
        if batch.inside_entity[row] and maskable[row - 1]:
            entities[-1].append(row)
        else:
            entities.append([row])
    single = np.zeros(len(maskable), bool)
    for rows in entities:
        single[rows] = len(rows) == 1 or not hidden[rows].all()
    ends = np.cumsum(batch.lengths)
    for begin, end in zip(ends - batch.lengths, ends, strict=True):
        target = rate * maskable[begin:end].sum()
        assert (hidden & single)[begin:end].sum() < target + 1
        assert hidden[begin:end].sum() > target - 1


def test_each_entity_is_masked_with_the_probability_of_the_rate():
    batch = make([40] * 4000, word=1.0)
    inside = np.zeros(len(batch.input_ids), bool)
    inside[10::42] = inside[11::42] = True  # an entity of three tokens in every sequence
    masked = apply(replace(batch, inside_entity=inside), Masking("entity-or-token", 0.15), VOCABULARY, seed=1)
    hidden = np.zeros(len(inside), bool)
    hidden[masked.positions] = True
    whole = (hidden[9::42] & hidden[10::42] & hidden[11::42]).mean()
    assert whole == pytest.approx(0.15 + 0.85 * 0.15**3, abs=4 * (0.15 * 0.85 / 4000) ** 0.5)
    others = hidden.reshape(-1, 42)[:, [*range(1, 9), *range(12, 41)]].mean()
    assert others == pytest.approx(0.15, abs=0.01)
    first = masked.spans[masked.positions % 42 == 9]
    assert (np.bincount(masked.spans)[first] == 3).mean() > 0.4  # a masked entity is one span


def test_density_follows_the_information_of_the_sequence():
    """From the definition: rare tokens have more information, and the rate follows it within the bounds."""
    batch, rng = make([50] * 300), np.random.default_rng(0)
    p = 1.0 / np.arange(1, 196)
    drawn = 4 + rng.choice(195, len(batch.input_ids), p=p / p.sum())
    batch = replace(batch, input_ids=np.where(batch.input_ids > 3, drawn, batch.input_ids))
    counts = np.bincount(batch.input_ids, minlength=200)
    information = relative_information(counts, VOCABULARY["special"])
    known = [0 if token in VOCABULARY["special"] else int(count) for token, count in enumerate(counts)]
    surprise = [-math.log((count + 1) / (sum(known) + 200)) for count in known]
    mean = sum(c * s for c, s in zip(known, surprise, strict=True)) / sum(known)
    np.testing.assert_allclose(information, np.array(surprise) / mean)
    masked = apply(batch, Masking("token", 0.3, density=0.1), VOCABULARY, seed=0, information=information)
    clipped = 0
    for sequence, count in zip(batch.input_ids.reshape(-1, 52), per_sequence(batch, masked), strict=True):
        share = sum(surprise[token] for token in sequence[1:-1]) / 50 / mean
        clipped += not 0.9 <= share <= 1.1
        assert abs(count - 0.3 * min(max(share, 0.9), 1.1) * 50) <= 1
    assert 0 < clipped < 300
    with pytest.raises(ValueError, match="information"):
        apply(batch, Masking("token", density=0.1), VOCABULARY, seed=0)


def test_entities_are_masked_whole(tmp_path):
    (tmp_path / "places").write_text("New York City\n")
    seen = hidden_texts(tmp_path, f"{ARTICLES[0]} New York City is large", entities=tmp_path / "places")
    assert "New York City" in seen
    assert not seen & {"New", "York", "City", "New York", "York City"}


def test_chinese_words_are_masked_whole(tmp_path):
    pytest.importorskip("rjieba")
    seen = hidden_texts(tmp_path, "".join(CHINESE * 2), language="zh")
    assert "北京大学" in seen
    assert not seen & {"北", "京", "大", "学", "北京大", "大学是"}


def test_word_starts_of_a_chunk_cut_inside_a_word():
    """The rest of a word at the start of a chunk is a unit like any other."""
    batch = make([6], word=0.0)
    batch.word_starts[1] = False
    counts = {len(apply(batch, Masking("word", 0.5), VOCABULARY, seed=seed).positions) for seed in range(20)}
    assert counts == {0, 6}


def test_unknown_token_splits_a_word():
    batch = make([5], word=0.0)
    batch.input_ids[3] = 3
    found = {tuple(apply(batch, Masking("word", 0.5), VOCABULARY, seed=seed).positions.tolist()) for seed in range(20)}
    assert found == {(1, 2), (4, 5)}
