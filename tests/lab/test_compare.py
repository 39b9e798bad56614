"""Whole comparisons with models of two narrow layers; their jobs run in this process."""

import json

import pytest
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.lab import compare as comparing
from debertakit.lab import convergence as converging
from debertakit.lab import measures, plan
from debertakit.lab.compare import Swept, better_half
from debertakit.lab.worker import JOBS
from tests.material import lines
from tests.pretraining.material import text as documents

pytestmark = pytest.mark.slow
QUICK = ["--quick", "--budget", "8-steps", "--seeds", "2", "--words", "40", "--vocab-size", "600"]


class Interrupted(Exception):
    pass


@pytest.fixture
def in_process(monkeypatch):
    """Run jobs here; raise after ``left`` jobs, as if the command were killed."""
    left = [10**6]

    def run_jobs(jobs, show, *, threads=1, alone=False):
        for job in jobs:
            if not job.finished:
                if not left[0]:
                    raise Interrupted
                left[0] -= 1
                job.done.parent.mkdir(parents=True, exist_ok=True)
                JOBS[job.kind](job.settings)
        return set()

    monkeypatch.setattr(comparing, "run_jobs", run_jobs)
    monkeypatch.setattr(plan, "CURVE_POINTS", 2)
    monkeypatch.setattr(measures, "TIMED", 1)
    return left


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text.txt").write_text(documents(400), encoding="utf-8")
    pair = {"sentence_good": "the cat sees the house.", "sentence_bad": "the cat house sees the."}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf-8")
    return tmp_path / "text.txt"


def run(corpus, out, *more):
    words = ["compare", "tiny", "gpt2-tiny", "v3-tiny", "--corpus", str(corpus), "--out", str(out), *QUICK, *more]
    return CliRunner().invoke(app, [*words, "--pairs", str(corpus.with_name("pairs.jsonl"))])


def numbers(out):
    found = json.loads((out / "results.json").read_text())
    for row in found["rows"]:
        del row["tokens_per_second"], row["peak_mb"]
    return {key: found[key] for key in ("rows", "floors", "claims", "curves", "paradigms", "attention")}


def test_an_interrupted_comparison_continues_to_the_same_numbers(in_process, corpus, tmp_path):
    options = ["--rates", "2", "--sweep", "0.5"]
    whole = run(corpus, tmp_path / "whole", *options)
    assert whole.exit_code == 0, whole.output
    assert "tiny is better than gpt2-tiny in minimal pairs: not shown, at this scale" in whole.stdout  # a single pair
    for jobs in (0, 4, 7):
        in_process[0] = jobs
        assert isinstance(run(corpus, tmp_path / "parts", *options).exception, Interrupted)
    in_process[0] = 10**6
    assert run(corpus, tmp_path / "parts", *options).exit_code == 0
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "parts")
    found = numbers(tmp_path / "whole")
    tiny, gpt2, v3 = found["rows"]
    assert set(tiny["scores"]) == {"hidden words", "bits per character", "minimal pairs"}
    assert len(tiny["scores"]["bits per character"]) == 2
    assert set(v3["scores"]) == {"minimal pairs"}  # a discriminator does not predict words
    assert [len(points) for points in found["curves"].values()] == [2, 2]
    assert tiny["sweep_tokens"] > 0
    assert gpt2["rate"] in (0.0015, 0.003)
    assert [row["name"] for row in found["floors"]] == ["unigram", "trigram"]
    for file in ("report.html", "report.md"):
        page = (tmp_path / "whole" / file).read_text(encoding="utf-8")
        assert "What this run can and cannot show" in page
        assert "http" not in page.replace("http://www.w3.org", "")
    assert found["attention"].keys() == {"tiny", "gpt2-tiny", "v3-tiny"}
    assert [round(sum(row), 3) for row in found["attention"]["tiny"]["matrix"]] == [1.0] * 16
    (tmp_path / "whole" / "measures" / "v3-tiny-1.json").unlink()
    early = run(corpus, tmp_path / "whole", *options, "--report-only")
    assert early.exit_code == 0, early.output
    assert "not shown" in early.stdout
    page = (tmp_path / "whole" / "report.md").read_text(encoding="utf-8")
    assert "Not in the report: seed 1." in page
    assert "1 seed." in page
    again = run(corpus, tmp_path / "whole", *options, "--limit", "3")
    assert "another comparison, with limit None instead of 3" in str(again.exception)


def test_checkpoints_are_fine_tuned_and_drawn(in_process, monkeypatch, corpus, tmp_path):
    """The runs of a comparison keep their checkpoints; --tasks fine-tunes the finished models."""
    monkeypatch.setattr(converging, "run_jobs", comparing.run_jobs)
    rows = [f"{i}\tthe cat sees a house\tthe cat is {'red' if i % 2 else 'old'}\t" for i in range(8)]
    labels = [f"{row}{'entailment' if i % 2 else 'not_entailment'}" for i, row in enumerate(rows)]
    for split in ("train", "dev"):
        lines(tmp_path / "data" / "RTE" / f"{split}.tsv", "index\tsentence1\tsentence2\tlabel", *labels)
    options = [*QUICK, "--seeds", "1", "--rates", "1", "--tasks", "rte", "--data", str(tmp_path / "data")]
    words = ["compare", "tiny", "bert-tiny", "--corpus", str(corpus), "--out", str(tmp_path / "out"), *options]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["name"] for row in found["floors"]] == ["unigram", "trigram", "majority class"]
    assert found["floors"][2]["scores"] == {"rte": [50.0]}
    assert {claim["measure"] for claim in found["claims"]} == {"hidden words", "bits per character", "rte"}
    run = tmp_path / "out" / "runs" / "tiny" / "seed-0"
    arguments = [
        "--tasks",
        "rte",
        "--data",
        str(tmp_path / "data"),
        "--epochs",
        "0.1",
        "--out",
        str(tmp_path / "curves"),
    ]
    result = CliRunner().invoke(app, ["convergence", str(run), *arguments])
    assert result.exit_code == 0, result.output
    curve = json.loads((tmp_path / "curves" / "results.json").read_text())["rte"]
    assert len(curve) == 2
    assert [point["tokens"] for point in curve] == sorted(point["tokens"] for point in curve)
    assert "<polyline" in (tmp_path / "curves" / "report.html").read_text(encoding="utf-8")


def test_the_better_half():
    assert better_half("x", {1e-3: 5.0, 2e-3: 4.0, 4e-3: None}) == [1e-3, 2e-3]
    assert better_half("x", {1e-3: 5.0, 2e-3: 4.0}) == [2e-3]
    with pytest.raises(ValueError, match="x diverges at every learning rate"):
        better_half("x", {1e-3: None})
    assert Swept(4e-3, [{"0.001": 5.0, "0.004": 4.0}], 10).at_the_edge


def test_mistakes_are_one_line(tmp_path, corpus):
    def message(*words: str) -> str:
        return str(CliRunner().invoke(app, ["compare", *words, "--out", str(tmp_path / "out")]).exception)

    assert message("tiny", "--corpus", str(corpus)) == "pass at least two recipes to compare"
    assert "no such file or folder" in message("tiny", "bert-tiny", "--corpus", "nowhere.txt")
    assert "unknown recipe 'bert-tiy'" in message("tiny", "bert-tiy", "--corpus", str(corpus))
    unknown = CliRunner().invoke(app, ["ablate", "colours", "--corpus", str(corpus), "--out", str(tmp_path / "x")])
    assert "choose from attention, positions, layout, rtd, masking, sift, length" in str(unknown.exception)
    no_tasks = CliRunner().invoke(app, ["ablate", "sift", "--corpus", str(corpus), "--out", str(tmp_path / "x")])
    assert "it needs --tasks and --data" in str(no_tasks.exception)
