"""Check the pairs and their labels: search both halves in the corpus."""

import numpy as np
import pytest

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives
from debertakit.objectives.base import Context
from debertakit.objectives.joint import JointObjectives
from debertakit.objectives.pairs import NO_PAIR
from debertakit.pretraining.families import make_backbone
from debertakit.text.masking import Masking
from debertakit.text.packing import Packing
from tests.models import small


def setting(corpus, tokenizer, dynamic=True, **weights):
    module = JointObjectives(make_backbone(DebertaForMaskedLM(small(vocab_size=len(tokenizer)))), Objectives(**weights))
    context = Context(corpus.train, Masking(dynamic=dynamic), seed=3)
    return next(o for name, o in module.objectives.items() if name != "mlm"), context


def places(shards, piece):
    """All occurrences of these tokens in the corpus as (document, offset), also across document boundaries."""
    every = shards.take(np.array([0]), np.array([shards.tokens]))[0].tolist()
    every += every[:64]  # the end goes on at the beginning
    found = [i for i in range(shards.tokens) if every[i : i + len(piece)] == piece]
    documents = [int(np.searchsorted(shards.ends, i, side="right")) - 1 for i in found]
    return [(d, i - int(shards.ends[d])) for d, i in zip(documents, found, strict=True)]


def pairs(objective, context, packing):
    """Each sequence before and after, with its label, and the document it is from."""
    batch = packing.batch(0)
    paired, labels = objective.pair_up(batch, context)
    assert (paired.lengths <= batch.lengths).all()
    assert len(paired.input_ids) == len(paired.word_starts) == paired.lengths.sum()
    separator = context.shards.vocabulary["sep"]
    seen, end = [], 0
    for s, (was, now) in enumerate(zip(_split(batch), _split(paired), strict=True)):
        begin, end = end, end + len(now)
        if labels[s] == NO_PAIR:
            assert len(was) < 12  # four words
            assert now == was
            continue
        assert now[0] == was[0]
        assert [i for i, token in enumerate(now) if token == separator][1:] == [len(now) - 1]
        middle = now.index(separator)
        starts = paired.word_starts[begin:end]
        assert starts[1]
        assert starts[middle]
        assert starts[middle + 1]
        first, second = now[1:middle], now[middle + 1 : -1]
        assert first
        assert second
        seen.append((first, second, int(labels[s]), was[1:-1], int(batch.documents[s])))
    assert len(seen) > 50
    return seen, labels


def test_nsp_labels(corpus, tokenizer):
    """Label 0: B directly follows A in the same document. Label 1: B begins in another document."""
    objective, context = setting(corpus, tokenizer, nsp=1)
    seen, labels = pairs(objective, context, Packing(corpus.train, 32, 4096))
    assert 0.35 < labels[labels != NO_PAIR].mean() < 0.65
    for first, second, label, text, document in seen:
        assert place(first, text) is not None
        starts = [start for d, start in places(corpus.train, first) if d == document]
        assert starts
        elsewhere = places(corpus.train, second)
        assert elsewhere
        if label == 0:
            assert any((document, start + len(first)) in elsewhere for start in starts)
        else:
            assert any(d != document for d, _ in elsewhere)
            assert place(first + second, text) is None


@pytest.mark.parametrize("name", ["nsp", "sop"])
def test_no_half_word_gives_the_label_away(corpus, tokenizer, name):
    """Chunks may begin and end inside words. Pairs do not, on either side and for either label."""
    objective, context = setting(corpus, tokenizer, **{name: 1})
    packing = Packing(corpus.train, 32, 4096)
    continues = np.array([token.startswith("##") for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))])
    assert any(continues[ids[1]] for ids in _split(packing.batch(0)))  # there are such chunks
    every = corpus.train.take(np.array([0]), np.array([corpus.train.tokens]))[0]
    seen, _ = pairs(objective, context, packing)
    for first, second, _, _, _ in seen:
        for side in (first, second):
            assert not continues[side[0]]
            behind = [corpus.train.ends[d] + i + len(side) for d, i in places(corpus.train, side)]
            assert any(not continues[every[i % len(every)]] for i in behind)


def test_sop_labels(corpus, tokenizer):
    """Label 0: A, then B, in text order. Label 1: the same two segments in reverse order."""
    objective, context = setting(corpus, tokenizer, sop=1)
    seen, labels = pairs(objective, context, Packing(corpus.train, 32, 4096))
    assert 0.35 < labels[labels != NO_PAIR].mean() < 0.65
    for first, second, label, text, document in seen:
        ordered = first + second if label == 0 else second + first
        assert place(ordered, text) in range(1, 8)  # behind the first word
        assert any(d == document for d, _ in places(corpus.train, ordered))


@pytest.mark.parametrize("name", ["nsp", "sop"])
def test_a_pair_does_not_depend_on_its_batch(corpus, tokenizer, name):
    objective, context = setting(corpus, tokenizer, **{name: 1})
    packing = Packing(corpus.train, 32, 4096)
    whole, labels = objective.pair_up(packing.batch(0), context)
    half, same_labels = objective.pair_up(packing.batch(0, 1, 2), context)
    assert labels[-len(same_labels) :].tolist() == same_labels.tolist()
    assert whole.input_ids[-len(half.input_ids) :].tolist() == half.input_ids.tolist()
    epoch = int(np.ceil(packing.epoch_tokens / packing.step_tokens))
    later, _ = objective.pair_up(packing.batch(epoch), context)
    assert set(map(tuple, _split(later))) != set(map(tuple, _split(whole)))  # and is drawn anew in every epoch


def test_pairs_are_static_where_masks_are(corpus, tokenizer):
    objective, context = setting(corpus, tokenizer, dynamic=False, nsp=1)
    packing = Packing(corpus.train, 32, 4096)

    def every(epoch):
        steps = [packing.batch(epoch * int(np.ceil(packing.epoch_tokens / packing.step_tokens)) + i) for i in range(3)]
        made = [(batch, objective.pair_up(batch, context)[0]) for batch in steps]
        return {int(c): ids for b, p in made for c, ids in zip(b.chunks, _split(p), strict=True)}

    once, again = every(0), every(1)
    assert len(once.keys() & again.keys()) > 50
    assert all(once[chunk] == again[chunk] for chunk in once.keys() & again.keys())


def place(piece, text):
    """Offset of one list inside the other."""
    return next((i for i in range(len(text)) if text[i : i + len(piece)] == piece), None)


def _split(batch):
    return [piece.tolist() for piece in np.split(batch.input_ids, np.cumsum(batch.lengths)[:-1])]


def test_one_label_a_pair():
    with pytest.raises(ValueError, match="one label"):
        Objectives(nsp=1, sop=1)
