"""Batches are a pure function of (seed, step, part), cover the corpus exactly, and hold only whole chunks."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debertakit.text.corpus import prepare
from debertakit.text.packing import PackedBatch, Packing
from tests.text.material import ARTICLES, byte_level


class Numbers:
    """Documents of given lengths whose tokens count up, so that each token shows its position in the corpus."""

    def __init__(self, lengths):
        self.ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.tokens = int(self.ends[-1])
        self.vocabulary = {"cls": -1, "sep": -2}

    def take(self, starts, stops):
        ids = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)] or [np.empty(0, np.int64)])
        return ids, ids % 3 == 0, None


def sequences(batch: PackedBatch) -> list[list[int]]:
    return [part.tolist() for part in np.split(batch.input_ids, np.cumsum(batch.lengths)[:-1])]


lengths = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any)
modes = st.sampled_from(["documents", "blocks"])


@given(lengths, st.integers(3, 20), modes, st.integers(0, 5))
@settings(max_examples=60)
def test_an_epoch_holds_every_token_once(document_lengths, max_length, mode, seed):
    shards = Numbers(document_lengths)
    packing = Packing(shards, max_length, 2 * max_length, seed, mode)
    batches = [packing.batch(step) for step in range(2 * packing.epoch_tokens // packing.step_tokens + 2)]
    for epoch in (0, 1):
        seen = []
        for batch in batches:
            for sequence, document, of in zip(sequences(batch), batch.documents, batch.epochs, strict=True):
                assert sequence[0] == -1
                assert sequence[-1] == -2
                assert 3 <= len(sequence) <= max_length
                body = sequence[1:-1]
                assert body == list(range(body[0], body[-1] + 1))  # contiguous text
                assert shards.ends[document] <= body[0] < shards.ends[document + 1]
                if mode == "documents":
                    assert body[-1] < shards.ends[document + 1]
                if of == epoch:
                    seen += body
        assert sorted(seen) == list(range(shards.tokens))


@given(lengths, st.integers(3, 20), modes, st.integers(1, 4))
@settings(max_examples=60)
def test_budget_is_kept_and_never_drifts(document_lengths, max_length, mode, parts):
    packing = Packing(Numbers(document_lengths), max_length, 4 * max_length, 0, mode)
    total = 0
    for step in range(12):
        for part in range(parts):
            batch = packing.batch(step, part, parts)
            total += len(batch.input_ids)
            begun = step * packing.step_tokens + (part + 1) * packing.step_tokens // parts
            assert begun <= total < begun + max_length
            assert len(batch.input_ids) == batch.lengths.sum()


@given(lengths, st.integers(3, 20), modes, st.integers(0, 9))
@settings(max_examples=40)
def test_world_size_changes_nothing_but_the_division(document_lengths, max_length, mode, step):
    shards = Numbers(document_lengths)
    whole = sequences(Packing(shards, max_length, 4 * max_length, 1, mode).batch(step))
    for parts in (2, 3, 4):
        packing = Packing(shards, max_length, 4 * max_length, 1, mode)  # random access: nothing was read before
        divided = [s for part in range(parts) for s in sequences(packing.batch(step, part, parts))]
        assert [s for s in divided if s] == whole


def test_order_depends_on_seed_and_epoch_only():
    shards = Numbers([7] * 50)
    one, same, other = (Packing(shards, 16, 64, seed) for seed in (1, 1, 2))
    assert sequences(one.batch(3)) == sequences(same.batch(3)) != sequences(other.batch(3))
    assert one.batch(3).chunks.tolist() == one.batch(3).chunks.tolist()
    epochs = [Packing(shards, 16, 450, 1)._streams[0][1]._order(epoch)[0].tolist() for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_far_away_steps_and_kept_orders():
    packing = Packing(Numbers([30] * 10), 16, 64, 0)
    far = packing.batch(10**9)
    assert packing.batch(0).epochs.tolist() == [0] * len(packing.batch(0).lengths)
    assert sequences(packing.batch(10**9)) == sequences(far)
    assert len(packing._streams[0][1]._orders) <= 2


def test_chunks_are_even():
    batch = Packing(Numbers([520]), 512, 2048, shuffle=False).batch(0)
    assert batch.lengths[:2].tolist() == [262, 262]


def test_blocks_cross_documents():
    batch = Packing(Numbers([5, 5, 5]), 10, 17, mode="blocks", shuffle=False).batch(0)
    assert sequences(batch) == [[-1, *range(8), -2], [-1, *range(8, 15), -2]]
    assert batch.documents.tolist() == [0, 1]


@given(lengths, st.integers(3, 20), st.integers(0, 60))
@settings(max_examples=40)
def test_validation_reads_everything_once(document_lengths, max_length, extra):
    packing = Packing(Numbers(document_lengths), max_length, max_length, shuffle=False)
    body = [t for batch in packing.once(max_length + extra) for s in sequences(batch) for t in s[1:-1]]
    assert body == list(range(packing.shards.tokens))


def test_from_a_real_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(ARTICLES))
    tokenizer = byte_level()
    prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", max_shard_tokens=700)
    train = prepared.train
    for mode in ("documents", "blocks"):
        packing = Packing(train, 24, 500, mode=mode, shuffle=False)
        stream, starts = [], []
        for batch in packing.once(500):
            assert batch.word_starts.shape == batch.input_ids.shape
            assert batch.input_ids.dtype == np.int64
            assert batch.lengths.dtype == np.int32
            assert batch.inside_entity is None
            first = np.cumsum(batch.lengths) - batch.lengths
            assert (batch.input_ids[first] == tokenizer.cls_token_id).all()
            assert batch.word_starts[first + 1].all()  # a chunk that begins inside a word: its rest is a word
            text = ~np.isin(batch.input_ids, [tokenizer.cls_token_id, tokenizer.sep_token_id])
            stream += batch.input_ids[text].tolist()
            starts += batch.word_starts[text].tolist()
        documents = [train.document(i) for i in range(len(train))]
        assert stream == [t for ids, _ in documents for t in ids.tolist()]
        expected = np.concatenate([words for _, words in documents])
        assert (np.array(starts) >= expected).all()
        assert (np.array(starts) != expected).sum() < packing.chunks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 2}, "max_length=2"),
        ({"mode": "x"}, "documents or blocks, not 'x'"),
        ({"step_tokens": 10}, "less than max_length"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError, match=message):
        Packing(**{"shards": Numbers([9]), "max_length": 16, "step_tokens": 64, **change}).batch(0)
    with pytest.raises(ValueError, match="part 2 of 2"):
        Packing(Numbers([9]), 16, 64).batch(0, 2, 2)
    with pytest.raises(ValueError, match="no tokens"):
        Packing(Numbers([0]), 16, 64)


def test_fast_on_many_chunks(tmp_path):
    """The limit is far below the usual 20 M tokens/s: only a Python loop over tokens or chunks is this slow."""
    (tmp_path / "a.txt").write_text("\n\n".join(ARTICLES * 5))
    prepared = prepare(tmp_path / "a.txt", byte_level(), tmp_path / "out")
    packing = Packing(prepared.train, 64, 16384)
    packing.batch(0)
    began = time.process_time()
    tokens = sum(len(packing.batch(step).input_ids) for step in range(20))
    assert tokens / (time.process_time() - began) > 1e6
