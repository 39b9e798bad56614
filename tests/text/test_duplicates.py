"""Exact and near duplicates: against the definition of the Jaccard similarity, and in a prepared corpus."""

import random

import pytest

from debertakit.text.corpus import prepare
from debertakit.text.duplicates import Duplicates, shingles
from tests.text.material import ARTICLES, CHINESE, byte_level

WORDS = [f"word{i}" for i in range(400)]


def jaccard(a: str, b: str) -> float:
    """By the definition, from word 5-grams."""
    first, second = ({tuple(text.split()[i : i + 5]) for i in range(len(text.split()) - 4)} for text in (a, b))
    return len(first & second) / len(first | second)


def changed(text: str, words: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    parts = text.split()
    for place in draw.sample(range(len(parts)), words):
        parts[place] = f"new{place}"
    return " ".join(parts)


def test_shingles_of_words_and_of_chinese():
    assert sorted(shingles("One two, THREE four five six")) == [b"one two three four five", b"two three four five six"]
    assert len(shingles("我们喜欢研究")) == 2
    assert shingles("short text") == [b"short text"]


def test_exact_copies_only():
    found = Duplicates()
    assert [found.seen(text) for text in ("a b", "a c", "a b", "a b ")] == [False, False, True, False]


@pytest.mark.parametrize("words", [1, 40])
def test_near_copies_are_those_of_the_definition(words):
    pytest.importorskip("datasketch")
    for seed in range(2):
        text = " ".join(random.Random(seed).choices(WORDS, k=300))
        other = changed(text, words, seed)
        similarity = jaccard(text, other)
        assert not 0.7 < similarity < 0.9  # the estimate from 128 numbers has an error of about 0.05
        found = Duplicates(near=0.8)
        assert not found.seen(text)
        assert found.seen(other) == (similarity > 0.8)


def test_near_copies_in_chinese():
    pytest.importorskip("datasketch")
    text = "".join(CHINESE) * 2
    found = Duplicates(near=0.6)
    assert [found.seen(each) for each in (text, text.replace("今天", "昨天"), CHINESE[1] * 4)] == [False, True, False]


@pytest.mark.parametrize("near", [0.1, 1.0, 80])
def test_a_similarity_that_cannot_be_is_refused(near):
    with pytest.raises(ValueError, match=r"must be at least 0\.3 and less than 1"):
        Duplicates(near)


def test_a_corpus_without_duplicates_resumes_to_the_same_shards(tmp_path):
    pytest.importorskip("datasketch")
    long = " ".join(random.Random(0).choices(WORDS, k=300))
    documents = [*ARTICLES[:20], long, *ARTICLES[:10], changed(long, 2), ARTICLES[30]]
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    tokenizer = byte_level()

    def made(out, drop_duplicates):
        return prepare(
            tmp_path / "a.txt", tokenizer, tmp_path / out, drop_duplicates=drop_duplicates, max_shard_tokens=300
        )

    counts = {drop: made(str(drop), drop).manifest["counts"] for drop in (None, "exact", 0.8)}
    assert [(each["documents"], each["duplicates"]) for each in counts.values()] == [(33, 0), (23, 10), (22, 11)]
    with pytest.raises(ValueError, match="made from other options"):
        made("exact", 0.8)
    whole = made("0.8", 0.8)
    shards = sorted(path.name for path in (tmp_path / "0.8").glob("shard-*"))
    (tmp_path / "0.8" / shards[2] / "tokens.npy").write_bytes(b"")
    again = made("0.8", 0.8)
    assert again.manifest["shards"] == whole.manifest["shards"]
    assert again.manifest["counts"] == whole.manifest["counts"]


def test_a_long_document_is_dropped_as_a_whole(tmp_path):
    long = "one two three four " * 60_000  # read in several parts
    (tmp_path / "a.txt").write_text(f"{long}\n\n{long}\n\nthe end")
    corpus = prepare(tmp_path / "a.txt", byte_level(), tmp_path / "out", drop_duplicates="exact", validation=0)
    assert (corpus.manifest["counts"]["documents"], corpus.manifest["counts"]["duplicates"]) == (2, 1)
