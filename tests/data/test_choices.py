import json

import pytest

from debertakit.data.examples import Choice
from debertakit.data.files import read_choices
from debertakit.tasks.suites import task
from tests.material import jsonl, lines

PASSAGE = {
    "article": "It rained.",
    "questions": ["What happened?", "It _ ."],
    "options": [["rain", "snow"], ["fell", "rose", "slept"]],
    "answers": ["A", "C"],
    "id": "high7.txt",
}


def test_race_in_lines_and_in_the_archives_folders(tmp_path):
    jsonl(tmp_path / "lines" / "train.jsonl", [PASSAGE])
    for split, level in (("train", "high"), ("dev", "middle"), ("test", "high")):
        path = tmp_path / "folders" / "RACE" / split / level / "7.txt"
        lines(path, json.dumps({**PASSAGE, "id": f"{level}7.txt"}))
    expected = [
        Choice("high7.txt-0", "It rained.", "What happened?", ("rain", "snow"), 0),
        Choice("high7.txt-1", "It rained.", "It _ .", ("fell", "rose", "slept"), 2),
    ]
    assert task("race").read(tmp_path / "lines")["train"] == expected
    splits = task("race").read(tmp_path / "folders")
    assert splits["train"] == expected
    assert splits["dev"][0].id == "middle7.txt-0"


def test_race_scores_by_level(tmp_path):
    examples = [Choice(f"{level}{i}.txt-0", "t", "q", ("a", "b"), 0) for level in ("high", "middle") for i in range(2)]
    assert task("race").score(examples, [0, 1, 0, 0]) == {"accuracy": 75, "middle": 100, "high": 50}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ["A", "D"]}, r"label is not one of the options \(question 2: 'D'\)"),
        ({"answers": ["", "A"]}, r"label is not one of the options \(question 1: ''\)"),
        ({"answers": ["A", "AB"]}, r"label is not one of the options \(question 2: 'AB'\)"),
        ({"answers": ["A"]}, "different numbers of questions, options and answers"),
        ({"options": [["rain", ""], ["a", "b", "c"]]}, r"empty text \(question 1\)"),
        ({"article": None}, "unexpected structure"),
    ],
)
def test_race_refuses(tmp_path, change, message):
    jsonl(tmp_path / "train.jsonl", [{**PASSAGE, **change}])
    with pytest.raises(ValueError, match=f"train.jsonl, line 1: {message}"):
        task("race").read(tmp_path)


def test_race_without_some_of_its_folders(tmp_path):
    """Missing folders are skipped. A test set with answers becomes the dev set."""
    for split in ("train", "test"):
        lines(tmp_path / split / "high" / "7.txt", json.dumps(PASSAGE))
    assert set(task("race").read(tmp_path)) == {"train", "dev"}
    lines(tmp_path / "test" / "high" / "7.txt", json.dumps({**PASSAGE, "answers": ["", ""]}))
    splits = task("race").read(tmp_path)
    assert set(splits) == {"train", "test"}
    assert [e.label for e in splits["test"]] == [None, None]


def test_race_files_that_are_no_text_or_no_json(tmp_path, caplog):
    for number in range(40):
        lines(tmp_path / "train" / "high" / f"{number}.txt", json.dumps(PASSAGE))
    for name, content in (("bad", b'{"article": "caf\xe9"}'), ("cut", b'{"article": ')):
        (tmp_path / "train" / "high" / f"{name}.txt").write_bytes(content)
    assert len(task("race").read(tmp_path)["train"]) == 80
    assert "train, file high/bad.txt: not UTF-8 (byte 0xe9); skipped" in caplog.text
    assert "train, file high/cut.txt: not JSON" in caplog.text


def test_swag_is_quoted_csv(tmp_path):
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
    lines(
        tmp_path / "train.csv",
        header,
        '0,v,1,x,"He said ""no"", twice.",He,gold,runs.,"stops, then goes.",sits.,eats.,1',
    )
    lines(tmp_path / "test.csv", header.removesuffix(",label"), "0,v,1,x,A.,He,gold,b,c,d,e")
    splits = task("swag").read(tmp_path)
    options = ("runs.", "stops, then goes.", "sits.", "eats.")
    assert splits["train"] == [Choice("0", 'He said "no", twice.', "He", options, 1)]
    assert splits["test"][0].label is None
    task("swag").write(tmp_path / "out", splits["test"], [3])
    assert (tmp_path / "out").read_text() == "0\t3\n"


COLUMNS = {"text": "q", "options": ["a", "b", "c"], "label": "y"}


def table(tmp_path, *rows):
    return lines(tmp_path / "mine.csv", "q,a,b,c,y", *rows)


@pytest.mark.parametrize(("label", "place"), [("2", 1), ("C", 1), ("c", 1), ("ham", 1), ("0", 0), ("a", 0)])
def test_label_formats_of_own_files(tmp_path, label, place):
    """A number or letter counts the columns; an empty cell is no option."""
    (example,) = read_choices(table(tmp_path, f"What?,egg,,ham,{label}"), **COLUMNS)
    assert example == Choice("0", "What?", "", ("egg", "ham"), place)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("What?,egg,,ham,1", "label is not one of the options"),
        ("What?,egg,,ham,spam", r"label is not one of the options \('spam'\)"),
        ("What?,egg,,ham,7", "label is not one of the options"),
        ("What?,egg,,,0", "fewer than two options"),
        ("What?,egg,ham,spam,", "no label"),
        (",egg,ham,spam,1", "empty text"),
        ("What?,egg,ham", r"fewer columns than the header \(3 of 5\)"),
    ],
)
def test_bad_rows_of_own_files(tmp_path, row, message):
    with pytest.raises(ValueError, match=f"mine.csv, line 2: {message}"):
        read_choices(table(tmp_path, row), **COLUMNS)


def test_options_as_a_list_of_any_length(tmp_path):
    rows = [{"q": "?", "o": ["x", "y"], "y": 1}, {"q": "?", "o": ["x", "y", "z", "w", "v"], "y": "v"}]
    examples = read_choices(jsonl(tmp_path / "m.jsonl", rows), text="q", options=["o"], label="y")
    assert [(len(e.options), e.label) for e in examples] == [(2, 1), (5, 4)]


def test_a_column_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="no column 'd'; it has 'q', 'a', 'b', 'c', 'y'"):
        read_choices(table(tmp_path, "What?,egg,ham,spam,1"), text="q", options=["a", "d"], label="y")
