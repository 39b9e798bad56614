"""The first commands of a newcomer: finetune my.csv, evaluate and predict, without options."""

import csv
import json
import os

import pytest
from typer.testing import CliRunner

from debertakit.cli import app
from tests import tiny

QUICK = ("--epochs", 2, "--batch-size", 8, "--lr", 5e-3)


def run(*arguments):
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == 0, found.exception
    return found


def table(path, count, seed=0, labelled=True):
    rows = [(e.text, "good" if e.label == "1" else "bad")[: 1 + labelled] for e in tiny.sentences(count, seed)]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("remark", "verdict")[: 1 + labelled], *rows])
    return path


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.deberta(tmp_path / "base")
    table(tmp_path / "my.csv", 80)
    return tmp_path


def test_three_commands_without_columns(place):
    trained = run("finetune", "my.csv", "--model", "base", *QUICK)
    assert "my.csv: guessed the columns text = 'remark', label = 'verdict'; to override: --text NAME" in trained.stderr
    assert "8 of the 80 training examples are held out" in trained.stderr
    assert json.loads((place / "my-model" / "task.json").read_text())["columns"] == {
        "text": "remark",
        "label": "verdict",
    }
    record = json.loads((place / "my-model" / "run.json").read_text())
    assert (record["text"], record["label"], record["dev_examples"]) == ("remark", "verdict", 8)
    table(place / "test.csv", 20, seed=5)
    assert "accuracy" in run("evaluate", "my-model", "test.csv").stdout
    table(place / "new.csv", 10, seed=6, labelled=False)
    assert "10 rows in new-predictions.csv" in run("predict", "my-model", "new.csv").stdout
    with (place / "new-predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["prediction"] for row in rows} <= {"good", "bad"}
    assert not any(row["error"] for row in rows)
    assert all(0.5 <= float(row["score"]) <= 1 for row in rows)


def test_a_table_without_a_header(place):
    """Its columns are numbered, in training and in prediction."""
    rows = (place / "my.csv").read_text().splitlines()[1:]
    (place / "bare.csv").write_text("\n".join(rows) + "\n")
    trained = run("finetune", "bare.csv", "--model", "base", *QUICK)
    assert "text = '1', label = '2'" in trained.stderr
    assert "accuracy" in run("evaluate", "bare-model", "bare.csv").stdout
    assert "80 rows in bare-predictions.csv" in run("predict", "bare-model", "bare.csv").stdout


def test_an_input_keeps_its_own_score_column(place):
    run("finetune", "my.csv", "--model", "base", *QUICK)
    (place / "new.csv").write_text("remark,score\na good film,7\n")
    for suffix in ("csv", "jsonl", "parquet"):
        run("predict", "my-model", "new.csv", "--out", f"out.{suffix}")
    with (place / "out.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["score"], list(row)) == ("7", ["remark", "score", "prediction", "details", "error"])
    assert json.loads((place / "out.jsonl").read_text())["score"] == "7"


def test_a_second_run_has_a_folder_of_its_own(place):
    for folder in ("my-model", "my-model-2"):
        run("finetune", "my.csv", "--model", "base", *QUICK)
        assert (place / folder / "run.json").is_file()
    assert "my-model-2" in run("finetune", "my.csv", "--model", "base", *QUICK, "--resume").stdout
    assert not (place / "my-model-3").exists()


def test_threads_and_device(place, monkeypatch):
    import torch

    for name in ("DEBERTAKIT_DEVICE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # restored at the end
    before = torch.get_num_threads()
    run("fill", "the [MASK] was good", "--model", "base", "--threads", 1, "--device", "cpu")
    assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.environ["DEBERTAKIT_DEVICE"]) == (1, "1", "cpu")
    torch.set_num_threads(before)
    for wrong, message in ((("--device", "gpu"), "choose cpu, cuda or cuda:N"), (("--threads", 0), "must be >= 1")):
        found = CliRunner().invoke(app, ["fill", "[MASK]", "--model", "base", *map(str, wrong)])
        assert message in str(found.exception)
