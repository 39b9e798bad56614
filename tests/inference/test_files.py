"""Prediction on files: row order, resuming, bad rows, and all formats."""

import csv
import json
import os
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from debertakit.files import locked
from debertakit.inference import files, predictor
from debertakit.inference.files import predict_file
from debertakit.inference.tasks import OptionChooser, PairScorer, TextClassifier, ZeroShotClassifier, load
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
        assert float(row["score"]) == details["scores"][0]["score"]
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
    assert list(found[0]) == ["text", "a", "b", "list", "prediction", "score", "details", "error"]
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
    assert found.schema.types[6:] == [pyarrow.string(), pyarrow.float64(), pyarrow.string(), pyarrow.string()]
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


def test_a_job_is_its_options_too(tmp_path, monkeypatch):
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
    assert run().rows == 30


def set_weight(folder, scale):
    state = load_file(folder / "model.safetensors")
    state["classifier.bias"] = state["classifier.bias"] * scale
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def change_tokenizer(folder):
    """Swap the ids of two words. Sizes of the files stay."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["cat"], vocabulary["dog"] = vocabulary["dog"], vocabulary["cat"]
    file.write_text(json.dumps(content), encoding="utf-8")


def keep_time(file, change):
    """Change a file, and give it back its old time."""
    stat = file.stat()
    change()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_job_is_its_input_its_weights_and_its_tokenizer(tmp_path, monkeypatch):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [{"text": row["words"]} for row in ROWS])
    folder = material.saved(tmp_path / "m", "SequenceClassification", **LABELS)

    def run():
        return predict_file(load(folder), source, out, name=str(folder))

    def refused(changed):
        before = sorted(file.name for file in tmp_path.iterdir())
        with pytest.raises(ValueError, match=rf"out.jsonl.parts belongs to another job \(another {changed}\)"):
            run()
        assert sorted(file.name for file in tmp_path.iterdir()) == before

    interrupted(run, 1, monkeypatch)
    set_weight(folder, 2)
    refused("weights")
    set_weight(folder, 0.5)
    change_tokenizer(folder)
    refused("tokenizer")
    change_tokenizer(folder)
    content = source.read_text()
    keep_time(source, lambda: source.write_text(content.replace("cat", "dog")))
    refused("input")
    source.write_text(content)
    assert run().rows == 30


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", "\x00" * 50, "[" * 100_000])
def test_a_damaged_job_record_is_said(tmp_path, predict, monkeypatch, content):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [{"text": row["words"]} for row in ROWS])
    interrupted(lambda: predict_file(predict, source, out), 2, monkeypatch)
    (tmp_path / "out.jsonl.parts" / "job.json").write_text(content)
    with pytest.raises(ValueError, match=r"another job \(job.json is damaged.*remove it to start again"):
        predict_file(predict, source, out)


def test_a_job_that_was_killed_before_its_record_was_complete_starts(tmp_path, predict):
    write(tmp_path / "in.jsonl", [{"text": "the cat"}])
    (tmp_path / "out.jsonl.parts").mkdir()
    (tmp_path / "out.jsonl.parts" / "job.json.part").write_text('{"inp')
    assert predict_file(predict, tmp_path / "in.jsonl", tmp_path / "out.jsonl").rows == 1


def empty(file, other):
    file.write_bytes(b"")


def lose_a_row(file, other):
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def lose_the_end(file, other):
    file.write_bytes(file.read_bytes()[:-5])


def flip_a_bit(file, other):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def without_header(file, other):
    file.write_bytes(file.read_bytes().partition(b"\n")[2])


def zeros(file, other):
    file.write_bytes(bytes(len(file.read_bytes())))


def another_block(file, other):
    file.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    "damage", [empty, lose_a_row, lose_the_end, flip_a_bit, without_header, zeros, another_block, None]
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_damaged_block_is_computed_again(tmp_path, predict, monkeypatch, damage, kind):
    source, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
    write(source, [{"text": row["words"]} for row in ROWS])
    predict_file(predict, source, tmp_path / f"whole.{kind}")
    interrupted(lambda: predict_file(predict, source, out), 3, monkeypatch)
    blocks = sorted((tmp_path / f"out.{kind}.parts").glob("*.jsonl"))
    assert len(blocks) == 3
    if damage is not None:
        damage(blocks[1], blocks[0])
    (tmp_path / f"out.{kind}.parts" / "00000099.jsonl").write_text("no block of this job\n")
    computed = []
    original = predictor.Predictor.run
    monkeypatch.setattr(predictor.Predictor, "run", lambda self, rows: computed.append(1) or original(self, rows))
    assert predict_file(predict, source, out).rows == 30
    assert len(computed) == (2 if damage is None else 3)  # the blocks that were left, and the damaged one
    assert read(out) == read(tmp_path / f"whole.{kind}")


def test_a_block_that_is_damaged_during_the_run_stops_it(tmp_path, predict, monkeypatch):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [{"text": row["words"]} for row in ROWS])
    original = files.write_output

    def damaged(*arguments):
        flip_a_bit(tmp_path / "out.jsonl.parts" / "00000001.jsonl", None)
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_output", damaged)
        with pytest.raises(ValueError, match=r"block 1 in .* is damaged; run the command again"):
            predict_file(predict, source, out)
    assert not out.exists()
    assert predict_file(predict, source, out).rows == len(read(out)) == 30


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_the_rows_of_the_final_file_are_counted(tmp_path, predict, monkeypatch, kind):
    source, out = tmp_path / "in.jsonl", tmp_path / f"out.{kind}"
    write(
        source,
        [
            {"text": row["words"], "note": 'two\nlines, a "quote"\t' + "x" * (200_000 * (not i))}
            for i, row in enumerate(ROWS)
        ],
    )
    original = files.write_output

    def shortened(file, suffix, path, names, blocks, numeric):
        original(file, suffix, path, names, lambda: islice(blocks(), 2), numeric)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_output", shortened)
        with pytest.raises(ValueError, match="has 14 rows instead of 30"):
            predict_file(predict, source, out)
    assert not out.exists()
    assert predict_file(predict, source, out).rows == 30


def test_an_input_that_grows_during_the_run_is_said(tmp_path, predict, monkeypatch):
    source = tmp_path / "in.jsonl"
    write(source, [{"text": row["words"]} for row in ROWS])
    original = files.write_block

    def growing(*arguments):
        with source.open("a") as stream:
            stream.write('{"text": "the cat"}\n')
        return original(*arguments)

    monkeypatch.setattr(files, "write_block", growing)
    with pytest.raises(ValueError, match=r"changed during the run|damaged"):
        predict_file(predict, source, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


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


@pytest.mark.parametrize("deleted", range(8))
def test_a_run_that_is_interrupted_while_its_blocks_are_deleted_ends_when_repeated(
    tmp_path, predict, monkeypatch, deleted
):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [{"text": row["words"]} for row in ROWS])
    counts = predict_file(predict, source, tmp_path / "whole.jsonl")
    left = deleted
    originals = Path.unlink, Path.rmdir

    def interrupt(path, which, *arguments, **options):
        nonlocal left
        folder = path if path.name.endswith(".parts") else path.parent
        if folder.name.endswith(".parts") and path.suffix != ".part" and out.exists():
            if not left:
                raise KeyboardInterrupt
            left -= 1
        return originals[which](path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda path, *rest, **options: interrupt(path, 0, *rest, **options))
        patch.setattr(Path, "rmdir", lambda path: interrupt(path, 1))
        with pytest.raises(KeyboardInterrupt):
            predict_file(predict, source, out)
    assert (tmp_path / "out.jsonl.parts").exists()
    if deleted < 7:  # five blocks, job.json, done.json
        assert predict_file(predict, source, out) == counts
    else:
        with pytest.raises(ValueError, match="already exists"):
            predict_file(predict, source, out)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not list(tmp_path.glob("*.part*"))


def test_two_commands_do_not_write_one_output(tmp_path, predict):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [{"text": "the cat"}])
    (tmp_path / "out.jsonl.parts").mkdir()
    with locked(tmp_path / "out.jsonl.parts"), pytest.raises(ValueError, match=r"another command is writing .*parts"):
        predict_file(predict, source, out)
    assert predict_file(predict, source, out).rows == 1


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose read() fails with EIO")
def test_read_errors(tmp_path, predict, monkeypatch):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match=r"in\.jsonl") as caught:
        predict_file(predict, source, out)
    assert caught.value.filename == str(source)
    source.unlink()
    write(source, [{"text": row["words"]} for row in ROWS])
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_output", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            predict_file(predict, source, out)
    block = tmp_path / "out.jsonl.parts" / "00000001.jsonl"
    block.unlink()
    block.symlink_to("/proc/self/mem")
    assert predict_file(predict, source, out).rows == 30  # the unreadable block is computed again
