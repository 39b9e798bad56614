"""Prediction on files: row order, resuming, bad rows, and all formats."""

import csv
import json
import os

import pyarrow
import pytest
from pyarrow import parquet

from debertakit.inference import files, predictor
from debertakit.inference.files import predict_file
from debertakit.inference.tasks import OptionChooser, PairScorer, TextClassifier, ZeroShotClassifier
from tests.inference import material
from tests.inference.material import LABELS, NLI, TEXTS


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
    with pytest.raises(ValueError, match="already exists"):
        predict_file(predict, tmp_path / "in.jsonl", tmp_path / "out.jsonl")


def read_wide(path):
    """Read a file with cells longer than the default csv limit."""
    before = csv.field_size_limit(1 << 24)
    try:
        return read(path)
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize("out", ["csv", "tsv"])
def test_one_header_for_rows_with_other_columns(tmp_path, predict, out):
    rows = [{"text": "the cat", "a": str(i)} for i in range(9)]
    rows += [{"b": f"b{i}", "text": "a dog", "list": ["x", i]} for i in range(9)]
    write(tmp_path / "in.jsonl", rows)
    predict_file(predict, tmp_path / "in.jsonl", tmp_path / f"out.{out}")
    found = read(tmp_path / f"out.{out}")
    assert list(found[0]) == ["text", "a", "b", "list", "prediction", "details", "error"]
    assert [row["a"] for row in found] == [*map(str, range(9)), *[""] * 9]
    assert [row["b"] for row in found[9:]] == [f"b{i}" for i in range(9)]
    assert json.loads(found[10]["list"]) == ["x", 1]
    assert {row["prediction"] for row in found} <= set(LABELS["label2id"])


@pytest.mark.parametrize("out", ["csv", "jsonl", "parquet"])
def test_long_cells(tmp_path, predict, out):
    csv.field_size_limit(131_072)  # Python's default, which an earlier test may have changed
    write(tmp_path / "in.jsonl", [{"text": "the cat", "note": "x" * 200_000}] * 2)
    assert predict_file(predict, tmp_path / "in.jsonl", tmp_path / f"out.{out}").rows == 2
    assert [len(row["note"]) for row in read_wide(tmp_path / f"out.{out}")] == [200_000] * 2


def test_parquet_keeps_the_types_of_its_source(tmp_path, predict):
    kinds = [("text", pyarrow.large_string()), ("n", pyarrow.int16()), ("when", pyarrow.timestamp("ms", "UTC"))]
    kinds += [("cost", pyarrow.decimal128(9, 2)), ("some", pyarrow.list_(pyarrow.float32()))]
    kinds += [("kind", pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))]
    values = [
        [" ", "the cat", "a dog"] * 5,
        [None] * 14 + [3],
        [None] * 15,
        [None] * 15,
        [[1.5], None, []] * 5,
        ["x"] * 15,
    ]
    schema = pyarrow.schema(kinds, metadata={"made": "by hand"})
    source = pyarrow.table([pyarrow.array(v, k) for v, (_, k) in zip(values, kinds, strict=True)], schema=schema)
    parquet.write_table(source, tmp_path / "in.parquet", row_group_size=4)
    counts = predict_file(predict, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert (counts.rows, counts.errors) == (15, 5)
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.select(range(6)).equals(source)
    assert found.schema.metadata[b"made"] == b"by hand"
    assert found.schema.types[6:] == [pyarrow.string()] * 3
    score = PairScorer(material.model("SequenceClassification", num_labels=1), material.tokenizer())
    predict_file(score, tmp_path / "in.parquet", tmp_path / "scores.parquet", columns={"pair": "kind"})
    assert parquet.read_schema(tmp_path / "scores.parquet").field("prediction").type == pyarrow.float64()


def test_parquet_of_rows_whose_types_differ(tmp_path, predict):
    rows = [{"text": "the cat", "rises": 1, "mixed": 1, "object": {"a": 1}, "nothing": {}, "large": 2**60 + 1}] * 8
    rows += [{"text": "a dog", "rises": 0.5, "mixed": "one", "object": {"b": "x"}, "large": 0.5, "late": "l"}] * 8
    write(tmp_path / "in.jsonl", rows)
    predict_file(predict, tmp_path / "in.jsonl", tmp_path / "out.parquet")
    found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert (found[0]["rises"], found[9]["rises"]) == (1.0, 0.5)
    assert (found[0]["mixed"], found[9]["mixed"]) == ("1", '"one"')
    assert (found[0]["object"], found[9]["object"]) == ({"a": 1, "b": None}, {"a": None, "b": "x"})
    assert (found[0]["nothing"], found[9]["nothing"]) == ("{}", None)
    assert (found[0]["large"], found[9]["large"]) == (str(2**60 + 1), "0.5")
    assert (found[0]["late"], found[9]["late"]) == (None, "l")
    assert [row["text"] for row in found] == [row["text"] for row in rows]


def test_suffixes_in_capitals(tmp_path, predict):
    (tmp_path / "IN.CSV").write_text('text\n"the cat, a ""dog"""\n', encoding="utf-8")
    predict_file(predict, tmp_path / "IN.CSV", tmp_path / "OUT.JSONL")
    row = json.loads((tmp_path / "OUT.JSONL").read_text())
    assert row["text"] == 'the cat, a "dog"'
    for name in ("OUT.PARQUET", "OUT.CSV", "OUT.TSV"):
        predict_file(predict, tmp_path / "IN.CSV", tmp_path / name)
    assert parquet.read_table(tmp_path / "OUT.PARQUET").column("text").to_pylist() == [row["text"]]
    assert (tmp_path / "OUT.CSV").read_text().startswith("text,prediction,")
    assert (tmp_path / "OUT.TSV").read_text().startswith("text\tprediction\t")


def test_lists_are_for_labels_and_options(tmp_path, predict):
    (tmp_path / "in.csv").write_text('text\n"[""a"", ""b""]"\n', encoding="utf-8")
    assert predict_file(predict, tmp_path / "in.csv", tmp_path / "out.jsonl").errors == 0
    (tmp_path / "in.jsonl").write_text('{"text": ["a", "b"]}\n{"text": ["a", "b", "c"]}\n{"text": null}\n')
    predict_file(predict, tmp_path / "in.jsonl", tmp_path / "lists.jsonl")
    said = [row["error"].partition(": ")[2] for row in read(tmp_path / "lists.jsonl")]
    assert said == ["text must be text, not list"] * 2 + ["text is missing"]
    choose = OptionChooser(material.model("MultipleChoice"), material.tokenizer())
    write(tmp_path / "options.tsv", [{"text": "Ann", "options": o} for o in ('[ "a", "the"]', "a, the", "")])
    predict_file(choose, tmp_path / "options.tsv", tmp_path / "chosen.jsonl")
    rows = read(tmp_path / "chosen.jsonl")
    assert rows[0]["prediction"] in ("a", "the")
    assert "write a list as JSON" in rows[1]["error"]
    assert "options is missing" in rows[2]["error"]


def interrupted(work, blocks, monkeypatch):
    """Run ``work`` and interrupt it with Ctrl-C after ``blocks`` blocks."""
    original, left = predictor.Predictor.run, [None] * blocks

    def run(self, rows):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return original(self, rows)

    with monkeypatch.context() as patched:
        patched.setattr(predictor.Predictor, "run", run)
        with pytest.raises(KeyboardInterrupt):
            work()


def test_a_job_is_its_options_and_the_files_of_its_model_too(tmp_path, monkeypatch):
    write(tmp_path / "in.jsonl", [{"text": row["words"]} for row in ROWS])
    folder = material.saved(tmp_path / "m", "SequenceClassification", id2label=NLI, num_labels=3)
    model = material.model("SequenceClassification", id2label=NLI, num_labels=3)

    def run(labels=("cat", "dog"), **options):
        zero_shot = ZeroShotClassifier(model, material.tokenizer(), labels=labels, **options)
        return predict_file(zero_shot, tmp_path / "in.jsonl", tmp_path / "out.jsonl", name=str(folder))

    interrupted(run, 1, monkeypatch)
    for options in ({"labels": ("cat", "film")}, {"template": "a {}"}, {"max_length": 32}, {"long": "cut"}):
        with pytest.raises(ValueError, match="another job"):
            run(**options)
    weights = folder / "model.safetensors"
    stat = weights.stat()
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))
    with pytest.raises(ValueError, match="another job"):
        run()
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert run().rows == 30


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
    assert asked == [7, 7, 7, 7, 7, 2]  # two blocks and an interrupted one; then that one again and the rest
    assert out.read_bytes() == whole.read_bytes()


def test_mistakes(tmp_path, predict):
    (tmp_path / "in.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no column 'text'; there are a, b"):
        predict_file(predict, tmp_path / "in.csv", tmp_path / "out.csv")
    (tmp_path / "empty.csv").write_text("text\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no rows"):
        predict_file(predict, tmp_path / "empty.csv", tmp_path / "out.csv")
    assert not list(tmp_path.glob("out*"))  # no files block the next attempt
    with pytest.raises(ValueError, match="no such file"):
        predict_file(predict, tmp_path / "none.csv", tmp_path / "x.csv")
    with pytest.raises(ValueError, match=r"\.jsonl, \.csv"):
        predict_file(predict, tmp_path / "in.csv", tmp_path / "x.xlsx")


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        ("text,other", {"pair": "hypotesis"}, r"no column 'hypotesis'; there are text, other \(--column pair=NAME\)"),
        ("text,other", {"pear": "other"}, "--column pear=other: this task reads text, pair"),
        ("text,details", {}, "the input has a column 'details', which the output adds; rename it"),
    ],
)
def test_columns_that_are_refused(tmp_path, predict, header, columns, message):
    (tmp_path / "in.csv").write_text(f"{header}\na,b\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        predict_file(predict, tmp_path / "in.csv", tmp_path / "out.csv", columns=columns)
    assert not list(tmp_path.glob("out*"))


def test_a_folder_that_is_none_of_ours_stays(tmp_path, predict):
    (tmp_path / "in.csv").write_text("text\na\n", encoding="utf-8")
    (tmp_path / "out.csv.parts").mkdir()
    (tmp_path / "out.csv.parts" / "mine").write_text("dear to me")
    with pytest.raises(ValueError, match="already exists and was not written by a job"):
        predict_file(predict, tmp_path / "in.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv.parts" / "mine").read_text() == "dear to me"
    (tmp_path / "out.csv.parts" / "mine").unlink()
    assert predict_file(predict, tmp_path / "in.csv", tmp_path / "out.csv").rows == 1
