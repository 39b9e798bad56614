"""Two processes, one global batch: the same losses as one process, with DDP and with FSDP2."""

import pytest
import torch
from safetensors.torch import load_file

from debertakit.pretraining import state
from debertakit.pretraining.loop import pretrain
from debertakit.training.log import read
from tests.pretraining.material import config
from tests.pretraining.worker import torchrun

pytestmark = pytest.mark.slow
MIXED = ("objectives.arlm=0.5", "objectives.nsp=1", "objectives.position=0.5")
EVERY_STEP = ("steps=6", "log_every=1", "checkpoint_every=3", "evaluate_every=3", "optimizer.eps=1e-3")


def losses(out, kind="train"):
    return [record["loss"] for record in read(out / "log.jsonl") if record["kind"] == kind]


@pytest.fixture(scope="module")
def alone(corpus, tokenizer, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    pretrain(config(*EVERY_STEP, *MIXED), corpus, tokenizer, folder)
    return folder


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_two_processes_do_what_one_does(alone, material, tmp_path, parallel):
    torchrun(2, material, tmp_path, *EVERY_STEP, *MIXED, f"parallel={parallel}")
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-5)
    ours, theirs = load_file(tmp_path / "model.safetensors"), load_file(alone / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_accumulation_changes_nothing(alone, material, tmp_path, parallel):
    torchrun(2, material, tmp_path, *EVERY_STEP, *MIXED, f"parallel={parallel}", "data.micro_tokens=64")
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-5)


def test_another_number_of_processes_goes_on_with_the_same_data(alone, corpus, tokenizer, material, tmp_path):
    torchrun(2, material, tmp_path, *EVERY_STEP, *MIXED, "steps=3", "optimizer.schedule=constant")
    pretrain(
        config(*EVERY_STEP, *MIXED, "optimizer.schedule=constant"), corpus, tokenizer, tmp_path / "one", resume=True
    )
    pretrain(config(*EVERY_STEP, *MIXED, "optimizer.schedule=constant"), corpus, tokenizer, tmp_path, resume=True)
    assert losses(tmp_path) == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_fsdp2_resumes_its_sharded_optimiser(material, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    torchrun(2, material, whole, *EVERY_STEP, "parallel=fsdp2", "optimizer.schedule=constant")
    torchrun(2, material, cut, *EVERY_STEP, "parallel=fsdp2", "optimizer.schedule=constant", "steps=3")
    torchrun(2, material, cut, *EVERY_STEP, "parallel=fsdp2", "optimizer.schedule=constant")
    assert state.newest(cut / "checkpoints")[0] == 6
    ours, theirs = load_file(cut / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
