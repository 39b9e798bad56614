"""finetune --search: which points are tried, what is kept, and that an interrupted search goes on."""

import json
from types import SimpleNamespace

import pytest

from debertakit import evaluate
from debertakit.finetuning import search as searching
from debertakit.finetuning.options import FinetuneOptions
from debertakit.finetuning.search import BATCHES, DROPOUTS, draw_points, rounds, search
from tests import tiny


def job(rows=10_000, size="base", **options):
    filled = {"lr": 2e-5, "batch_size": 32, "epochs": 3, "cls_dropout": 0.1, "warmup": 0.1, **options}
    train = SimpleNamespace(rows=[None] * rows)
    return SimpleNamespace(options=FinetuneOptions(**filled), size=size, train=train)


def test_half_of_the_trials_stay_until_two_are_left():
    assert rounds(16) == [16, 8, 4, 2]
    assert rounds(5) == [5, 3, 2]
    assert rounds(2) == [2]


def test_the_grids_of_the_paper():
    points = draw_points(job(), set(), 1000, 0)
    assert len({tuple(point.values()) for point in points}) == len(points)
    assert {point["lr"] for point in points} == {1.5e-5, 2e-5, 3e-5, 4e-5}
    assert {point["batch_size"] for point in points} == set(BATCHES["base"]) == {16, 32, 48, 64}
    assert {point["cls_dropout"] for point in points} == set(DROPOUTS["base"]) == {0, 0.1, 0.15}
    assert {point["warmup"] for point in points} == {50, 100, 500}  # 1,875 steps at most
    large = draw_points(job(size="v3-large", lr=1e-5), set(), 1000, 0)
    assert {point["lr"] for point in large} == {5e-6, 8e-6, 9e-6, 1e-5}
    assert {point["lr"] for point in draw_points(job(size="v2-xxlarge", lr=3e-6), set(), 99, 0)} == {1e-6, 3e-6, 5e-6}


def test_given_options_and_heads_without_dropout_are_not_varied():
    points = draw_points(job(cls_dropout=None, lr=1e-3), {"lr", "warmup"}, 100, 0)
    assert [set(point) for point in points] == [{"batch_size"}] * 4
    assert {point["warmup"] for point in draw_points(job(rows=64), set(), 100, 0)} == {0.1}  # too short for 50 steps
    assert draw_points(job(), set(), 5, 1) == draw_points(job(), set(), 5, 1) != draw_points(job(), set(), 5, 2)


@pytest.mark.slow
def test_an_interrupted_search_goes_on_and_its_winner_is_an_ordinary_run(tmp_path, monkeypatch, capsys):
    model, task = tiny.deberta(tmp_path / "model"), tiny.task("single-label", 32, 16)
    options = {"task": task, "epochs": 2, "lr": 5e-3, "precision": "fp32"}
    run, calls = searching.run, []

    def counted(*arguments, **named):
        if len(calls) == 5:
            raise KeyboardInterrupt
        calls.append(arguments)
        return run(*arguments, **named)

    monkeypatch.setattr(searching, "run", counted)
    with pytest.raises(KeyboardInterrupt):
        search(model, tmp_path / "out", 4, **options)
    monkeypatch.setattr(searching, "run", run)
    with pytest.raises(ValueError, match="already contains a search"):
        search(model, tmp_path / "out", 4, **options)
    with pytest.raises(ValueError, match="another search, with trials 4 instead of 3"):
        search(model, tmp_path / "out", 3, resume=True, **options)
    result = search(model, tmp_path / "out", 4, resume=True, **options)
    assert "search: 4 x 1 epochs, 2 x 2 epochs; together 4 times the training of one run" in capsys.readouterr().err
    trials = sorted(path.parent for path in (tmp_path / "out.search").glob("round-*/trial-*/metrics.json"))
    assert [path.parent.name for path in trials] == ["round-1"] * 4 + ["round-2"]  # the other of round 2 is OUT
    assert not (trials[0] / "model.safetensors").exists()
    assert evaluate(tmp_path / "out", task=task).scores == result.scores
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["epochs"], record["lr"]) == (2, 5e-3)
    assert result.scores["accuracy"] >= json.loads((trials[-1] / "metrics.json").read_text())["dev"]["accuracy"]
    rows = [line for line in (tmp_path / "out.search" / "report.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 6
    again = search(model, tmp_path / "out", 4, resume=True, **options)
    assert (again.scores, again.seconds) == (result.scores, result.seconds)
