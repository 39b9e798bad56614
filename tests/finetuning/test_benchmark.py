"""Whole suites: every task with its start, seeds, resuming, the average, the leaderboard's zip and the report."""

import json
import zipfile

import pytest

from debertakit.finetuning.benchmark import SuiteResult, TaskScore, run_suite
from debertakit.finetuning.modes import SuiteOptions
from debertakit.finetuning.options import FinetuneOptions
from debertakit.finetuning.significance import Summary
from debertakit.tasks.listing import SUITES
from tests import tiny
from tests.material import jsonl, tsv

QUICK = FinetuneOptions(epochs=1, batch_size=8, lr=5e-3, max_length=24)
NLI = ("contradiction", "entailment")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.deberta(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """MNLI with both dev and test sets, RTE, a QNLI without training data, and the diagnostic set."""
    folder = tmp_path_factory.mktemp("glue")
    labels = {"MNLI": NLI, "RTE": ("not_entailment", "entailment")}
    files = {"MNLI": ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")}
    for name, names in labels.items():
        for number, file in enumerate(files.get(name, ("train", "dev", "test"))):
            rows = [(e.id, e.text, "it was good", names[int(e.label)]) for e in tiny.sentences(24, number)]
            table = [("index", "sentence1", "sentence2", "label"), *rows]
            tsv(folder / name / f"{file}.tsv", *(row[: 3 if "test" in file else 4] for row in table))
    tsv(folder / "QNLI" / "dev.tsv", ("index", "question", "sentence", "label"), (0, "who ?", "anna", "entailment"))
    tsv(folder / "diagnostic" / "diagnostic.tsv", ("index", "sentence1", "sentence2"), (0, "a film", "it was good"))
    return folder


@pytest.mark.slow
def test_glue_from_files_to_the_zip(model, glue, tmp_path, capsys):
    out = tmp_path / "out"
    found = run_suite("glue", model, glue, out, None, QUICK, seeds=2)
    assert list(found.scores) == ["mnli", "rte"]
    assert found.missing["qnli"] == "no training set in --data"
    assert found.missing["cola"] == "no files in --data"
    runs = [json.loads((out / "mnli" / f"seed-{s}" / "metrics.json").read_text()) for s in (0, 1)]
    both = [(run["dev"]["accuracy"] + run["dev-mismatched"]["accuracy"]) / 2 for run in runs]
    assert found.scores["mnli"].score.mean == pytest.approx(sum(both) / 2)
    best = out / "mnli" / f"seed-{both.index(max(both))}"
    assert found.scores["rte"].start == str(best)
    assert json.loads((out / "rte" / "seed-0" / "run.json").read_text())["model"] == str(best)
    assert found.average == pytest.approx((found.scores["mnli"].score.mean + found.scores["rte"].score.mean) / 2)
    assert "2 of 9 tasks, not the official average" in str(found)
    with zipfile.ZipFile(out / "glue-submission.zip") as archive:
        assert sorted(archive.namelist()) == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "RTE.tsv"]
        rows = archive.read("AX.tsv").decode().splitlines()
    assert rows[0] == "index\tprediction"
    assert rows[1].split("\t")[1] in ("entailment", "neutral", "contradiction")
    assert {"CoLA.tsv", "QNLI.tsv"} < set(found.absent)
    assert "| mnli | accuracy |" in (out / "report.md").read_text()
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["task", "mnli", "rte"]

    weights = (out / "rte" / "seed-1" / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(ValueError, match=r"already contains a benchmark\. Use --resume"):
        run_suite("glue", model, glue, out, None, QUICK, seeds=2)
    with pytest.raises(ValueError, match="another benchmark, with seeds 2 instead of 3"):
        run_suite("glue", model, glue, out, None, QUICK, seeds=3, resume=True)
    (out / "submission" / "MNLI-mm.tsv").unlink()  # as if the suite had been killed between the two files
    again = run_suite("glue", model, glue, out, None, QUICK, seeds=2, resume=True)
    assert again.scores == found.scores
    assert again.absent == found.absent
    assert (out / "rte" / "seed-1" / "model.safetensors").stat().st_mtime_ns == weights


@pytest.mark.slow
def test_a_suite_resumes_with_the_task_that_was_running(model, glue, tmp_path, monkeypatch):
    from debertakit.finetuning import benchmark

    real = benchmark.finetune

    def stopped(start, out, **others):
        if out.name == "rte":
            raise KeyboardInterrupt
        return real(start, out, **others)

    options = SuiteOptions(task=["rte", "mnli"], mnli="none", limit=8)
    monkeypatch.setattr(benchmark, "finetune", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_suite("glue", model, glue, tmp_path / "out", options, QUICK)
    assert list(json.loads((tmp_path / "out" / "scores.json").read_text())["tasks"]) == ["mnli"]
    monkeypatch.setattr(benchmark, "finetune", real)
    found = run_suite("glue", model, glue, tmp_path / "out", options, QUICK, resume=True)
    assert [(each.task, each.train, each.start) for each in found.scores.values()] == [
        ("mnli", 8, str(model)),
        ("rte", 8, str(model)),
    ]


@pytest.mark.slow
def test_superglue_with_its_diagnostics(model, glue, tmp_path):
    data = tmp_path / "data"
    for number, split in enumerate(("train", "val", "test")):
        rows = [
            {
                "idx": int(e.id),
                "premise": e.text,
                "hypothesis": "it was",
                "label": ("not_entailment", "entailment")[i % 2],
            }
            for i, e in enumerate(tiny.sentences(12, number))
        ]
        jsonl(data / "RTE" / f"{split}.jsonl", rows)
    pairs = [{"idx": i, "premise": "a film", "hypothesis": "it was", "pair_id": i // 2} for i in range(4)]
    jsonl(data / "AX-g" / "AX-g.jsonl", [{**row, "label": "entailment"} for row in pairs])
    jsonl(data / "AX-b" / "AX-b.jsonl", [{"idx": 0, "sentence1": "a", "sentence2": "b", "label": "entailment"}])
    found = run_suite("superglue", model, data, tmp_path / "out", None, QUICK)
    assert found.scores["superglue-rte"].start == str(model)  # no model of MNLI was given
    with zipfile.ZipFile(found.zip) as archive:
        assert sorted(archive.namelist()) == ["AX-b.jsonl", "AX-g.jsonl", "RTE.jsonl"]
        assert [json.loads(line)["idx"] for line in archive.read("AX-g.jsonl").splitlines()] == [0, 1, 2, 3]
    from debertakit import evaluate

    scores = evaluate(tmp_path / "out" / "superglue-rte", task="ax-g", data=data, split="test").scores
    assert scores["parity"] == 100.0  # the sentences of a pair are the same


def test_the_average_is_official_only_with_all_tasks(tmp_path):
    suite, found = SUITES["clue"], {}
    for number, name in enumerate((*suite.tasks, *suite.extra)):
        score = Summary(10.0 * number, 0.0, 0.0, 0.0)
        found[name] = TaskScore(name, "accuracy", score, 1, 9, "m", 1.0, tmp_path)
    result = SuiteResult(suite, tmp_path, found)
    assert result.average == 20.0  # without ChnSentiCorp, which CLUE does not have
    assert "all 5 tasks" in result.average_line()
    del found["tnews"]
    assert "4 of 5 tasks, not the official average" in result.average_line()


def test_mistakes(model, tmp_path):
    with pytest.raises(ValueError, match="'tnews' is not a task of glue; choose from mnli, cola"):
        run_suite("glue", model, tmp_path, tmp_path / "out", SuiteOptions(task=["tnews"]))
    with pytest.raises(ValueError, match="has no training data of GLUE"):
        run_suite("glue", model, tmp_path, tmp_path / "out")
