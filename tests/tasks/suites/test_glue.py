"""GLUE's files in the formats of the archive, the original corpora and common copies."""

import json
from pathlib import Path

import pytest

from debertakit.data.examples import TextExample
from debertakit.tasks.suites import BENCHMARKS, task
from tests.material import jsonl, lines, tsv


def test_every_task_has_a_metric_that_its_score_returns():
    assert len(BENCHMARKS) == 32
    for name, found in BENCHMARKS.items():
        assert found.name == name
        assert found.write is not None
    examples = [TextExample(str(i), "t", "p", label) for i, label in enumerate("0110")]
    for name in ("cola", "sst2", "mrpc", "qqp", "wnli"):
        assert BENCHMARKS[name].metric in BENCHMARKS[name].score(examples, ["0", "1", "0", "0"])


def test_unknown_task_suggests_the_close_one():
    with pytest.raises(ValueError, match=r"unknown task 'sst-2'; did you mean sst2\?"):
        task("sst-2")
    with pytest.raises(ValueError, match="unknown task 'zzzzzz'; choose from cola, "):
        task("zzzzzz")


def test_cola_of_the_archive_and_of_its_authors(tmp_path):
    archive = tmp_path / "CoLA"
    tsv(archive / "train.tsv", ("gj04", 1, "", 'They said "hi.'), ("gj04", 0, "*", "Him slept."))
    tsv(archive / "test.tsv", ("index", "sentence"), (0, "Bill slept."))
    splits = task("cola").read(tmp_path)  # the folder around the archive's
    assert splits["train"] == [TextExample("0", 'They said "hi.', label="1"), TextExample("1", "Him slept.", label="0")]
    assert splits["test"] == [TextExample("0", "Bill slept.")]
    original = tmp_path / "original"
    tsv(original / "in_domain_train.tsv", ("a", 1, "", "One."))
    tsv(original / "in_domain_dev.tsv", ("a", 1, "", "In."))
    tsv(original / "out_of_domain_dev.tsv", ("b", 0, "*", "Out."))
    dev = task("cola").read(original)["dev"]
    assert [(e.id, e.text, e.label) for e in dev] == [("0", "In.", "1"), ("1", "Out.", "0")]


def test_sst2_with_either_column_name_and_crlf(tmp_path):
    (tmp_path / "train.tsv").write_bytes(b"\xef\xbb\xbfsentence\tlabel\r\na fine film \t1\r\n")
    tsv(tmp_path / "dev.tsv", ("label", "content"), (0, "a dull one"))
    splits = task("sst2").read(tmp_path)
    assert splits == {
        "train": [TextExample("0", "a fine film", label="1")],
        "dev": [TextExample("0", "a dull one", label="0")],
    }


def test_mrpc_with_its_odd_header(tmp_path):
    tsv(tmp_path / "train.tsv", ("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"), (1, 7, 8, 'A "b', "B a"))
    tsv(tmp_path / "test.tsv", ("index", "#1 ID", "#2 ID", "#1 String", "#2 String"), (0, 7, 8, "A", "B"))
    splits = task("mrpc").read(tmp_path)
    assert splits["train"] == [TextExample("0", 'A "b', "B a", "1")]
    assert splits["test"] == [TextExample("0", "A", "B")]


def test_stsb_of_the_archive_and_of_the_benchmark(tmp_path):
    header = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()
    tsv(tmp_path / "train.tsv", header, (0, "g", "f", "y", 1, "n", "n", "A", "B", 3.5))
    tsv(
        tmp_path / "sts-dev.csv",
        ("g", "f", "y", "0001", "5.000", 'He said "x', "B"),
        ("g", "f", "y", 2, 0, "C", "D", "l", "l"),
    )
    splits = task("stsb").read(tmp_path)
    assert splits["train"][0].label == 3.5
    assert [(e.text, e.pair, e.label) for e in splits["dev"]] == [('He said "x', "B", 5.0), ("C", "D", 0.0)]


def test_qqp_skips_the_broken_rows_of_its_training_file(tmp_path, caplog):
    good = [(i, 1, 2, f"What is {i}?", f"Who is {i}?", i % 2) for i in range(100)]
    header = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    tsv(tmp_path / "train.tsv", header, *good, (100, 1, 2, "Cut off"), (101, 1, 2, "", "Empty?", 0))
    assert len(task("qqp").read(tmp_path)["train"]) == 100
    assert "train.tsv, line 102: fewer columns than the header (4 of 6); skipped" in caplog.text
    assert "train.tsv, line 103: empty text; skipped" in caplog.text


def test_mnli_has_two_dev_sets_and_reads_the_hubs_numbers(tmp_path):
    header = ("index", "promptID", "genre", "sentence1", "sentence2", "label1", "gold_label")
    tsv(tmp_path / "train.tsv", header, (0, "p", "fiction", "A", "B", "neutral", "contradiction"))
    tsv(tmp_path / "dev_matched.tsv", header, (0, "p", "fiction", "A", "B", "neutral", "neutral"))
    tsv(tmp_path / "dev_mismatched.tsv", header, (0, "p", "letters", "A", "B", "neutral", "entailment"))
    splits = task("mnli").read(tmp_path)
    assert {split: examples[0].label for split, examples in splits.items()} == {
        "train": "contradiction",
        "dev": "neutral",
        "dev-mismatched": "entailment",
    }
    copy = tmp_path / "copy"
    jsonl(copy / "train.jsonl", [{"premise": "A", "hypothesis": "B", "label": n, "idx": 9} for n in range(3)])
    assert [e.label for e in task("mnli").read(copy)["train"]] == ["entailment", "neutral", "contradiction"]
    assert task("mnli").labels == ("contradiction", "neutral", "entailment")  # Microsoft's order of the logits


@pytest.mark.parametrize(("name", "texts"), [("qnli", ("question", "sentence")), ("rte", ("sentence1", "sentence2"))])
def test_entailment_by_name(tmp_path, name, texts):
    tsv(
        tmp_path / "train.tsv", ("index", *texts, "label"), (4, "A", "B", "not_entailment"), (5, "C", "D", "entailment")
    )
    assert task(name).read(tmp_path)["train"][0] == TextExample("4", "A", "B", "not_entailment")


def test_the_test_file_is_answered_row_by_row(tmp_path):
    """An empty text in a test set is kept: the leaderboard counts rows."""
    tsv(tmp_path / "test.tsv", ("index", "sentence1", "sentence2"), (0, "A", ""), (1, "B", "C"))
    examples = task("rte").read(tmp_path)["test"]
    out = tmp_path / task("rte").files["test"]
    task("rte").write(out, examples, ["entailment", "not_entailment"])
    assert out.name == "RTE.tsv"
    assert out.read_text() == "index\tprediction\n0\tentailment\n1\tnot_entailment\n"


def test_scores_are_cut_to_the_scale(tmp_path):
    examples = [TextExample(str(i), "a", "b") for i in range(3)]
    task("stsb").write(tmp_path / "STS-B.tsv", examples, [5.2, -0.1, 3.14159])
    assert (tmp_path / "STS-B.tsv").read_text().split() == [
        "index",
        "prediction",
        "0",
        "5.000",
        "1",
        "0.000",
        "2",
        "3.142",
    ]


def test_a_copy_whose_test_set_has_labels_and_no_dev_set(tmp_path, caplog):
    tsv(tmp_path / "train.tsv", ("sentence", "label"), ("a", 1))
    tsv(tmp_path / "test.tsv", ("sentence", "label"), ("b", 0))
    assert set(task("sst2").read(tmp_path)) == {"train", "dev"}
    assert "no dev set; the test set has labels" in caplog.text


def test_of_several_files_the_largest(tmp_path):
    tsv(tmp_path / "train.small.tsv", ("sentence", "label"), ("a", 1))
    tsv(tmp_path / "train.big.tsv", ("sentence", "label"), ("a", 1), ("b", 0))
    assert len(task("sst2").read(tmp_path)["train"]) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("sentence", "stars"), ("a", 1)], r"train.tsv: no column 'label'; it has 'sentence', 'stars'$"),
        (
            [("sentence", "label"), ("a", 7)],
            r"train.tsv, line 2: unknown label \('7' is not one of 0, 1\); 1 of 1 rows",
        ),
        ([("sentence", "label"), ("a", "")], r"train.tsv, line 2: no label; 1 of 1 rows cannot be used"),
        ([("sentence", "label")], r"train.tsv: the file has no examples"),
        ([], r"train.tsv: the file is empty"),
    ],
)
def test_refused(tmp_path, rows, message):
    tsv(tmp_path / "train.tsv", *rows)
    with pytest.raises(ValueError, match=message):
        task("sst2").read(tmp_path)


def test_folder_without_data(tmp_path):
    lines(tmp_path / "notes.md", "x")
    with pytest.raises(ValueError, match=r"no data files \(train.\*, dev.\*, test.\*\); the folder contains notes.md"):
        task("sst2").read(tmp_path)
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        task("sst2").read(tmp_path / "nowhere")


def test_the_hub(tmp_path, monkeypatch):
    """Rows as the hub has them, from a local copy; without a network the error says what to do."""
    from datasets import Dataset, config

    data = tmp_path / "copy"
    data.mkdir()
    for split, label in (("train", 1), ("validation", 0), ("test", -1)):
        rows = [{"sentence1": "A", "sentence2": "B", "label": label, "idx": 3}]
        Dataset.from_list(rows).to_parquet(data / f"{split}.parquet")
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    splits = task("rte").read(Path(f"hf:{data}"))
    assert {split: examples[0] for split, examples in splits.items()} == {
        "train": TextExample("3", "A", "B", "not_entailment"),
        "dev": TextExample("3", "A", "B", "entailment"),
        "test": TextExample("3", "A", "B"),
    }
    with pytest.raises(ValueError, match=r"hf:nyu-mll/glue:rte cannot be loaded .*; without network, pass the folder"):
        task("rte").read(Path("hf"))
    with pytest.raises(ValueError, match="cannot be loaded from the hub"):
        task("tnews").read(Path("hf"))


def test_predictions_are_valid_json_or_tsv_for_unicode(tmp_path):
    task("cb").write(tmp_path / "CB.jsonl", [TextExample("0", "é", "b")], ["neutral"])
    assert json.loads((tmp_path / "CB.jsonl").read_text()) == {"idx": 0, "label": "neutral"}
