"""Guessed columns, on tables as people have them."""

import json

import pytest

from debertakit.data.guessing import column_names, guess_line, is_table, resolve_columns
from tests.material import jsonl, lines, tsv

REVIEWS = [f"a film about {word} that I saw" for word in "love war food music trains cats dogs rain sun snow".split()]


def table(path, header, *columns):
    """A CSV with these columns, four times over."""
    rows = list(zip(*columns, strict=True)) * 4
    return lines(path, *([",".join(header)] if header else []), *(",".join(map(str, row)) for row in rows))


def guess(path, **given):
    return resolve_columns(path, given)


@pytest.mark.parametrize(
    ("header", "columns", "found"),
    [
        (("review", "stars"), (REVIEWS, [1, 5] * 5), {"text": "review", "label": "stars"}),
        (("id", "Sentiment", "Text"), (range(10), ["pos", "neg"] * 5, REVIEWS), {"text": "Text", "label": "Sentiment"}),
        # no known name: the fewest values, the longest cells
        (("c1", "c2", "c3"), (range(10), REVIEWS, ["x", "y"] * 5), {"text": "c2", "label": "c3"}),
        (("user_comment", "is_spam"), (REVIEWS, [0, 1] * 5), {"text": "user_comment", "label": "is_spam"}),
        (("内容", "标签"), (REVIEWS, ["好", "差"] * 5), {"text": "内容", "label": "标签"}),
        (
            ("premise", "hypothesis", "label"),
            (REVIEWS, REVIEWS[::-1], ["yes", "no"] * 5),
            {"text": "premise", "pair": "hypothesis", "label": "label"},
        ),
        (
            ("title_a", "title_b", "score"),
            (REVIEWS, REVIEWS[::-1], [i / 10 for i in range(10)]),
            {"text": "title_a", "pair": "title_b", "label": "score"},
        ),
        # without a header: a number, or a value that occurs again
        ((), (REVIEWS, ["pos", "neg"] * 5), {"text": "1", "label": "2"}),
        ((), ([0, 1] * 5, REVIEWS), {"text": "2", "label": "1"}),
    ],
)
def test_tables(header, columns, found, tmp_path):
    assert guess(table(tmp_path / "a.csv", header, *columns)) == found


def test_other_formats(tmp_path):
    rows = [{"n": i, "review": text, "tags": ["a", "b"][: i % 3]} for i, text in enumerate(REVIEWS)]
    expected = {"text": "review", "label": "tags"}
    assert guess(jsonl(tmp_path / "a.jsonl", rows)) == expected
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert guess(tmp_path / "a.json") == expected
    upper = table(tmp_path / "A.CSV", ("review", "stars"), REVIEWS, [1, 5] * 5)
    assert guess(upper) == {"text": "review", "label": "stars"}
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert guess(tmp_path / "a.parquet") == expected


def test_given_columns_are_kept_and_the_others_are_guessed(tmp_path):
    path = table(
        tmp_path / "a.csv", ("title", "body", "stars"), REVIEWS, [f"{text} twice" for text in REVIEWS], [1, 5] * 5
    )
    assert guess(path, text="title") == {"text": "title", "label": "stars"}
    found = guess(path, label="stars")
    assert found == {"text": "body", "label": "stars"}
    line = guess_line(path, {"label": "stars"}, found)
    assert line == f"{path}: guessed the columns text = 'body'; to override: --text NAME"
    assert guess_line(path, found, found) == ""


def test_conll_and_squad_have_no_columns(tmp_path):
    conll = lines(tmp_path / "a.txt", "Ann B-PER", "sings O", "", "Rome B-LOC")
    tabs = tsv(tmp_path / "a.tsv", ("Ann", "B-PER"), ("sings", "O"))
    squad = tmp_path / "a.json"
    squad.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": []}]}))
    for path in (conll, tabs, squad, lines(tmp_path / "a.conll", "not tagged")):
        assert not is_table(path)
        assert guess(path) == {}
        assert column_names(path) == []
    assert is_table(tsv(tmp_path / "b.tsv", ("text", "label"), ("a b", "x")))
    rows = tmp_path / "b.json"
    rows.write_text(json.dumps({"data": [{"text": "a b", "label": "x"}]}))
    assert column_names(rows) == ["text", "label"]


@pytest.mark.parametrize(
    ("header", "columns", "given", "message"),
    [
        (
            ("review", "stars"),
            (REVIEWS, [1, 5] * 5),
            {"text": "reveiw"},
            r"no column 'reveiw'.*did you mean 'review'\?",
        ),
        (("review",), (REVIEWS,), {}, "cannot tell which column is the label: pass --label NAME; it has 'review'"),
        (("id", "label"), (range(10), [0, 1] * 5), {}, "cannot tell which column is the text: pass --text NAME"),
        ((), (REVIEWS, [1, 5] * 5), {"text": "review"}, "if the file has no header, give column numbers"),
    ],
)
def test_what_cannot_be_guessed_is_said_in_one_line(header, columns, given, message, tmp_path):
    path = table(tmp_path / "a.csv", header, *columns)
    with pytest.raises(ValueError, match=message) as raised:
        guess(path, **given)
    assert "\n" not in str(raised.value)


def test_a_missing_file_with_a_similar_name(tmp_path):
    lines(tmp_path / "reviews.csv", "text,label")
    with pytest.raises(ValueError, match=r"review.csv: no such file \(did you mean 'reviews.csv'\?\)"):
        guess(tmp_path / "review.csv")
