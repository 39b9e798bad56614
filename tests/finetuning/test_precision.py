"""Fine-tuning in bf16 on any machine; evaluation and prediction use fp32."""

import json
from dataclasses import replace

import pytest
import torch

from debertakit import evaluate, finetune
from debertakit.finetuning.evaluation import read_predictions
from debertakit.finetuning.trainer import FinetuneTrainer
from debertakit.inference.tasks import load
from tests import tiny

pytestmark = pytest.mark.slow

QUICK = {"epochs": 1, "batch_size": 8, "lr": 5e-3}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.deberta(tmp_path_factory.mktemp("model"))


def precision_of(folder):
    return json.loads((folder / "run.json").read_text())["precision"]


def rewrite(folder, precision):
    """Record another precision in run.json."""
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "precision": precision}))


def interrupted(monkeypatch, **settings):
    """A run that ends at its second evaluation."""
    evaluate_once, calls = FinetuneTrainer.evaluate, []

    def killed(trainer, *args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate_once(trainer, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(FinetuneTrainer, "evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(**settings)


def watch_products(monkeypatch, network_of):
    """The dtypes of the classifier's outputs, by whether they were for training."""
    seen = set()
    compute = FinetuneTrainer.compute_loss

    def watched(trainer, network, *args, **kwargs):
        if not any(getattr(module, "watched", False) for module in network.modules()):
            layer = network_of(network)
            layer.watched = True
            layer.register_forward_hook(lambda module, _, output: seen.add((module.training, output.dtype)))
        return compute(trainer, network, *args, **kwargs)

    monkeypatch.setattr(FinetuneTrainer, "compute_loss", watched)
    return seen


@pytest.mark.parametrize("sift", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_is_in_the_precision_and_scoring_in_fp32(model, tmp_path, monkeypatch, precision, sift):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # not what decides
    seen = watch_products(monkeypatch, lambda network: network.classifier)
    task = tiny.task("single-label")
    result = finetune(model, tmp_path / "run", task=task, precision=precision, sift=sift, **QUICK)
    assert seen == {(True, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]), (False, torch.float32)}
    assert precision_of(tmp_path / "run") == precision
    again = evaluate(tmp_path / "run", task=task)
    assert again.scores == result.scores
    logged = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert logged[-1]["loss"] == again.loss  # of the one evaluation while it trained, bit by bit


@pytest.mark.parametrize("kind", ["multi-label", "regression", "tagging", "qa", "choice"])
def test_every_kind_trains_in_bf16_and_is_scored_as_evaluate_scores(kind, model, tmp_path):
    task = tiny.task(kind)
    if kind == "qa":  # questions that always have an answer: no threshold is tuned after the predictions
        splits = {name: [q for q in rows if q.answers] for name, rows in task.read(None).items()}
        task = replace(task, read=lambda _: splits)
    weights = {}
    for precision in ("fp32", "bf16"):
        finetune(model, tmp_path / precision, task=task, precision=precision, **QUICK)
        weights[precision] = (tmp_path / precision / "model.safetensors").read_bytes()
    assert weights["fp32"] != weights["bf16"]
    again = evaluate(tmp_path / "bf16", task=task)
    assert again.scores == json.loads((tmp_path / "bf16/metrics.json").read_text())["dev"]
    assert again.values == read_predictions(tmp_path / "bf16/predictions-dev.jsonl", kind)[1]


def test_other_encoders_with_lora_in_bf16(tmp_path):
    task = tiny.task("tagging")
    result = finetune(tiny.bert(tmp_path / "bert"), tmp_path / "run", task=task, lora=4, precision="bf16", **QUICK)
    assert evaluate(tmp_path / "run", task=task).scores == result.scores


@pytest.mark.parametrize("forced", ["0", "1"])
def test_evaluate_and_predict_agree(model, tmp_path, monkeypatch, forced):
    monkeypatch.setenv("DEBERTAKIT_BF16", forced)
    task = tiny.task("single-label")
    finetune(model, tmp_path / "run", task=task, **QUICK)
    scored = evaluate(tmp_path / "run", task=task)
    predicted = load(tmp_path / "run")([example.text for example in scored.examples])
    assert [found.labels[0] for found in predicted] == scored.values
    for found, prediction in zip(predicted, scored.predictions, strict=True):
        assert [label.score for label in found.scores] == sorted(prediction.probabilities, reverse=True)


@pytest.mark.parametrize(("forced", "expected"), [("0", "fp32"), ("1", "bf16")])
def test_auto_is_resolved_printed_and_recorded_and_kept_on_another_machine(
    model, tmp_path, monkeypatch, capsys, forced, expected
):
    task = tiny.task("single-label")
    settings = {"model": model, "task": task, **QUICK, "evaluate_every": 1}
    monkeypatch.setenv("DEBERTAKIT_BF16", forced)
    finetune(**settings, out=tmp_path / "whole", precision=expected)
    capsys.readouterr()
    interrupted(monkeypatch, **settings, out=tmp_path / "cut")
    assert f"precision: {expected}\n" in capsys.readouterr().err
    assert precision_of(tmp_path / "cut.part") == expected
    monkeypatch.setenv("DEBERTAKIT_BF16", "10"[int(forced)])  # another machine
    finetune(**settings, out=tmp_path / "cut", resume=True)
    assert f"precision: {expected}" in capsys.readouterr().err
    whole, cut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


def test_all_seeds_use_the_precision_of_the_first(model, tmp_path, monkeypatch):
    settings = {"model": model, "task": tiny.task("single-label"), "out": tmp_path / "run", "seeds": 2, **QUICK}
    monkeypatch.setenv("DEBERTAKIT_BF16", "1")
    interrupted(monkeypatch, **settings)  # in the second run
    monkeypatch.setenv("DEBERTAKIT_BF16", "0")
    with pytest.raises(ValueError, match="was started in bf16 and cannot resume in fp32"):
        finetune(**settings, resume=True, precision="fp32")
    finetune(**settings, resume=True)
    assert [precision_of(tmp_path / "run" / f"seed-{seed}") for seed in (0, 1)] == ["bf16", "bf16"]


@pytest.mark.parametrize(("before", "after"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_another_precision_is_refused_in_one_line(model, tmp_path, monkeypatch, before, after):
    settings = {"model": model, "task": tiny.task("single-label"), "out": tmp_path / "run", **QUICK}
    settings["evaluate_every"] = 1
    interrupted(monkeypatch, **settings, precision=before)
    for _ in range(2):  # of a run that was cut off, then of the finished one
        with pytest.raises(ValueError, match=f"was started in {before} and cannot resume in {after}") as raised:
            finetune(**settings, precision=after, resume=True)
        assert "\n" not in str(raised.value)
        finetune(**settings, resume=True)


@pytest.mark.parametrize(("forced", "expected"), [("0", "fp32"), ("1", "bf16")])
def test_runs_of_version_1_that_recorded_auto_resume(model, tmp_path, monkeypatch, forced, expected):
    settings = {"model": model, "task": tiny.task("single-label"), "out": tmp_path / "run", **QUICK}
    settings["evaluate_every"] = 1
    interrupted(monkeypatch, **settings, precision="fp32")
    rewrite(tmp_path / "run.part", "auto")
    monkeypatch.setenv("DEBERTAKIT_BF16", forced)
    result = finetune(**settings, resume=True)
    assert precision_of(tmp_path / "run") == expected
    rewrite(tmp_path / "run", "auto")
    assert finetune(**settings, resume=True).scores == result.scores  # a finished one
