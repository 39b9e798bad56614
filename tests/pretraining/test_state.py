"""Checkpoints: runs resume exactly after any kill and after damage to files."""

import errno
import json
import math
import random
import shutil
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from debertakit.pretraining import settings, state
from debertakit.pretraining.loop import pretrain
from debertakit.training.log import read
from tests.pretraining.material import DROPOUT, config, cut_short, same, weights
from tests.pretraining.worker import start


@pytest.mark.parametrize("objective", [(), ("objectives.nsp=1", "objectives.position=1")])
def test_a_resumed_run_ends_with_the_same_bits(corpus, tokenizer, tmp_path, objective):
    run = config(*DROPOUT, *objective)
    pretrain(run, corpus, tokenizer, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        cut_short(patch, at=8)
        with pytest.raises(KeyboardInterrupt):
            pretrain(run, corpus, tokenizer, tmp_path / "cut")
    assert state.newest(tmp_path / "cut/checkpoints")[0] == 6
    torch.manual_seed(12345)  # whatever the process did in between
    pretrain(run, corpus, tokenizer, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    last = "checkpoints/step-00000012/optimizer.pt"
    moments = [torch.load(tmp_path / name / last, weights_only=True)["state"] for name in ("whole", "cut")]
    assert all(torch.equal(moments[0][i]["exp_avg_sq"], moments[1][i]["exp_avg_sq"]) for i in moments[0])
    if objective:
        heads = [
            load_file(tmp_path / name / "checkpoints/step-00000012/heads.safetensors") for name in ("whole", "cut")
        ]
        assert same(*heads)
    steps = [record["step"] for record in read(tmp_path / "cut/log.jsonl") if record["kind"] == "train"]
    assert steps == [4, 8, 12]  # no step is logged twice


@pytest.mark.slow
def test_killed_at_ten_random_moments_it_ends_with_the_same_bits(corpus, tokenizer, material, tmp_path):
    run = ("steps=30", "checkpoint_every=2", "evaluate_every=30", "data.step_tokens=128", *DROPOUT)
    pretrain(config(*run), corpus, tokenizer, tmp_path / "whole")
    expected = weights(tmp_path / "whole")
    draw = random.Random(0)
    kills, finished, reached = 0, 0, []
    while kills < 10 or not finished:
        out = tmp_path / f"killed-{finished}"  # a run that escaped to its end is checked, and another one is begun
        began = time.time()
        process = start(material, out, *run)
        while process.exitcode is None and not _is_training(out, began):
            time.sleep(0.002)
        if kills < 10:
            _wait_for_folders(out / "checkpoints", draw.randint(0, 4), process)
            process.join(draw.uniform(0.0, 0.02))
        else:
            process.join()
        process.kill()
        process.join()
        if process.exitcode == 0:
            assert same(expected, weights(out))
            finished += 1
        else:
            assert process.exitcode == -signal.SIGKILL
            kills += 1
            found = state.newest(out / "checkpoints")
            reached.append(found[0] if found else 0)
    assert len(set(reached)) > 2, reached  # it was killed on its way, not only at its beginning


def _is_training(out, began):
    """Each process opens the log once everything is loaded."""
    log = out / "log.jsonl"
    return log.exists() and log.stat().st_mtime >= began


def _wait_for_folders(root, count, process):
    """Wait until ``count`` folders have appeared, finished checkpoints or parts of them. The wait goes by progress and
    not by the clock, so that kills fall all along the run however busy the machine is."""
    before = set(root.glob("step-*"))
    seen = set()
    while process.exitcode is None and len(seen) < count:
        seen |= set(root.glob("step-*")) - before
        time.sleep(0.001)


def train_to(tmp_path, corpus, tokenizer, steps=9):
    out = tmp_path / "run"
    pretrain(config(f"steps={steps}"), corpus, tokenizer, out)
    return out


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "rng.pt", "progress.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_used(tmp_path, capsys, file, harm, damaged_run):
    shutil.copytree(damaged_run, tmp_path / "run")
    root = tmp_path / "run/checkpoints"
    path = root / "step-00000009" / file
    content = bytearray(path.read_bytes())
    if harm == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif harm == "flipped":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    else:
        path.unlink()
    step, folder = state.newest(root)
    assert step == 6
    assert folder.name == "step-00000006"
    line = capsys.readouterr().err
    assert "step-00000009 is damaged" in line
    assert "the one before" in line


@pytest.fixture(scope="module")
def damaged_run(corpus, tokenizer, tmp_path_factory):
    torch.set_num_threads(1)
    return train_to(tmp_path_factory.mktemp("damaged"), corpus, tokenizer)


def test_after_damage_the_run_goes_on_from_the_one_before(corpus, tokenizer, tmp_path, capsys):
    out = train_to(tmp_path, corpus, tokenizer)
    before = weights(out)
    with (out / "checkpoints/step-00000009/model.safetensors").open("rb+") as file:
        file.truncate(1000)
    pretrain(config("steps=9"), corpus, tokenizer, out, resume=True)
    assert same(before, weights(out))
    assert state.damage(out / "checkpoints/step-00000009") is None


@pytest.mark.parametrize("failing", ["save_file", "torch.save", "write_checksums"])
def test_a_full_disk_ends_clearly_and_keeps_the_checkpoint_before(corpus, tokenizer, tmp_path, monkeypatch, failing):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = (torch, "save") if failing == "torch.save" else (state, failing)
    original = getattr(*target)
    calls = []

    def second_time(*args, **kwargs):
        calls.append(1)
        return (original if len(calls) <= (2 if failing == "torch.save" else 1) else full)(*args, **kwargs)

    monkeypatch.setattr(*target, second_time)
    with pytest.raises(OSError, match=r"step 6 .*No space left.*checkpoint of step 3 is intact.*--resume"):
        pretrain(config(), corpus, tokenizer, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


def test_keeps_the_newest_and_the_best(tmp_path):
    losses = {3: 4.0, 6: 2.0, 9: 3.0, 12: 3.5, 15: 3.6}
    for step, loss in losses.items():
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        (folder / "progress.json").write_text(f'{{"validation": {loss}}}')
        state.write_checksums(folder)
    state.prune(tmp_path, keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000006", "step-00000012", "step-00000015"]


def checkpoint(root, step, loss):
    folder = root / f"step-{step:08d}"
    folder.mkdir()
    (folder / "progress.json").write_text(json.dumps({"validation": loss}))
    state.write_checksums(folder)
    return folder


def names(root):
    return sorted(int(path.name.removeprefix("step-")) for path in root.iterdir())


def test_damaged_checkpoints_do_not_count_when_old_ones_are_deleted(tmp_path):
    for step in (3, 6, 9):
        checkpoint(tmp_path, step, None)
    (tmp_path / "step-00000009/progress.json").write_text("")
    (tmp_path / "step-00000006/progress.json").write_text('{"validation": NULL}')  # the same size
    state.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == [3]
    assert state.newest(tmp_path)[0] == 3
    checkpoint(tmp_path, 6, None)
    (tmp_path / "step-00000003/progress.json").unlink()
    state.prune(tmp_path, keep_last=2)
    assert names(tmp_path) == [3, 6]  # fewer than two are intact: nothing is deleted


def test_the_best_loss_is_a_number_of_an_intact_checkpoint(tmp_path):
    for step, loss in ((3, math.nan), (6, 2.0), (9, 1.0), (12, 3.0), (15, 4.0)):
        checkpoint(tmp_path, step, loss)
    (tmp_path / "step-00000009/progress.json").write_text('{"validation": 1.0   }')
    state.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == [6, 15]


def test_what_a_killed_process_was_writing_or_deleting_is_removed(tmp_path):
    checkpoint(tmp_path, 3, None)
    checkpoint(tmp_path, 6, None).rename(tmp_path / "step-00000006.part")
    state.remove_unfinished(tmp_path)
    assert names(tmp_path) == [3]


def test_a_manifest_without_files_is_no_checkpoint(tmp_path):
    folder = checkpoint(tmp_path, 3, None)
    (folder / "manifest.json").write_text("{}")
    assert state.damage(folder) == "manifest.json lists no files"


def test_with_every_checkpoint_damaged_the_run_is_refused_and_keeps_its_log(corpus, tokenizer, tmp_path):
    out = train_to(tmp_path, corpus, tokenizer)
    before = (out / "log.jsonl").read_text()
    for path in (out / "checkpoints").glob("*/model.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"every checkpoint in .* is damaged"):
        pretrain(config("steps=12"), corpus, tokenizer, out, resume=True)
    assert (out / "log.jsonl").read_text() == before


@pytest.mark.parametrize("change", ["seed=7", "data.max_length=16", "data.step_tokens=128", "masking.rate=0.3"])
def test_what_would_change_the_result_cannot_change_on_resume(change, corpus, tokenizer, tmp_path, damaged_run):
    out = shutil.copytree(damaged_run, tmp_path / "run")
    before = (out / "run.json").read_text()
    with pytest.raises(ValueError, match=rf"trained with {change.split('=')[0]}=.*cannot change this to") as raised:
        pretrain(config("steps=12", change), corpus, tokenizer, out, resume=True)
    assert "\n" not in str(raised.value)
    assert (out / "run.json").read_text() == before


def test_what_may_change_on_resume_is_shown_and_recorded_once_it_works(
    corpus, tokenizer, tmp_path, capsys, monkeypatch, damaged_run
):
    out = shutil.copytree(damaged_run, tmp_path / "run")
    before = (out / "run.json").read_text()
    changed = config("steps=10", "optimizer.lr=1e-4", "tracker=trackio")
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ImportError, match="pip install trackio"):
        pretrain(changed, corpus, tokenizer, out, resume=True)
    assert (out / "run.json").read_text() == before
    pretrain(replace(changed, tracker="none"), corpus, tokenizer, out, resume=True)
    assert "resuming with optimizer.lr=0.0001 (before: " in capsys.readouterr().err
    assert json.loads((out / "run.json").read_text())["optimizer"]["lr"] == 1e-4
    copies = [json.loads((out / f"checkpoints/step-{n:08d}/run.json").read_text())["steps"] for n in (9, 10)]
    assert copies == [9, 10]


def test_a_damaged_run_json_is_named(tmp_path):
    path = tmp_path / "run.json"
    for content in (b"{", b"\xff\xfe", b"[]", b"[" * 100_000, b'{"objectives": 3}'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.json is not a run config|unknown field"):
            settings.load(path)


def test_a_folder_with_a_run_is_not_run_over(corpus, tokenizer, tmp_path):
    out = train_to(tmp_path, corpus, tokenizer, steps=3)
    with pytest.raises(ValueError, match="--resume"):
        pretrain(config("steps=3"), corpus, tokenizer, out)
