"""Files in, files out: order, resumption, bad rows, every format."""

import csv
import json

import pyarrow
import pytest
from pyarrow import parquet

from debertakit.inference import files, predictor
from debertakit.inference.files import predict_file
from debertakit.inference.tasks import TextClassifier
from tests.inference import material
from tests.inference.test_tasks import LABELS, TEXTS


@pytest.fixture(scope="module")
def predict():
    return TextClassifier(material.model("SequenceClassification", **LABELS), material.tokenizer())


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(files, "LOOK_AHEAD", 7)


ROWS = [{"id": str(i), "words": f"{TEXTS[i % 5]} {'cat ' * (i % 4)}"} for i in range(30)]


def write(path, rows):
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)


def read(path):
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.parametrize(
    ("source", "out"), [("csv", "jsonl"), ("jsonl", "parquet"), ("parquet", "csv"), ("tsv", "tsv")]
)
def test_every_format_keeps_rows_and_order(tmp_path, predict, source, out):
    write(tmp_path / f"in.{source}", ROWS)
    counts = predict_file(predict, tmp_path / f"in.{source}", tmp_path / f"out.{out}", columns={"text": "words"})
    assert (counts.rows, counts.errors) == (30, 0)
    rows = read(tmp_path / f"out.{out}")
    assert [row["id"] for row in rows] == [row["id"] for row in ROWS]
    for row in rows:
        result = predict(row["words"])
        assert row["prediction"] == result.labels[0]
        details = row["details"] if isinstance(row["details"], dict) else json.loads(row["details"])
        assert details["scores"][0]["score"] == pytest.approx(result.scores[0].score, abs=1e-5)
    assert list(tmp_path.glob("*.parts")) == []


def test_text_lines(tmp_path, predict):
    (tmp_path / "in.txt").write_text("the cat\nthe dog\n", encoding="utf-8")
    predict_file(predict, tmp_path / "in.txt", tmp_path / "out.jsonl")
    assert [row["text"] for row in read(tmp_path / "out.jsonl")] == ["the cat", "the dog"]


def test_bad_rows_are_told_and_do_not_stop_it(tmp_path, predict, capsys):
    lines = [json.dumps({"text": text}) for text in ("the cat", "  ", "a dog")]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, "{broken", json.dumps({"text": "Bob"})]) + "\n")
    counts = predict_file(predict, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (counts.rows, counts.errors) == (4, 2)
    rows = read(tmp_path / "out.jsonl")
    assert [row["error"] for row in rows] == [None, "row 2: text is empty", None, None]
    assert "line 4: not JSON" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there already"):
        predict_file(predict, tmp_path / "in.jsonl", tmp_path / "out.jsonl")


def test_a_run_that_was_cut_off_goes_on(tmp_path, predict, monkeypatch):
    write(tmp_path / "in.jsonl", [{"text": row["words"]} for row in ROWS])
    whole = tmp_path / "whole.jsonl"
    predict_file(predict, tmp_path / "in.jsonl", whole)
    asked = []
    original = predictor.Predictor.run

    def run(self, rows):
        asked.append(len(rows))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return original(self, rows)

    monkeypatch.setattr(predictor.Predictor, "run", run)
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        predict_file(predict, tmp_path / "in.jsonl", out)
    assert not out.exists()
    with pytest.raises(ValueError, match="another job"):
        predict_file(predict, tmp_path / "in.jsonl", out, name="another model")
    predict_file(predict, tmp_path / "in.jsonl", out)
    assert asked == [7, 7, 7, 7, 7, 2]  # two blocks, one cut off, then that one and the rest
    assert out.read_bytes() == whole.read_bytes()


def test_mistakes(tmp_path, predict):
    (tmp_path / "in.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no column 'text'; there are a, b"):
        predict_file(predict, tmp_path / "in.csv", tmp_path / "out.csv")
    (tmp_path / "empty.csv").write_text("text\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no rows"):
        predict_file(predict, tmp_path / "empty.csv", tmp_path / "out.csv")
    assert not list(tmp_path.glob("out*"))  # nothing in the way of the next attempt
    with pytest.raises(ValueError, match="no such file"):
        predict_file(predict, tmp_path / "none.csv", tmp_path / "x.csv")
    with pytest.raises(ValueError, match=r"\.jsonl, \.csv"):
        predict_file(predict, tmp_path / "in.csv", tmp_path / "x.xlsx")
