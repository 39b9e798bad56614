"""Pairs of texts and their labels, worked out again from the corpus: where in it do the two halves stand?"""

import numpy as np
import pytest

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives
from debertakit.objectives.base import Context
from debertakit.objectives.pairs import NO_PAIR, SHORTEST
from debertakit.pretraining.trainee import Trainee
from debertakit.text.masking import Masking
from debertakit.text.packing import Packing
from tests.conftest import small


def setting(corpus, tokenizer, **weights):
    trainee = Trainee(DebertaForMaskedLM(small(vocab_size=len(tokenizer))), Objectives(**weights))
    return next(o for name, o in trainee.objectives.items() if name != "mlm"), Context(corpus.train, Masking(), seed=3)


def places(shards, piece):
    """Everywhere that these tokens stand in the corpus: (document, place within it), boundaries crossed or not."""
    every = shards.take(np.array([0]), np.array([shards.tokens]))[0].tolist()
    every += every[:64]  # the end goes on at the beginning
    found = [i for i in range(shards.tokens) if every[i : i + len(piece)] == piece]
    documents = [int(np.searchsorted(shards.ends, i, side="right")) - 1 for i in found]
    return [(d, i - int(shards.ends[d])) for d, i in zip(documents, found, strict=True)]


def pairs(objective, context, packing):
    """Each sequence before and after, with its label, and the document it is from."""
    batch = packing.batch(0)
    paired, labels = objective.pair_up(batch, context)
    assert paired.lengths.tolist() == batch.lengths.tolist()
    separator = context.shards.vocabulary["sep"]
    seen, end = [], 0
    for s, length in enumerate(batch.lengths):
        begin, end = end, end + length
        was, now = batch.input_ids[begin:end].tolist(), paired.input_ids[begin:end].tolist()
        if labels[s] == NO_PAIR:
            assert length < SHORTEST
            assert now == was
            continue
        assert [i for i, token in enumerate(now) if token == separator][1:] == [length - 1]
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
    """Label 0: B stands right behind A, in A's document. Label 1: B begins in another document."""
    objective, context = setting(corpus, tokenizer, nsp=1)
    seen, labels = pairs(objective, context, Packing(corpus.train, 32, 4096))
    assert 0.35 < labels[labels != NO_PAIR].mean() < 0.65
    for first, second, label, text, document in seen:
        assert first == text[: len(first)]
        starts = [start for d, start in places(corpus.train, first) if d == document]
        assert starts
        elsewhere = places(corpus.train, second)
        assert elsewhere
        if label == 0:
            assert any((document, start + len(first)) in elsewhere for start in starts)
        else:
            assert any(d != document for d, _ in elsewhere)
            assert second != text[len(first) : len(first) + len(second)]


def test_a_foreign_text_begins_with_a_word(corpus, tokenizer):
    """Else half a word in front would give the label away."""
    objective, context = setting(corpus, tokenizer, nsp=1)
    seen, _ = pairs(objective, context, Packing(corpus.train, 32, 4096))
    begins = {label: set() for label in (0, 1)}
    for _, second, label, _, _ in seen:
        begins[label].add(tokenizer.convert_ids_to_tokens(second[0]).startswith("##"))
    assert begins == {0: {False}, 1: {False}}
    everything = corpus.train.take(np.array([0]), np.array([corpus.train.tokens]))[0]
    assert any(token.startswith("##") for token in tokenizer.convert_ids_to_tokens(everything.tolist()))


def test_sop_labels(corpus, tokenizer):
    """Label 0: A, then B, as the text goes on. Label 1: the same two, the other way round."""
    objective, context = setting(corpus, tokenizer, sop=1)
    seen, labels = pairs(objective, context, Packing(corpus.train, 32, 4096))
    assert 0.35 < labels[labels != NO_PAIR].mean() < 0.65
    for first, second, label, text, document in seen:
        ordered = first + second if label == 0 else second + first
        assert ordered == text[:-1]
        assert any(d == document for d, _ in places(corpus.train, ordered))


@pytest.mark.parametrize("name", ["nsp", "sop"])
def test_a_pair_does_not_depend_on_its_batch(corpus, tokenizer, name):
    objective, context = setting(corpus, tokenizer, **{name: 1})
    packing = Packing(corpus.train, 32, 4096)
    whole, labels = objective.pair_up(packing.batch(0), context)
    half, same_labels = objective.pair_up(packing.batch(0, 1, 2), context)
    assert labels[-len(same_labels) :].tolist() == same_labels.tolist()
    assert whole.input_ids[-len(half.input_ids) :].tolist() == half.input_ids.tolist()
    epoch = int(np.ceil(packing.steps_per_epoch))
    later, _ = objective.pair_up(packing.batch(epoch), context)
    assert set(map(tuple, _split(later))) != set(map(tuple, _split(whole)))  # and is drawn anew in every epoch


def _split(batch):
    return [piece.tolist() for piece in np.split(batch.input_ids, np.cumsum(batch.lengths)[:-1])]


def test_one_label_a_pair():
    with pytest.raises(ValueError, match="one label"):
        Objectives(nsp=1, sop=1)
