"""Sources with weights: every step has each source's share of tokens, in any number of parts, and nothing is lost."""

import numpy as np
import pytest

from debertakit.pretraining.from_text import parse_sources
from debertakit.text.corpus import Corpus, prepare
from debertakit.text.packing import Packing
from tests.text.material import ARTICLES, byte_level

LENGTH, STEP = 32, 1024
FIRST, SECOND = ARTICLES[:60], ARTICLES[60:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    for name, articles in (("a", FIRST), ("b", SECOND)):
        (folder / name).mkdir()
        (folder / name / "text.txt").write_text("\n\n".join(articles))
    return folder


@pytest.fixture(scope="module")
def corpus(folder):
    sources = [folder / "a" / "text.txt", folder / "b" / "text.txt"]
    return prepare(sources, byte_level(), folder / "corpus", validation=0.1, max_shard_tokens=400)


def tokens_of(batch, shards):
    """Tokens of each source in a batch."""
    return np.bincount(shards.sources[batch.documents], batch.lengths, 2)


def test_the_documents_know_their_source(corpus, folder):
    assert [source["pieces"] for source in corpus.manifest["sources"]] == [len(FIRST), len(ARTICLES)]
    assert [entry["name"] for entry in corpus.manifest["inputs"]] == ["1/text.txt", "2/text.txt"]
    tokenizer = byte_level()
    for half in (corpus.train, corpus.validation):
        for number in range(len(half)):
            text = tokenizer.decode(half.document(number)[0])
            assert text in (FIRST, SECOND)[half.sources[number]]
    one = prepare(folder / "a" / "text.txt", tokenizer, folder / "one", validation=0)
    assert not one.train.sources.any()


@pytest.mark.parametrize("mode", ["documents", "blocks"])
def test_every_step_has_each_sources_share(corpus, mode):
    packing = Packing(corpus.train, LENGTH, STEP, seed=1, mode=mode, weights=[0.3, 0.7])
    shares = [tokens_of(packing.batch(step), corpus.train) for step in range(12)]
    for share in shares:
        assert share == pytest.approx([0.3 * STEP, 0.7 * STEP], abs=2 * LENGTH)
    assert np.sum(shares, 0) == pytest.approx([12 * 0.3 * STEP, 12 * 0.7 * STEP], abs=2 * LENGTH)  # no drift


def test_the_parts_of_a_step_are_the_step(corpus):
    packing = Packing(corpus.train, LENGTH, STEP, weights=[0.3, 0.7])
    for step in (0, 5, 31):
        whole = packing.batch(step)
        parts = [packing.batch(step, part, 4) for part in range(4)]
        chunks = sorted((c, e) for part in parts for c, e in zip(part.chunks, part.epochs, strict=True))
        assert chunks == sorted(zip(whole.chunks, whole.epochs, strict=True))
        fresh = Packing(corpus.train, LENGTH, STEP, weights=[0.3, 0.7]).batch(step)  # as after a resume
        assert fresh.input_ids.tolist() == whole.input_ids.tolist()


def test_the_small_source_is_repeated_and_each_epoch_is_complete(corpus):
    packing = Packing(corpus.train, LENGTH, STEP, weights=[0.3, 0.7])
    steps = [packing.batch(step) for step in range(40)]
    chunks, epochs = (np.concatenate([getattr(batch, name) for batch in steps]) for name in ("chunks", "epochs"))
    source = corpus.train.sources[np.concatenate([batch.documents for batch in steps])]
    assert epochs[source == 1].max() > epochs[source == 0].max() > 0
    for number in (0, 1):
        for epoch in range(epochs[source == number].max()):
            once = np.sort(chunks[(source == number) & (epochs == epoch)])
            assert once.tolist() == sorted(packing.once(1 << 20)[number].chunks)


def test_a_tiny_weight_leaves_parts_without_its_source(corpus):
    packing = Packing(corpus.train, LENGTH, STEP, weights=[0.99, 0.01])
    found = sum(tokens_of(packing.batch(step, part, 8), corpus.train) for step in range(20) for part in range(8))
    assert found == pytest.approx([20 * 0.99 * STEP, 20 * 0.01 * STEP], abs=2 * LENGTH)


def test_without_weights_the_sources_are_one_text(folder, corpus):
    (folder / "both.txt").write_text("\n\n".join(ARTICLES))
    one = prepare(folder / "both.txt", byte_level(), folder / "both", validation=0.1, max_shard_tokens=400)
    assert [s["files"] for s in one.manifest["shards"]] == [s["files"] for s in corpus.manifest["shards"]]
    ours, theirs = (Packing(each.train, LENGTH, STEP).batch(3) for each in (corpus, one))
    assert ours.input_ids.tolist() == theirs.input_ids.tolist()


def test_a_corpus_of_version_1_has_one_source(corpus, tmp_path, folder):
    from debertakit.text.manifest import read_manifest, write_manifest

    one = prepare(folder / "a" / "text.txt", byte_level(), tmp_path, validation=0)
    manifest = read_manifest(tmp_path)
    del manifest["sources"], manifest["tokenizers"]
    write_manifest(tmp_path, manifest)
    old = Corpus.open(tmp_path)
    assert old.train.source_count == 1
    assert Packing(old.train, LENGTH, STEP, weights=[1.0]).batch(2).input_ids.tolist() == (
        Packing(one.train, LENGTH, STEP).batch(2).input_ids.tolist()
    )


def test_what_is_wrong_is_named(corpus, tmp_path):
    with pytest.raises(ValueError, match="3 weights for a corpus of 2 sources"):
        Packing(corpus.train, LENGTH, STEP, weights=[1, 1, 1])
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "full.txt").write_text("some words")
    with pytest.raises(ValueError, match=r"empty\.txt has no text"):
        prepare([tmp_path / "full.txt", tmp_path / "empty.txt"], byte_level(), tmp_path / "out", validation=0)


def test_sources_of_the_command_line(tmp_path):
    assert parse_sources(["a.txt=0.7", "b.jsonl=.3"]) == (["a.txt", "b.jsonl"], "0.7,.3")
    assert parse_sources(["a.txt", "b.txt"]) == (["a.txt", "b.txt"], None)
    assert parse_sources(["a=b.txt"]) == (["a=b.txt"], None)
    (tmp_path / "c=1").mkdir()
    assert parse_sources([str(tmp_path / "c=1")]) == ([str(tmp_path / "c=1")], None)
    with pytest.raises(ValueError, match=r"a weight .a\.txt=0\.7., or none"):
        parse_sources(["a.txt=0.7", "b.txt"])
