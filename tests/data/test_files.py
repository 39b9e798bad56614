"""The user's own files, and their errors: skipped and counted, or rejected in one line with file and row."""

import csv
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from debertakit.data.examples import Choice, Question, Tagged, TextExample
from debertakit.data.files import infer_kind, read_table
from debertakit.data.problems import Problems
from debertakit.data.tables import MAX_LINE, quoting_of
from debertakit.tasks.own import own_task
from tests.material import jsonl, lines, tsv

YES_NO = [("text", "label"), *[(f"text {i}", "yes" if i % 2 else "no") for i in range(40)]]


def read(path, **given_):
    return read_table(path, **{"text": "text", "label": "label", **given_})


# ------------------------------------------------------------------------------------------------------------- formats


def test_csv_with_quotes_commas_and_line_ends_in_cells(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfid,Text,label\r\n7,"He said ""no"",\r\ntwice",yes\r\n\r\n8,plain,no\r\n')
    assert read(path) == [
        TextExample("7", 'He said "no",\r\ntwice', label="yes"),
        TextExample("8", "plain", label="no"),
    ]


def test_semicolons(tmp_path):
    assert read(lines(tmp_path / "a.csv", "text;label", "a, b;x", "c;y"))[0] == TextExample("0", "a, b", label="x")


def test_tsv_with_the_texts_own_quotes_and_with_a_spreadsheets(tmp_path):
    own = tsv(tmp_path / "own.tsv", ("text", "label"), ('"Go" on', "x"), ('He "went', "y"))
    assert [e.text for e in read(own)] == ['"Go" on', 'He "went']
    sheet = tsv(tmp_path / "sheet.tsv", ("text", "label"), ('"a ""b""\tc"', "x"), ("d", "y"))
    assert [e.text for e in read(sheet)] == ['a "b"\tc', "d"]
    assert (quoting_of(own), quoting_of(sheet)) == ("none", "csv")


cells = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), include_characters='"\t,\n'), min_size=1, max_size=8
)


def is_label(cell: str) -> bool:
    """NaN is not a label: pandas writes it for a missing value."""
    return cell.strip().lower() not in ("", "nan", "+nan", "-nan")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@given(rows=st.lists(st.tuples(cells.filter(str.strip), cells.filter(is_label)), min_size=1, max_size=5))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_pythons_csv_writes_is_read_back(tmp_path, suffix, rows):
    path = tmp_path / f"a.{suffix}"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="," if suffix == "csv" else "\t", quoting=csv.QUOTE_ALL).writerows(
            [("text", "label"), *rows]
        )
    found = read(path, kind="single-label")
    assert [(e.text, e.label) for e in found] == [(text.strip(), label.strip()) for text, label in rows]


def test_json_lines_json_and_parquet_agree(tmp_path):
    from datasets import Dataset

    rows = [{"text": "a", "other": "b", "label": 1}, {"text": "c", "other": "d", "label": 0}]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "data.json").write_text(json.dumps({"data": rows}, indent=1))
    jsonl(tmp_path / "lines.jsonl", rows)
    jsonl(tmp_path / "lines.json", rows)
    Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    expected = [TextExample("0", "a", "b", "1"), TextExample("1", "c", "d", "0")]
    for path in sorted(tmp_path.iterdir()):
        assert read(path, pair="other") == expected, path.name


def test_columns_by_number_in_a_table_without_header(tmp_path):
    path = tsv(tmp_path / "a.tsv", ("x", "1", "one"), ("y", "0", "two"))
    assert [(e.text, e.label) for e in read_table(path, text="3", label="2")] == [("one", "1"), ("two", "0")]


def test_a_number_in_the_first_row_of_such_a_table_is_no_header(tmp_path):
    path = tsv(tmp_path / "a.tsv", ("1", "a good film"), ("0", "a bad one"))
    assert [(e.text, e.label) for e in read_table(path, text="2", label="1")] == [
        ("a good film", "1"),
        ("a bad one", "0"),
    ]
    named = tsv(tmp_path / "b.tsv", ("2", "1"), ("a good film", "yes"))  # both names: a header after all
    assert [(e.text, e.label) for e in read_table(named, text="2", label="1")] == [("a good film", "yes")]


# --------------------------------------------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["a", "b"], "single-label"),
        (["0", "1", "2"], "single-label"),
        (["1.0", "0.0"], "single-label"),
        ([-1, 0, 1], "single-label"),
        ([True, False], "single-label"),
        (["0.5", "1"], "regression"),
        ([4.75, 5.0], "regression"),
        (["0.5"] * 30 + ["n/a"], "regression"),
        (["0.5", "n/a"], "single-label"),
        (["0.5"] * 30 + ["nan"], "regression"),
        ([["a"], []], "multi-label"),
        ([None, "", "x"], "single-label"),
        (["0", "1", "2"] * 10 + ["nan"], "single-label"),
        ([0, 1, 2, float("nan"), float("inf")], "single-label"),
    ],
)
def test_kind_follows_from_the_labels(labels, kind):
    assert infer_kind(labels) == kind


def test_minus_one_is_a_label_here(tmp_path):
    assert [e.label for e in read(tsv(tmp_path / "a.tsv", ("text", "label"), ("a", -1), ("b", 1)))] == ["-1", "1"]


def test_nan_among_classes_is_no_label(tmp_path, caplog):
    path = tsv(tmp_path / "a.tsv", ("text", "label"), *[(f"text {i}", i % 3) for i in range(40)], ("bad", "nan"))
    assert {e.label for e in read(path)} == {"0", "1", "2"}
    assert "a.tsv, line 42: no label; skipped" in caplog.text


def test_several_labels_as_a_list_or_joined(tmp_path):
    listed = jsonl(tmp_path / "a.jsonl", [{"text": "t", "label": ["x", "y"]}, {"text": "u", "label": []}])
    joined = tsv(tmp_path / "a.tsv", ("text", "label"), ("t", "x|y"), ("u", ""))
    assert [e.label for e in read(listed)] == [("x", "y"), ()]
    assert [e.label for e in read(joined, separator="|")] == [("x", "y"), ()]
    assert [e.label for e in read(joined, kind="multi-label", separator="|")] == [("x", "y"), ()]


def test_scores(tmp_path):
    assert [e.label for e in read(tsv(tmp_path / "a.tsv", ("text", "label"), ("a", "0.5"), ("b", "2")))] == [0.5, 2.0]


def test_own_tasks(tmp_path):
    train = tsv(tmp_path / "train.tsv", *YES_NO)
    test = tsv(tmp_path / "test.tsv", ("text",), ("unlabelled",))
    found = own_task(train, test=test, text="text", label="label")
    splits = found.read(tmp_path)
    assert (found.name, found.kind, found.metric) == ("own", "single-label", "accuracy")
    assert splits["test"] == [TextExample("0", "unlabelled")]
    assert found.metric in found.score(splits["train"], ["yes"] * 40)
    found.write(tmp_path / "out.jsonl", splits["test"], ["yes"])
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"id": "0", "prediction": "yes"}


def test_kinds_of_files(tmp_path):
    conll = own_task(lines(tmp_path / "a.conll", "x B-a", "", "y O"))
    assert (conll.kind, conll.labels) == ("tagging", ("O", "B-a", "I-a"))
    assert isinstance(conll.read(tmp_path)["train"][0], Tagged)
    qas = [{"id": "1", "question": "?", "answers": [{"text": "b", "answer_start": 2}]}]
    squad = {"data": [{"paragraphs": [{"context": "a b", "qas": qas}]}]}
    (tmp_path / "q.json").write_text(json.dumps(squad))
    qa = own_task(tmp_path / "q.json")
    assert (qa.kind, type(qa.read(tmp_path)["train"][0])) == ("qa", Question)
    options = jsonl(tmp_path / "c.jsonl", [{"q": "?", "o": ["x", "y"], "y": 1}])
    choice = own_task(options, text="q", options=["o"], label="y")
    assert (choice.kind, type(choice.read(tmp_path)["train"][0])) == ("choice", Choice)


def test_a_file_to_evaluate_on(tmp_path):
    """Rows that training could not use are kept."""
    qas = [{"id": "1", "question": "?", "answers": [{"text": "elsewhere", "answer_start": -1}]}]
    (tmp_path / "q.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": qas}]}]}))
    found = own_task(None, tmp_path / "q.json")
    assert found.kind == "qa"
    assert found.read(tmp_path)["dev"][0].answers == ("elsewhere",)
    with pytest.raises(ValueError, match="pass at least one file"):
        own_task(None)


# ----------------------------------------------------------------------------------------------------------- bad files


def with_bad(tmp_path, *bad, name="train.tsv"):
    return tsv(tmp_path / name, *YES_NO, *bad)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("", "yes"), "empty text"),
        (("a", ""), "no label"),
        (("a",), "fewer columns than the header (1 of 2)"),
        (("a", "yes", "more"), "more columns than the header (3 for 2)"),
    ],
)
def test_a_bad_row_is_skipped_named_and_counted(tmp_path, caplog, row, message):
    assert len(read(with_bad(tmp_path, row))) == 40
    assert [r.getMessage() for r in caplog.records] == [f"{tmp_path}/train.tsv, line 42: {message}; skipped"]


def test_many_bad_rows_are_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="line 42: empty text; 4 of 44 rows cannot be used") as raised:
        read(with_bad(tmp_path, *[("", "yes")] * 3, ("a", "")))
    assert str(raised.value).endswith("(3 empty text, 1 no label), more than 5%")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"text": "txt"}, "train.tsv: no column 'txt'; it has 'text', 'label'$"),
        ({"label": "class"}, "train.tsv: no column 'class'; it has 'text', 'label'$"),
        ({"pair": "b"}, "train.tsv: no column 'b'; it has 'text', 'label'$"),
        ({"kind": "tagging"}, "a table of texts cannot be read as tagging"),
    ],
)
def test_wrong_columns(tmp_path, given_, message):
    with pytest.raises(ValueError, match=message):
        read(with_bad(tmp_path), **given_)


def test_header_missing(tmp_path):
    path = tsv(tmp_path / "a.tsv", ("a fine film", "1"), ("a dull one", "0"))
    with pytest.raises(ValueError, match=r"no column 'text'; it has 'a fine film', '1' \(if the file has no header"):
        read(path)


@pytest.mark.parametrize("score", ["nan", "inf", "-inf", "much"])
def test_invalid_scores(tmp_path, caplog, score):
    path = tsv(tmp_path / "a.tsv", ("text", "label"), *[(f"t{i}", i / 7) for i in range(1, 30)], ("bad", score))
    assert len(read(path)) == 29
    assert "a.tsv, line 31: " in caplog.text
    assert repr(score) in caplog.text


def test_labels_unseen_in_training(tmp_path, caplog):
    train = read(with_bad(tmp_path))
    dev = with_bad(tmp_path, ("a", "maybe"), name="dev.tsv")
    assert len(read(dev, seen=train)) == 40
    assert "dev.tsv, line 42: label unseen in training ('maybe'); skipped" in caplog.text
    with pytest.raises(ValueError, match=r"b.tsv, line 2: label unseen in training \('Yes'\); 1 of 1 rows"):
        read(tsv(tmp_path / "b.tsv", ("text", "label"), ("a", "Yes")), seen=train)
    several = [TextExample("0", "t", label=("x", "y"))]
    with pytest.raises(ValueError, match=r"unseen in training \('z'\)"):
        read(tsv(tmp_path / "c.tsv", ("text", "label"), ("a", "x|z")), seen=several, separator="|")


def test_labels_that_a_model_does_not_have(tmp_path, caplog):
    path = with_bad(tmp_path, ("a", "maybe"))
    found = own_task(None, path, text="text", label="label", kind="single-label", labels=("no", "yes"))
    assert len(found.read(tmp_path)["dev"]) == 40
    assert "train.tsv, line 42: label unseen in training ('maybe'); skipped" in caplog.text
    dev = lines(tmp_path / "dev.conll", *["x B-a", "y I-a", ""] * 30, "z B-b")
    tagged = own_task(None, dev, kind="tagging", labels=("O", "B-a"))  # the type is known
    assert len(tagged.read(tmp_path)["dev"]) == 30
    assert "dev.conll, sentence 31: label unseen in training (B-b); skipped" in caplog.text


def test_types_of_entities_unseen_in_training(tmp_path):
    train = lines(tmp_path / "train.conll", "x B-a", "y O")
    dev = lines(tmp_path / "dev.conll", "x B-a", "y I-a", "", "z B-b")
    with pytest.raises(ValueError, match=r"dev.conll, sentence 2: label unseen in training \(B-b\); 1 of 2"):
        own_task(train, dev)
    lines(dev, "x B-a", "y I-a")  # a continuation of a known type is known
    assert len(own_task(train, dev).read(tmp_path)["dev"]) == 1


def test_the_dev_set_has_the_kind_of_training(tmp_path):
    """Whole numbers in a small dev file are still scores if training had fractions."""
    train = tsv(tmp_path / "train.tsv", ("text", "label"), ("a", 0.5), ("b", 1))
    dev = tsv(tmp_path / "dev.tsv", ("text", "label"), ("a", 1))
    assert own_task(train, dev, text="text", label="label").read(tmp_path)["dev"][0].label == 1.0


def test_a_column_of_free_text_is_no_label(tmp_path):
    path = tsv(tmp_path / "a.tsv", ("text", "label"), *[(f"t{i}", f"comment {i}") for i in range(30)])
    with pytest.raises(ValueError, match=r"30 different labels in 30 rows .*; is it the right label column"):
        read(path)


def test_a_line_of_100_mb(tmp_path, caplog):
    rows = "\n".join("\t".join(row) for row in YES_NO).encode()
    path = tmp_path / "a.tsv"
    with path.open("wb") as file:
        file.write(rows + b"\n")
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b"\tyes\nlast\tno\n")
    assert MAX_LINE < 100 << 20
    examples = read(path)
    assert examples[-1].text == "last"
    assert len(examples) == 41
    assert "a.tsv, line 42: line longer than 64 MB; skipped" in caplog.text


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl", "json"])
def test_bytes_that_are_not_utf8(tmp_path, caplog, suffix):
    separator = {"tsv": "\t", "csv": ","}.get(suffix)
    if separator:
        rows = [separator.join(row) for row in [*YES_NO, ("caf?", "yes")]]
    else:
        rows = [json.dumps({"text": text, "label": label}) for text, label in [*YES_NO[1:], ("caf?", "yes")]]
    (tmp_path / f"a.{suffix}").write_bytes("\n".join(rows).encode().replace(b"?", b"\xe9"))
    assert len(read(tmp_path / f"a.{suffix}")) == 40
    assert f"a.{suffix}, line {42 if separator else 41}: not UTF-8 (byte 0xe9); skipped" in caplog.text


def test_one_bad_item_of_a_json_list(tmp_path, caplog):
    """Each item is checked separately, not the text of the whole list."""
    rows = [{"text": text, "label": label} for text, label in [*YES_NO[1:], ("caf?", "yes")]]
    (tmp_path / "a.json").write_bytes(json.dumps(rows).encode().replace(b"?", b"\xe9"))
    assert len(read(tmp_path / "a.json")) == 40
    assert "a.json, line 1, item 41: not UTF-8 (byte 0xe9); skipped" in caplog.text
    (tmp_path / "b.json").write_text(json.dumps(rows).replace("?", "\\ud83d"))
    assert len(read(tmp_path / "b.json")) == 40
    assert "b.json, line 1, item 41: lone surrogate; skipped" in caplog.text


def test_a_lone_surrogate(tmp_path, caplog):
    rows = [json.dumps({"text": t, "label": y}) for t, y in YES_NO[1:]]
    read(lines(tmp_path / "a.jsonl", *rows, '{"text": "\\ud83d", "label": "yes"}'))
    assert "a.jsonl, line 41: lone surrogate; skipped" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\tlabel\na\tb\n".encode("utf-16"), "not UTF-8 text"),
        (b"text\tlabel\n\0\tb\n", "not UTF-8 text"),
        (b"PK\x03\x04\0\0\0", "not text but a zip file, such as .xlsx"),
        (b"\x89PNG\r\n\x1a\n\0", "not text but an image"),
    ],
)
def test_not_text(tmp_path, content, message):
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=f"a.tsv: {message}"):
        read(tmp_path / "a.tsv")


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl", "json"])
def test_empty_files(tmp_path, suffix):
    (tmp_path / f"a.{suffix}").write_bytes(b"")
    with pytest.raises(ValueError, match=rf"a.{suffix}: the file (is empty|has no examples)"):
        read(tmp_path / f"a.{suffix}")


def test_json_broken_at_a_line(tmp_path, caplog):
    rows = [json.dumps({"text": t, "label": y}) for t, y in YES_NO[1:]]
    for name in ("a.jsonl", "a.json"):
        caplog.clear()
        assert len(read(lines(tmp_path / name, *rows[:20], '{"text": "x", "label"', *rows[20:]))) == 40
        assert f"{name}, line 21: not JSON" in caplog.text or f"{name}, line 22: not JSON" in caplog.text
    with pytest.raises(ValueError, match=r"b.jsonl, line 1: not a JSON object"):
        read(lines(tmp_path / "b.jsonl", "[1, 2]"))
    with pytest.raises(ValueError, match=r"c.jsonl, line 1: not JSON"):
        read(lines(tmp_path / "c.jsonl", "[" * 100_000))


def test_a_quotation_mark_that_never_closes(tmp_path):
    path = lines(tmp_path / "a.csv", "text,label", "a,x", '"b,y', "c,x")
    with pytest.raises(ValueError, match=r"a.csv, line 3: unclosed quotation mark"):
        read(path)


def test_a_quotation_mark_that_swallows_good_rows(tmp_path, caplog):
    """The mark ends at the next quoted cell, so the rows between them are read again, and only its own row is lost."""
    good = [f"text {i},{'yes' if i % 2 else 'no'}" for i in range(40)]
    path = lines(tmp_path / "a.csv", "text,label", *good[:20], '"never closed,yes', *good[20:], '"quoted, cell",no')
    assert [e.text for e in read(path)] == [*(f"text {i}" for i in range(40)), "quoted, cell"]
    assert f"{path}, line 22: unclosed quotation mark; skipped" in caplog.text
    end = lines(tmp_path / "b.csv", "text,label", *good, '"never closed,yes')
    assert len(read(end)) == 40
    assert f"{end}, line 42: unclosed quotation mark; skipped" in caplog.text


def test_a_quotation_mark_that_closes_by_chance_is_named(tmp_path, caplog):
    """Nobody can know that this cell is not one text, so it is kept."""
    good = [f"text {i},{'yes' if i % 2 else 'no'}" for i in range(40)]
    path = lines(
        tmp_path / "a.csv", "text,label", *good[:20], '"never closed,yes', *good[20:22], 'a 12",no', *good[22:]
    )
    assert len(read(path)) == 39
    assert f"{path}, line 22: unclosed quotation mark? (one cell has 4 lines that look like rows)" in caplog.text
    caplog.clear()
    letter = lines(tmp_path / "b.csv", "text,label", *good, '"Dear all,', "", "I left", "", 'Ann",yes')
    assert read(letter)[-1].text == "Dear all,\n\nI left\n\nAnn"
    assert not caplog.text


def test_excel(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="pip install 'debertakit[xlsx]'")
    book = openpyxl.Workbook()
    for row in (("Text", "label", None), ("a film", 1, None), (None, None, None), ("一部电影", 0, "note")):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx") == [TextExample("0", "a film", label="1"), TextExample("1", "一部电影", label="0")]
    (tmp_path / "b.xlsx").write_text("not a workbook")
    with pytest.raises(ValueError, match=r"b.xlsx: not a readable .xlsx file"):
        read(tmp_path / "b.xlsx")


def test_excel_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(ImportError, match=r"a.xlsx: reading .xlsx needs openpyxl: pip install .*\[xlsx\]'"):
        read(tmp_path / "a.xlsx")


def test_a_damaged_parquet_file(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=r"a.parquet: not a readable Parquet file"):
        read(tmp_path / "a.parquet")


def test_other_suffixes_and_missing_files(tmp_path):
    (tmp_path / "a.docx").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"a.docx: not a table; expected one of .tsv, .csv"):
        read(tmp_path / "a.docx")
    with pytest.raises(ValueError, match=r"b.csv: no such file"):
        own_task(tmp_path / "b.csv", text="a", label="b")
    with pytest.raises(ValueError, match=r"a.docx: not a table"):
        own_task(tmp_path / "a.docx", text="a")


def test_few_lines_however_many_problems(tmp_path, caplog):
    problems = Problems(tmp_path / "a.tsv")
    for number in range(50):
        problems.skip(number, "empty text")
        problems.repair(number, "put right", "so")
    problems.finish(used=1000)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 8
    assert messages[3] == f"{tmp_path}/a.tsv: 50 of 1050 rows: 50 empty text; skipped"
    assert messages[7] == f"{tmp_path}/a.tsv: 50 of 1050 rows: 50 put right"
