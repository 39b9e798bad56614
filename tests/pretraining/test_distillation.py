"""Runs with a teacher: chosen objective, exact resume, a falling loss, and clear errors."""

import json

import pytest
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.heads import DebertaForMaskedLM
from debertakit.pretraining.loop import pretrain
from tests.models import randomise, small, word_tokenizer
from tests.pretraining.material import config, cut_short, same, text, weights

QUICK = (
    "steps=4",
    "evaluate_every=2",
    "checkpoint_every=2",
    "log_every=1",
    "data.max_length=32",
    "data.step_tokens=128",
)
SHAPE = ("model.num_hidden_layers=2", "model.hidden_size=32", "model.num_attention_heads=2")


def save(folder, tokenizer):
    model = DebertaForMaskedLM(small(vocab_size=len(tokenizer), hidden_size=48, num_attention_heads=3))
    randomise(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def teacher(tmp_path, tokenizer):
    return save(tmp_path / "teacher", tokenizer)


def test_a_resumed_run_is_exact(corpus, tokenizer, teacher, tmp_path, monkeypatch):
    both = ("objectives.relations=1", "objectives.hidden=0.5", "objectives.vectors=0.5", f"teacher={teacher}")
    recipe = config(*both, "model.hidden_dropout_prob=0.1")
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    metrics = pretrain(recipe, corpus, tokenizer, whole)
    assert {"mlm_loss", "relations_loss", "hidden_loss", "vectors_loss"} <= metrics.keys()
    with monkeypatch.context() as patched:
        cut_short(patched, 8)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, corpus, tokenizer, halved)
    pretrain(recipe, corpus, tokenizer, halved, resume=True)
    assert same(weights(whole), weights(halved))
    assert not any(file.name.startswith("teacher") for file in whole.rglob("*"))
    assert "taught by teacher" in (whole / "README.md").read_text()
    plain = tmp_path / "plain"
    pretrain(config("model.hidden_dropout_prob=0.1"), corpus, tokenizer, plain)
    assert not same(weights(whole), weights(plain))


@pytest.mark.parametrize("name", ["relations", "hidden", "vectors"])
def test_the_loss_falls(corpus, tokenizer, teacher, tmp_path, name):
    more = ("steps=40", "evaluate_every=40", "log_every=4", "optimizer.lr=3e-3", f"teacher={teacher}")
    pretrain(config("objectives.mlm=0", f"objectives.{name}=1", *more), corpus, tokenizer, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < 0.9 * losses[0]


def test_the_command_chooses_the_objective_by_the_vocabulary(teacher, tmp_path):
    (tmp_path / "text.txt").write_text(text(), encoding="utf-8")
    sets = [part for setting in (*QUICK, *SHAPE) for part in ("--set", setting)]
    base = ["pretrain", "tiny", "--corpus", str(tmp_path / "text.txt"), *sets]
    shared = ["--teacher", str(teacher), "--tokenizer", str(teacher), "--out", str(tmp_path / "a")]
    result = CliRunner().invoke(app, [*base, *shared])
    assert result.exit_code == 0, result.exception
    assert "objectives.relations=1 because the teacher has the same vocabulary" in result.stderr
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert (record["teacher"], record["objectives"]["relations"]) == (str(teacher), 1.0)
    other = save(tmp_path / "other", word_tokenizer(["the", "cat"]))
    result = CliRunner().invoke(app, [*base, "--teacher", str(other), "--out", str(tmp_path / "b")])
    assert "objectives.vectors=1 because the teacher has another vocabulary" in result.stderr, result.exception
    assert json.loads((tmp_path / "b" / "run.json").read_text())["objectives"]["vectors"] == 1.0


def test_mistakes(corpus, tokenizer, teacher, tmp_path):
    with pytest.raises(ValueError, match=r"objectives\.hidden needs a teacher: pass --teacher MODEL"):
        config("objectives.hidden=1")
    with pytest.raises(ValueError, match=r"needs one of objectives\.relations, objectives\.hidden"):
        pretrain(config(f"teacher={teacher}"), corpus, tokenizer, tmp_path / "run")
    bert = config("objectives.relations=1", f"teacher={teacher}", name="bert-tiny")
    with pytest.raises(ValueError, match=r"needs a DeBERTa as student: use objectives\.hidden"):
        pretrain(bert, corpus, tokenizer, tmp_path / "run")
    arguments = ["pretrain", "tiny", "--corpus", str(teacher), "--teacher", "nowhere/at/all", "--out", str(tmp_path)]
    assert str(CliRunner().invoke(app, arguments).exception).startswith("nowhere/at/all: no such folder")
