"""Text pairs from parallel files and from tables."""

import pytest

from debertakit.data.pairs import Pair, read_pairs

MANY = "x\n" * 40


def test_parallel_files(tmp_path):
    (tmp_path / "a.en").write_text("one\x85two\u2028three\n\n three  four \n" + MANY, encoding="utf-8")
    (tmp_path / "a.de").write_text("eins\nzwei\ndrei vier\n" + MANY, encoding="utf-8")
    pairs = read_pairs(tmp_path / "a.en", tmp_path / "a.de")
    assert pairs[:2] == [Pair("one two three", "eins"), Pair("three four", "drei vier")]  # the empty one was skipped
    assert len(pairs) == 42
    (tmp_path / "b.de").write_text("eins\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a.en has 43 lines and .*b.de 1: they are not parallel"):
        read_pairs(tmp_path / "a.en", tmp_path / "b.de")


@pytest.mark.parametrize("text", ["3", "null", '["a"]'])
def test_a_value_that_is_no_text_is_skipped_and_many_are_refused(tmp_path, text):
    row, file = '{"body": "x y", "subject": "z\u2028z"}\n', tmp_path / "a.jsonl"
    file.write_text(row * 30 + f'{{"body": {text}, "subject": "z"}}\n', encoding="utf-8")
    assert read_pairs(file, fields=("body", "subject")) == [Pair("x y", "z z")] * 30
    file.write_text(row + f'{{"body": {text}, "subject": "z"}}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"a.jsonl, line 2: not a text"):
        read_pairs(file, fields=("body", "subject"))


def test_a_table(tmp_path):
    (tmp_path / "a.csv").write_text('body,subject\n"x, y",z\n', encoding="utf-8")
    assert read_pairs(tmp_path / "a.csv", fields=("body", "subject")) == [Pair("x, y", "z")]
    with pytest.raises(ValueError, match="no column 'title'; it has 'body', 'subject'"):
        read_pairs(tmp_path / "a.csv", fields=("body", "title"))
