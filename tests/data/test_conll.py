import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debertakit.data.conll import bio, looks_like_conll, read_conll, tag_names
from debertakit.data.examples import Tagged
from debertakit.tasks.suites import task
from tests.material import lines


def file(tmp_path, *rows, name="a.conll"):
    return lines(tmp_path / name, *rows)


def test_words_and_last_column(tmp_path):
    path = file(
        tmp_path, "-DOCSTART- -X- O O", "", "EU NNP B-ORG", "rejects VBZ O", "", "", "Peter NNP B-PER", "B. NNP I-PER"
    )
    assert read_conll(path) == [
        Tagged("0", ("EU", "rejects"), ("B-ORG", "O")),
        Tagged("1", ("Peter", "B."), ("B-PER", "I-PER")),
    ]


def test_tabs_with_blank_lines_that_are_not_empty(tmp_path):
    """As in WNUT 17: a single tab between sentences, words that are blank or begin with #."""
    path = file(tmp_path, "# id 17 domain=news", "#tag\tO", "New York\tB-location", "\t", "x\tO", "")
    assert [e.words for e in read_conll(path)] == [("#tag", "New York"), ("x",)]


def test_last_sentence_without_a_line_end_and_crlf(tmp_path):
    (tmp_path / "a.conll").write_bytes(b"\xef\xbb\xbfa O\r\n\r\nb B-x")
    assert read_conll(tmp_path / "a.conll") == [Tagged("0", ("a",), ("O",)), Tagged("1", ("b",), ("B-x",))]


def test_iob1_becomes_bio_without_a_warning(tmp_path, caplog):
    path = file(tmp_path, "a I-PER", "b I-PER", "c B-PER", "d I-LOC", "e O", "f I-LOC")
    with caplog.at_level(logging.WARNING):
        (example,) = read_conll(path)
    assert example.tags == ("B-PER", "I-PER", "B-PER", "B-LOC", "O", "B-LOC")
    assert not caplog.text


def test_broken_bio_is_repaired_and_counted(tmp_path, caplog):
    path = file(tmp_path, "a B-PER", "b I-LOC", "", *["c O", "d I-PER", ""] * 4)
    assert [e.tags for e in read_conll(path)] == [("B-PER", "B-LOC"), *[("O", "B-PER")] * 4]
    assert "a.conll, line 1: I- tag that continues no entity, read as B-" in caplog.text
    assert "a.conll: 5 of 5 rows: 5 I- tag that continues no entity, read as B-" in caplog.text
    assert len(caplog.records) == 4  # three by name, and the count


def test_other_schemes(tmp_path):
    path = file(
        tmp_path, "a B-x", "b I-x", "c E-x", "d S-y", "", "a B-x", "b L-x", "c U-y", "", "a B-x", "b M-x", "c E-x"
    )
    assert [e.tags for e in read_conll(path)] == [
        ("B-x", "I-x", "I-x", "B-y"),
        ("B-x", "I-x", "B-y"),
        ("B-x", "I-x", "I-x"),
    ]


@given(st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"])))
def test_repaired_tags_are_bio_and_stay(tags):
    repaired = bio(tags)
    for before, tag in zip([None, *repaired], repaired, strict=False):
        assert not tag.startswith("I-") or before in ("B" + tag[1:], tag)
    assert bio(repaired) == repaired
    assert [t[1:] for t in repaired] == [t[1:] for t in tags]


@pytest.mark.parametrize("row", ["word", "word NN", "word\tX-PER"])
def test_no_tag(tmp_path, row):
    with pytest.raises(ValueError, match=r"a.conll, line 3: not a word and a BIO tag .*; 1 of 2 rows"):
        read_conll(file(tmp_path, "a O", "", row, "b O"))


def test_a_sentence_that_is_not_utf8_is_skipped(tmp_path):
    (tmp_path / "a.conll").write_bytes(b"a O\n\n" * 30 + b"b O\n\xff O\nc O\n")
    assert len(read_conll(tmp_path / "a.conll")) == 30


def test_a_test_set_needs_no_tags(tmp_path):
    assert read_conll(file(tmp_path, "a", "b"), labelled=False) == [Tagged("0", ("a", "b"))]


@pytest.mark.parametrize("names", [("eng.train", "eng.testa", "eng.testb"), ("train.txt", "valid.txt", "test.txt")])
def test_folder(tmp_path, names):
    for name, word in zip(names, "abc", strict=True):
        file(tmp_path, f"{word} O", name=name)
    splits = task("conll2003").read(tmp_path)
    assert {split: examples[0].words for split, examples in splits.items()} == {
        "train": ("a",),
        "dev": ("b",),
        "test": ("c",),
    }


def test_names_of_the_tags_are_closed_under_continuation():
    assert tag_names([Tagged("0", ("a", "b"), ("B-y", "O")), Tagged("1", ("c",), ("B-x",))]) == (
        "O",
        "B-x",
        "I-x",
        "B-y",
        "I-y",
    )


def test_written_files_are_read_again(tmp_path):
    examples = [Tagged("0", ("a", "b"), ("B-x", "I-x")), Tagged("1", ("c",), ("O",))]
    task("wnut17").write(tmp_path / "out.conll", examples, [e.tags for e in examples])
    assert read_conll(tmp_path / "out.conll") == examples


POS = ("The DET", "dog NOUN", "barks VERB", ". .", "", "Dogs NOUN", "bark VERB")


def test_tags_that_mark_no_entities_are_kept(tmp_path):
    examples = read_conll(file(tmp_path, *POS))
    assert examples == [
        Tagged("0", ("The", "dog", "barks", "."), ("DET", "NOUN", "VERB", ".")),
        Tagged("1", ("Dogs", "bark"), ("NOUN", "VERB")),
    ]
    assert tag_names(examples) == (".", "DET", "NOUN", "VERB")


def test_a_column_can_be_chosen(tmp_path):
    path = file(tmp_path, "EU NNP I-NP B-ORG", "rejects VBZ I-VP O", "", "Ann NNP I-NP B-PER")
    assert [e.tags for e in read_conll(path)] == [("B-ORG", "O"), ("B-PER",)]
    assert [e.tags for e in read_conll(path, column="2")] == [("NNP", "VBZ"), ("NNP",)]
    for wrong in ("pos", "0", "-1"):
        with pytest.raises(ValueError, match="is a column number, from 1"):
            read_conll(path, column=wrong)
    with pytest.raises(ValueError, match="not a word and a BIO tag"):
        read_conll(path, column="9")


def test_conll_u(tmp_path):
    """Comments, words of several tokens (2-3) and empty nodes (4.1) are no words of the sentence."""
    rows = [("1", "I", "PRON"), ("2-3", "don't", "_"), ("2", "do", "AUX"), ("3", "n't", "PART"), ("3.1", "x", "VERB")]
    columns = ["\t".join((number, word, "lemma", tag, "XP", *"_____")) for number, word, tag in rows]
    path = file(tmp_path, "# sent_id = 1", "# text = I don't", *columns, "", columns[0], name="a.conllu")
    assert [(e.words, e.tags) for e in read_conll(path)] == [
        (("I", "do", "n't"), ("PRON", "AUX", "PART")),
        (("I",), ("PRON",)),
    ]
    assert read_conll(path, column="5")[0].tags == ("XP", "XP", "XP")


def test_a_word_that_begins_with_a_hash_is_no_comment(tmp_path):
    path = file(tmp_path, "# a comment about it", "# SYM", "5 NUM", "", "# SYM")
    assert [e.words for e in read_conll(path)] == [("#", "5"), ("#",)]


def test_lines_with_another_number_of_columns_are_skipped(tmp_path, caplog):
    read_conll(file(tmp_path, *["a DET", "b NOUN", ""] * 30, "c", ""))
    assert "line 91: not a word and a tag ('c'); skipped" in caplog.text


def test_a_column_of_words_is_no_column_of_tags(tmp_path):
    with pytest.raises(ValueError, match=r"30 different tags for 30 words .*; is it the right column\?"):
        read_conll(file(tmp_path, *[f"{i} word{i}" for i in range(30)]))


@pytest.mark.parametrize(
    ("rows", "looks"),
    [
        (POS, True),
        (("Ann B-PER", "sings O"), True),
        (("text\tlabel", "a b\tx", "", "c d\ty"), False),
        (("good 1", "", "bad 0", "", "fine 1"), False),
        (("a film", "a good film", "", "a bad one"), False),
    ],
)
def test_what_looks_like_conll(tmp_path, rows, looks):
    assert looks_like_conll(file(tmp_path, *rows, name="a.txt")) is looks
