"""Fine-tuning in two processes, as torchrun starts them, does what one process does."""

import json
import os
from pathlib import Path

import pytest

from debertakit import finetune
from debertakit.finetuning.job import check_processes
from debertakit.finetuning.options import FinetuneOptions
from debertakit.finetuning.trainer import RunTrainer
from debertakit.tasks.batches import ProcessShare, TrainingOrder
from tests import tiny
from tests.ranks import run_ranks


def train(model, out, kind, parallel):
    """One of two processes."""
    options = {"epochs": 2, "batch_size": 8, "lr": 5e-3, "precision": "fp32", "cls_dropout": 0.0}
    options |= {"gradient_accumulation": 2, "parallel": parallel, "resume": Path(f"{out}.part").exists()}
    result = finetune(model, out, task=tiny.task(kind, 27, 8), gradient_checkpointing=True, **options)
    Path(f"{out}-{os.environ['RANK']}.json").write_text(json.dumps(result.scores))


def train_and_die(*arguments):
    """Like train, but rank 0 ends after its first checkpoint."""
    save = RunTrainer._save_checkpoint

    def save_and_die(*each):
        save(*each)
        os._exit(3)

    if os.environ["RANK"] == "0":
        RunTrainer._save_checkpoint = save_and_die
    train(*arguments)


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OPTIONS = {"epochs": 2, "batch_size": 8, "lr": 5e-3, "precision": "fp32", "cls_dropout": 0.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.deberta(tmp_path_factory.mktemp("model"), **NO_DROPOUT)


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "log.jsonl").open()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parallel"), [("single-label", "ddp"), ("tagging", "ddp"), ("choice", "ddp"), ("tagging", "fsdp2")]
)
def test_two_processes_do_what_one_does(kind, parallel, model, tmp_path):
    """27 examples in steps of 8: the last step of an epoch is not full. FSDP2 also stops and resumes."""
    arguments = (model, tmp_path / "two", kind, parallel)
    if parallel == "fsdp2":
        run_ranks(2, train_and_die, *arguments, codes=(3, 1))
        assert (tmp_path / "two.part" / "checkpoints" / "checkpoint-4").is_dir()
    said = run_ranks(2, train, *arguments)
    assert "".join(said).count("precision: fp32") == 1  # said once
    task = tiny.task(kind, 27, 8)
    one = finetune(model, tmp_path / "one", task=task, gradient_accumulation=2, **OPTIONS)
    assert [json.loads((tmp_path / f"two-{rank}.json").read_text()) for rank in (0, 1)] == [one.scores] * 2
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    texts = [(tmp_path / run / "predictions-dev.jsonl").read_text() for run in ("one", "two")]
    values = [[json.loads(line)["prediction"] for line in text.splitlines()] for text in texts]
    assert values[0] == values[1]
    assert json.loads((tmp_path / "two" / "run.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_gradient_checkpointing_changes_nothing_but_memory(model, tmp_path):
    task = tiny.task("single-label")
    plain = finetune(model, tmp_path / "plain", task=task, **OPTIONS)
    saved = finetune(model, tmp_path / "saved", task=task, gradient_checkpointing=True, **OPTIONS)
    assert plain.scores == saved.scores
    assert losses(tmp_path / "plain") == pytest.approx(losses(tmp_path / "saved"), rel=1e-5)
    finetune(model, tmp_path / "lora", task=task, gradient_checkpointing=True, lora=2, **OPTIONS)


def test_processes_share_every_batch():
    order = TrainingOrder([1] * 27, 8, 0, 1)
    shares = [list(ProcessShare(order, 8, process, 2)) for process in range(2)]
    whole = list(order)
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == [sorted(whole[i : i + 8]) for i in (0, 8, 16, 24)]
    assert [len(share) for share in shares[0]] == [4, 4, 4, 2]
    assert len(ProcessShare(order, 8, 0, 2)) == 4
    last = [list(ProcessShare(order, 13, process, 2))[-1] for process in range(2)]
    assert last[0] == last[1] == whole[26:]


def test_sift_needs_one_process_and_fsdp2_several(monkeypatch):
    with pytest.raises(ValueError, match="--parallel fsdp2 needs torchrun"):
        check_processes(FinetuneOptions(parallel="fsdp2"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_processes(FinetuneOptions(parallel="fsdp2"))
    with pytest.raises(ValueError, match="--sift trains in one process"):
        check_processes(FinetuneOptions(sift=True))


def test_fsdp2_refuses_what_it_cannot_do():
    for options in ({"lora": 2}, {"precision": "fp16"}):
        with pytest.raises(ValueError, match="use parallel=ddp"):
            FinetuneOptions(parallel="fsdp2", **options)
    with pytest.raises(ValueError, match="unknown parallel 'fsdp'"):
        FinetuneOptions(parallel="fsdp")
