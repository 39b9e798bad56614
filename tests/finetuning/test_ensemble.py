"""An ensemble from runs to a folder that evaluate, predict and serve take like one model."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from debertakit import evaluate, finetune, load
from debertakit.cli import app
from debertakit.data.examples import TextExample
from debertakit.finetuning.ensemble import Board, ensemble, greedy, halves
from debertakit.finetuning.evaluation import read_predictions
from debertakit.tasks.decisions import softmax
from debertakit.tasks.features import TokenRow
from tests import tiny
from tests.material import lines

QUICK = {"epochs": 2, "batch_size": 8, "lr": 5e-3}
INPUTS = {
    "single-label": "the film was good",
    "multi-label": "the film was bad",
    "regression": {"text": "the film was good", "pair": "it was"},
    "tagging": "anna lives in paris",
    "qa": {"question": "where was anna ?", "context": "the film , anna lives in paris . it was"},
    "choice": {"text": "it was a good film", "options": ["good", "bad"]},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.deberta(tmp_path_factory.mktemp("model"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUTS)
def test_every_kind_answers_as_one_model(kind, model, tmp_path):
    task = tiny.task(kind, 32, 24)
    finetune(model, tmp_path / "runs", task=task, seeds=2, **QUICK)
    found = ensemble([tmp_path / "runs"], tmp_path / "both", task=task, all_models=True, resamples=100)
    assert [path.name for path in found.members] == ["seed-0", "seed-1"]
    assert found.comparison is not None
    assert found.scores["ensemble"] == found.scores["all"]
    examples, values = read_predictions(tmp_path / "both" / "predictions-dev.jsonl", kind)
    again = evaluate(tmp_path / "both", task=task)
    if kind == "regression":
        assert again.values == pytest.approx(values, abs=1e-5)
    else:
        assert again.values == values
    assert len(examples) == 24
    members = [load(tmp_path / "both" / f"member-{number}") for number in range(2)]
    whole, parts = load(tmp_path / "both"), [each(INPUTS[kind]) for each in members]
    result = whole(INPUTS[kind])
    if kind == "single-label":
        mean = {s.label: np.mean([{t.label: t.score for t in p.scores}[s.label] for p in parts]) for s in result.scores}
        assert {s.label: s.score for s in result.scores} == pytest.approx(mean, abs=1e-5)
    elif kind == "regression":
        assert result.score == pytest.approx(np.mean([part.score for part in parts]), abs=1e-5)
    elif kind == "choice":
        assert result.scores == pytest.approx(np.mean([part.scores for part in parts], 0).tolist(), abs=1e-5)


@pytest.mark.slow
def test_the_command_with_a_file_of_ones_own(model, tmp_path):
    rows = [f"{e.text},{'good' if e.label == '1' else 'bad'}" for e in tiny.sentences(60)]
    train, dev = lines(tmp_path / "train.csv", "a,y", *rows[:32]), lines(tmp_path / "dev.csv", "a,y", *rows[32:])
    finetune(model, tmp_path / "runs", train=train, dev=dev, text="a", label="y", seeds=2, **QUICK)
    command = ["ensemble", str(tmp_path / "runs"), "--file", str(dev), "--out", str(tmp_path / "best")]
    shown = CliRunner().invoke(app, [*command, "--resamples", "100", "--combine", "votes"]).stdout
    assert re.search(r"^ensemble: accuracy \d+\.\d\d$", shown, re.MULTILINE)
    assert "scores on 14 dev examples that were not used to select" in shown
    assert json.loads((tmp_path / "best" / "ensemble.json").read_text())["combine"] == "votes"
    assert load(tmp_path / "best")("the film was good").labels[0] in ("good", "bad")
    with pytest.raises(ValueError, match="best already exists"):
        ensemble([tmp_path / "runs"], tmp_path / "best", file=dev)
    with pytest.raises(ValueError, match="needs at least two models; got 1"):
        ensemble([tmp_path / "runs" / "seed-0"], tmp_path / "one", file=dev)
    other = finetune(model, tmp_path / "other", task=tiny.task("regression"), **QUICK).folder
    with pytest.raises(ValueError, match="differ in kind: regression and single-label"):
        ensemble([tmp_path / "runs", other], tmp_path / "mixed", file=dev)


def test_selection_adds_only_models_that_help():
    """Three models: two that are right on different examples, and one that is always wrong and very sure."""
    examples = [TextExample(str(i), "t", None, str(i % 2)) for i in range(12)]
    rows = [TokenRow(i, [[1]], None, i % 2) for i in range(12)]

    def logits(right, strength):
        sign = np.where(right, 1.0, -1.0) * strength
        return [
            np.array([s, 0.0], np.float32) if i % 2 == 0 else np.array([0.0, s], np.float32) for i, s in enumerate(sign)
        ]

    half = np.arange(12) < 6
    models = [
        logits(half, np.where(half, 3.0, 1.0)),
        logits(~half, np.where(half, 1.0, 3.0)),
        logits(half & False, np.full(12, 9.0)),
    ]
    board = Board(tiny.task("single-label"), examples, rows, ("0", "1"), models, "probabilities", False)
    assert board.score(board.predict([0]), range(12)) == 50.0
    assert greedy(board, range(12)) == [0, 1]
    assert board.score(board.predict([0, 1]), range(12)) == 100.0
    found = board.predict([0, 1])[0].probabilities
    assert found == pytest.approx(np.mean([softmax(models[m][0]) for m in (0, 1)], 0).tolist(), abs=1e-6)


def test_halves_keep_groups_together():
    examples = [TextExample(str(i), "t", "q", "1", group=str(i // 3)) for i in range(30)]
    first, second = halves(examples)
    assert sorted(first + second) == list(range(30))
    assert not {examples[i].group for i in first} & {examples[i].group for i in second}
    assert halves(examples) == (first, second)
