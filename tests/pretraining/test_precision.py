"""Pretraining in bf16 on any machine, and the precision in which a run starts and resumes."""

import json

import pytest
import torch
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.pretraining import settings
from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import evaluate, make_run, pretrain, train_step
from debertakit.training.log import read
from tests.pretraining.material import DROPOUT, config, cut_short, same, weights
from tests.pretraining.worker import torchrun

pytestmark = pytest.mark.slow


def rewrite(out, precision):
    """Record another precision in run.json."""
    path = out / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "precision": precision}))


@pytest.mark.parametrize("name", ["tiny", "v3-tiny"])
def test_a_step_in_bf16(corpus, tokenizer, name):
    runs = {
        precision: make_run(config(f"precision={precision}", name=name), corpus, tokenizer, World())
        for precision in ("fp32", "bf16")
    }
    first = {precision: train_step(run, 0.0) for precision, run in runs.items()}
    for figure in ("loss", "grad_norm"):
        assert first["bf16"][figure] != first["fp32"][figure]  # it did compute in bf16
        assert first["bf16"][figure] == pytest.approx(first["fp32"][figure], rel=0.02)
    for _ in range(3):
        train_step(runs["bf16"], 0.0)
    assert runs["bf16"].progress.bad_steps == 0
    parameters = list(runs["bf16"].module.parameters())
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in parameters)
    moments = [state["exp_avg_sq"] for state in runs["bf16"].optimizer.state.values()]
    assert moments
    assert all(moment.dtype == torch.float32 for moment in moments)


def test_it_learns_in_bf16_as_in_fp32(corpus, tokenizer):
    after = {}
    for precision in ("fp32", "bf16"):
        run = make_run(config("steps=50", "optimizer.lr=5e-3", f"precision={precision}"), corpus, tokenizer, World())
        before = evaluate(run)["loss"]
        for _ in range(50):
            train_step(run, 0.0)
        after[precision] = evaluate(run)["loss"]
        assert after[precision] < before - 0.5
    assert after["bf16"] == pytest.approx(after["fp32"], rel=0.02)


@pytest.mark.parametrize("name", ["tiny", "v3-tiny"])
def test_a_bf16_run_resumes_with_the_same_bits(corpus, tokenizer, tmp_path, name):
    run = config(*DROPOUT, "precision=bf16", name=name)
    pretrain(run, corpus, tokenizer, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        cut_short(patch, at=8)
        with pytest.raises(KeyboardInterrupt):
            pretrain(run, corpus, tokenizer, tmp_path / "cut")
    torch.manual_seed(12345)
    pretrain(run, corpus, tokenizer, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


@pytest.mark.parametrize(("forced", "expected"), [("0", "fp32"), ("1", "bf16")])
def test_auto_is_resolved_printed_and_recorded_and_kept_on_another_machine(
    corpus, tokenizer, tmp_path, monkeypatch, capsys, forced, expected
):
    def train(out, precision, steps, resume=False):
        run = config(f"precision={precision}", f"steps={steps}", "optimizer.schedule=constant")
        pretrain(run, corpus, tokenizer, tmp_path / out, resume=resume)
        printed = [line for line in capsys.readouterr().err.splitlines() if "precision" in line]
        assert [line.split(" (")[0] for line in printed] == [f"precision: {expected}"]
        assert settings.load(tmp_path / out / "run.json").precision == expected

    monkeypatch.setenv("DEBERTAKIT_BF16", forced)
    train("auto", "auto", steps=3)
    train("explicit", expected, steps=6)
    monkeypatch.setenv("DEBERTAKIT_BF16", "10"[int(forced)])  # another machine
    train("auto", "auto", steps=6, resume=True)
    assert same(weights(tmp_path / "auto"), weights(tmp_path / "explicit"))


@pytest.mark.parametrize(("before", "after"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_another_precision_is_refused_in_one_line(material, tmp_path, before, after):
    def command(*more):
        shape = ("num_hidden_layers=1", "hidden_size=32", "num_attention_heads=2", "intermediate_size=64")
        sets = (*(f"model.{field}" for field in shape), "steps=2", "optimizer.warmup_steps=1", *more)
        options = [part for each in sets for part in ("--set", each)]
        place = ("--corpus", str(material / "text.txt"), "--out", str(tmp_path / "run"))
        return CliRunner().invoke(app, ["pretrain", "tiny", *place, "--resume", *options])

    assert command(f"precision={before}").exit_code == 0
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    refused = command(f"precision={after}")
    assert isinstance(refused.exception, ValueError)
    message = str(refused.exception)
    assert message == f"the run was started in {before} and cannot resume in {after}; leave precision unset"
    assert kept == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert command().exit_code == 0


@pytest.mark.parametrize(("forced", "expected"), [("0", "fp32"), ("1", "bf16")])
def test_a_run_of_version_1_that_recorded_auto_resumes(corpus, tokenizer, tmp_path, monkeypatch, forced, expected):
    pretrain(config("steps=3"), corpus, tokenizer, tmp_path)
    rewrite(tmp_path, "auto")
    monkeypatch.setenv("DEBERTAKIT_BF16", forced)
    pretrain(config("steps=6", "precision=auto"), corpus, tokenizer, tmp_path, resume=True)
    assert settings.load(tmp_path / "run.json").precision == expected
    assert max(record["step"] for record in read(tmp_path / "log.jsonl")) == 6


# ----------------------------------------------------------------------------------------------------------- fp16


@pytest.mark.parametrize("name", ["tiny", "v3-tiny"])
def test_a_step_in_fp16_is_that_of_fp32(corpus, tokenizer, name):
    """The gradient is unscaled before it is clipped: loss and norm are those of fp32, up to rounding."""
    runs = {
        precision: make_run(config(f"precision={precision}", name=name), corpus, tokenizer, World())
        for precision in ("fp32", "fp16")
    }
    # at torch's first scale, 2^16, the gradient of v3-tiny overflows: its loss has a weight of 50
    runs["fp16"].scaler.load_state_dict({**runs["fp16"].scaler.state_dict(), "scale": 2.0**8})
    first = {precision: train_step(run, 0.0) for precision, run in runs.items()}
    for figure in ("loss", "grad_norm"):
        assert first["fp16"][figure] != first["fp32"][figure]  # it did compute in fp16
        assert first["fp16"][figure] == pytest.approx(first["fp32"][figure], rel=0.01)
    assert runs["fp16"].scaler.get_scale() == 2.0**8
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in runs["fp16"].module.parameters())


def test_an_overflow_skips_the_update_and_halves_the_scale(corpus, tokenizer):
    run = make_run(config("precision=fp16"), corpus, tokenizer, World())
    run.scaler.load_state_dict({**run.scaler.state_dict(), "scale": 2.0**40})
    before = [p.clone() for p in run.module.parameters()]
    train_step(run, 0.0)
    assert run.progress.bad_steps == 1
    assert run.scaler.get_scale() == 2.0**39
    assert all(torch.equal(p, b) for p, b in zip(run.module.parameters(), before, strict=True))


def test_an_fp16_run_resumes_with_its_scaler(corpus, tokenizer, tmp_path, monkeypatch):
    def growing(precision, device):  # grows after 5 steps, so its state matters within this run
        return torch.amp.GradScaler(device.type, enabled=precision == "fp16", growth_interval=5)

    monkeypatch.setattr("debertakit.pretraining.run.make_scaler", growing)
    run = config(*DROPOUT, "precision=fp16")
    pretrain(run, corpus, tokenizer, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        cut_short(patch, at=8)
        with pytest.raises(KeyboardInterrupt):
            pretrain(run, corpus, tokenizer, tmp_path / "cut")
    pretrain(run, corpus, tokenizer, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    files = [tmp_path / name / "checkpoints/step-00000012/progress.json" for name in ("whole", "cut")]
    saved = [json.loads(file.read_text()) for file in files]
    assert saved[0]["scaler"] == saved[1]["scaler"]
    assert saved[0]["scaler"]["scale"] > 2.0**16


def test_fp16_with_fsdp2_is_refused():
    with pytest.raises(ValueError, match="precision=fp16 needs parallel=ddp"):
        config("precision=fp16", "parallel=fsdp2")


def test_two_processes_in_bf16(material, corpus, tokenizer, tmp_path):
    sets = ("steps=3", "log_every=1", "precision=bf16")
    torchrun(2, material, tmp_path / "two", *sets)
    pretrain(config(*sets), corpus, tokenizer, tmp_path / "one")
    one, two = ([r["loss"] for r in read(tmp_path / n / "log.jsonl") if r["kind"] == "train"] for n in ("one", "two"))
    assert two == pytest.approx(one, rel=0.01)
    assert settings.load(tmp_path / "two/run.json").precision == "bf16"
