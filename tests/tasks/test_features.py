import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debertakit.data.examples import Choice, Question, Tagged, TextExample
from debertakit.model import IGNORED
from debertakit.tasks.features import (
    ExampleEncoder,
    choose_length,
    find_labels,
    most_central,
    window_starts,
    word_pieces,
)
from debertakit.text.tokenizer_training import train_tokenizer
from tests import tiny

TOKENIZER = tiny.tokenizer()
WORDS = st.lists(
    st.sampled_from([*tiny.FILLERS, "films", "unknowns", "xyzzy", "\u200b", "中"]), min_size=1, max_size=40
)


def encoder(kind, labels=(), max_length=64):
    return ExampleEncoder(kind, TOKENIZER, labels, max_length)


def spelled(ids):
    return TOKENIZER.convert_ids_to_tokens(ids)


def test_texts_are_read_as_the_tokenizer_reads_them():
    pair = TextExample("0", "the film", "was good", "b")
    features = encoder("single-label", ("a", "b")).encode([TextExample("1", "the film", None, "a"), pair])
    single, double = features.rows
    assert spelled(single.ids[0]) == ["[CLS]", "the", "film", "[SEP]"]
    assert spelled(double.ids[0]) == ["[CLS]", "the", "film", "[SEP]", "was", "good", "[SEP]"]
    assert double.segments == [[0, 0, 0, 0, 1, 1, 1]]
    assert [row.label for row in features.rows] == [0, 1]
    assert features.cut == 0


def test_long_texts_are_truncated_and_counted():
    cutting = replace(encoder("single-label", ("a",), max_length=5), long="cut")
    features = cutting.encode([TextExample("0", "the film was good", None, "a")])
    assert spelled(features.rows[0].ids[0]) == ["[CLS]", "the", "film", "was", "[SEP]"]
    assert features.cut == 1


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("length", [8, 9, 12])
def test_pairs_are_truncated_as_the_tokenizer_truncates_them(side, length, monkeypatch):
    monkeypatch.setattr(TOKENIZER, "truncation_side", side)
    texts = [(tiny.FILLERS[0] + " film" * first, "the" + " good" * second) for first in range(9) for second in range(9)]
    cutting = replace(encoder("single-label", max_length=length), long="cut")
    rows = cutting.encode([TextExample("0", *both) for both in [*texts, ("the film was good " * 9, None)]]).rows
    expected = [TOKENIZER(*both, truncation=True, max_length=length) for both in [*texts, ("the film was good " * 9,)]]
    assert [row.ids[0] for row in rows] == [each["input_ids"] for each in expected]
    assert [row.segments[0] for row in rows] == [each["token_type_ids"] for each in expected]


def test_the_tokenizer_does_not_keep_what_is_truncated(monkeypatch):
    """It would keep all combinations of the windows of both texts: 9 GB for two texts of 16,000 characters."""
    encodings = []

    def call(self, *texts, **options):
        encoded = plain(self, *texts, **options)
        encodings.extend(encoded.encodings)
        return encoded

    plain = type(TOKENIZER).__call__
    monkeypatch.setattr(type(TOKENIZER), "__call__", call)
    long = "the film " * 100
    row = replace(encoder("choice"), long="cut").encode([Choice("0", long, "", (long, "was good"))]).rows[0]
    assert [len(ids) for ids in row.ids] == [64, 64]
    assert len(encodings) == 2
    assert not any(encoding.overflowing for encoding in encodings)


def test_a_long_text_is_read_in_windows_by_default():
    features = encoder("single-label", ("a",), max_length=5).encode([TextExample("0", "the film was good", None, "a")])
    windows = [spelled(row.ids[0]) for row in features.rows]
    assert windows == [["[CLS]", "the", "film", "was", "[SEP]"], ["[CLS]", "was", "good", "[SEP]"]]
    assert [(row.example, row.label) for row in features.rows] == [(0, 0), (0, 0)]
    assert features.cut == 0


@pytest.mark.parametrize(("kind", "mode"), [("tagging", "cut"), ("qa", "cut"), ("choice", "windows")])
def test_modes_for_long_texts_that_a_kind_does_not_support(kind, mode):
    with pytest.raises(ValueError, match=f"long='{mode}' does not work for {kind}; choose from"):
        replace(encoder(kind), long=mode)


def test_labels_by_kind():
    assert encoder("regression").encode([TextExample("0", "a", None, 2.5)]).rows[0].label == 2.5
    several = encoder("multi-label", ("a", "b", "c")).encode([TextExample("0", "a", None, ("c", "a"))])
    assert several.rows[0].label == [1.0, 0.0, 1.0]
    assert encoder("single-label", ("a",)).encode([TextExample("0", "a")]).rows[0].label is None


def test_an_unknown_label_raises_in_training_and_is_ignored_elsewhere():
    odd = [TextExample("row 7", "a film", None, "z")]
    with pytest.raises(ValueError, match=r"row 7.*'z'"):
        encoder("single-label", ("a", "b")).encode(odd, strict=True)
    assert encoder("single-label", ("a", "b")).encode(odd).rows[0].label == IGNORED


def test_the_first_piece_of_a_word_carries_its_tag():
    example = Tagged("0", ("films", "\u200b", "中", "unknowns"), ("B", "O", "B", "I"))
    (row,) = encoder("tagging", ("O", "B", "I")).encode([example]).rows
    assert spelled(row.ids[0]) == ["[CLS]", "film", "##s", "[UNK]", "中", "un", "##known", "##s", "[SEP]"]
    assert row.label == [-100, 1, -100, 0, 1, 2, -100, -100, -100]
    assert row.places.tolist() == [[0, 1], [1, 3], [2, 4], [3, 5]]


@settings(max_examples=60)
@given(words=WORDS, max_length=st.integers(6, 24))
def test_every_word_is_tagged_once_whatever_the_windows(words, max_length):
    tags = tuple(str(i) for i in range(len(words)))  # its own tag for each word
    rows = encoder("tagging", tags, max_length).encode([Tagged("0", tuple(words), tags)]).rows
    pieces = next(word_pieces([Tagged("0", tuple(words))], TOKENIZER))
    seen = []
    for row in rows:
        assert len(row.ids[0]) <= max_length
        for word, place in row.places:
            assert row.ids[0][place] == pieces[word][0]
            assert row.label[place] == word
            seen.append(word)
        assert sum(label != IGNORED for label in row.label) == len(row.places)
    assert sorted(seen) == list(range(len(words)))


def test_a_word_is_tagged_in_the_window_with_the_most_context():
    words = tuple("the a film was and in of it that one day we saw lives here there".split())
    rows = encoder("tagging", ("O",), 10).encode([Tagged("0", words, ("O",) * 16)]).rows
    for row in rows[:-1]:
        last = max(place for _, place in row.places)
        assert last < len(row.ids[0]) - 2  # something follows the last word that this window tags


@given(length=st.integers(0, 200), room=st.integers(4, 50))
def test_windows_cover_everything_and_overlap(length, room):
    overlap = room // 4
    starts = window_starts(length, room, overlap)
    assert starts[0] == 0
    assert starts[-1] + room >= length
    assert all(b - a <= room - overlap for a, b in pairwise(starts))
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_words_given_one_by_one_get_the_pieces_of_running_text(kind, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the new store opened beside the new mall\n中国人民生活在中国\n" * 40, encoding="utf-8")
    tokenizer = train_tokenizer([text], kind=kind, vocab_size=320, progress=False)
    english = Tagged("0", ("the", "new", "store", "opened", "beside"))
    chinese = Tagged("1", tuple("中国人民"))
    english_pieces, chinese_pieces = word_pieces([english, chinese], tokenizer)
    flat = [piece for word in english_pieces for piece in word]
    assert flat == tokenizer(" ".join(english.words), add_special_tokens=False)["input_ids"]
    for character, pieces in zip(chinese.words, chinese_pieces, strict=True):
        assert tokenizer.decode(pieces).strip() == character
        assert tokenizer.convert_ids_to_tokens(pieces[0]) != "▁"


@settings(max_examples=60)
@given(words=WORDS.filter(lambda w: "\u200b" not in w), at=st.integers(0, 40), max_length=st.integers(16, 40))
def test_answers_are_found_in_every_window_that_holds_them(words, at, max_length):
    words.insert(min(at, len(words)), "paris")
    context = "  ".join(words)
    start = context.index("paris")
    question = Question("0", "where was anna ?", context, ("paris",), (start,))
    rows = encoder("qa", max_length=max_length).encode([question]).rows
    covered = set()
    for row in rows:
        first, last = row.label
        inside = [tuple(span) for span in row.places if span[0] >= 0]
        covered |= set(inside)
        if (start, start + 5) in inside:
            assert context[row.places[first, 0] : row.places[last, 1]] == "paris"
        else:
            assert (first, last) == (0, 0)
        assert row.ids[0][0] == TOKENIZER.cls_token_id
        assert spelled(row.ids[0])[1:6] == ["where", "was", "anna", "?", "[SEP]"]
    assert any(tuple(row.label) != (0, 0) for row in rows)
    assert "".join(context[a:b] for a, b in sorted(covered)).replace(" ", "") == context.replace(" ", "")


def test_questions_without_an_answer_and_without_a_label():
    rows = encoder("qa").encode([Question("0", "who ?", "the film", (), ()), Question("1", "who ?", "the film")]).rows
    assert rows[0].label == [0, 0]
    assert rows[1].label is None
    elsewhere = Question("2", "who ?", "the film", ("bob", "film"), (-1, 4))
    (row,) = encoder("qa").encode([elsewhere]).rows
    assert spelled(row.ids[0])[row.label[0]] == "film"


@pytest.mark.parametrize(("answer", "start"), [(" film", 3), ("film ", 4), (" film ", 3), ("film", 4)])
def test_blanks_at_the_ends_of_an_answer_are_not_part_of_it(answer, start):
    question = Question("0", "what ?", "the film was", (answer,), (start,))
    (row,) = encoder("qa").encode([question]).rows
    assert [spelled(row.ids[0])[place] for place in row.label] == ["film", "film"]
    blank = Question("1", "what ?", "the film was", (" ",), (3,))
    assert encoder("qa").encode([blank]).rows[0].label == [0, 0]


def test_no_room_for_a_word():
    with pytest.raises(ValueError, match="max_length=2 leaves no room for words after 2 special tokens"):
        encoder("tagging", ("O",), 2).encode([Tagged("0", ("film",), ("O",))])
    assert len(encoder("tagging", ("O",), 3).encode([Tagged("0", ("film", "was"), ("O", "O"))]).rows) == 2


def test_a_long_question_leaves_room_for_the_context():
    rows = encoder("qa", max_length=30).encode([Question("0", "where " * 50, "anna lives in paris", (), ())]).rows
    assert all(len(row.ids[0]) <= 30 for row in rows)
    assert spelled(rows[0].ids[0]).count("where") == 10


def test_choices_may_differ_in_number():
    rows = (
        encoder("choice")
        .encode([Choice("0", "the film", "it was", ("good", "bad", "fine"), 2), Choice("1", "", "we saw", ("one",), 0)])
        .rows
    )
    assert [len(row.ids) for row in rows] == [3, 1]
    assert spelled(rows[0].ids[1]) == ["[CLS]", "the", "film", "[SEP]", "it", "was", "bad", "[SEP]"]
    assert spelled(rows[1].ids[0]) == ["[CLS]", "we", "saw", "one", "[SEP]"]
    assert rows[0].label == 2


def test_the_length_fits_nearly_all_examples():
    texts = [TextExample(str(n), "film " * 10, None, "a") for n in range(995)] + [
        TextExample("x", "film " * 40, None, "a")
    ] * 5
    assert choose_length("single-label", TOKENIZER, texts, 512) == 16  # 12 tokens, rounded up to a multiple of 8
    assert choose_length("single-label", TOKENIZER, texts[-20:], 512) == 48
    assert choose_length("single-label", TOKENIZER, texts[-20:], 20) == 20


def test_labels_have_a_fixed_order():
    assert find_labels("single-label", [TextExample("0", "", None, x) for x in ("10", "9", "b", "a")]) == (
        "9",
        "10",
        "a",
        "b",
    )
    assert find_labels("tagging", [Tagged("0", ("a", "b"), ("B-X", "O"))]) == ("O", "B-X")
    assert find_labels("multi-label", [TextExample("0", "", None, ("y", "x")), TextExample("1", "", None, ())]) == (
        "x",
        "y",
    )
    assert find_labels("regression", [TextExample("0", "", None, 1.0)]) == ()


def test_rows_know_their_examples_across_batches():
    many = tiny.sentences(2003)
    rows = encoder("single-label", ("0", "1")).encode(many).rows
    assert [row.example for row in rows] == list(range(2003))
    assert np.mean([row.label for row in rows]) == np.mean([int(e.label) for e in many])


@given(st.integers(0, 300), st.integers(1, 40))
def test_a_word_belongs_to_the_window_with_the_most_context(length, room):
    starts = window_starts(length, room, room // 4)

    def context(place, window):
        return min(place - starts[window], starts[window] + room - 1 - place)

    wanted = [max(range(len(starts)), key=lambda n: context(place, n)) for place in range(length)]
    assert most_central(np.arange(length), starts, room).tolist() == wanted


def test_many_words_take_little_time():
    """50,000 words took 14 seconds: every word was compared with every window."""
    began = time.process_time()
    rows = encoder("tagging", ("O",)).encode([Tagged("", ("a",) * 50_000)]).rows
    assert time.process_time() - began < 5
    assert np.array_equal(np.sort(np.concatenate([row.places[:, 0] for row in rows])), np.arange(50_000))
