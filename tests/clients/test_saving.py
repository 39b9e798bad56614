"""Whole models through pickle: torch.save, copies, other processes, and processes without debertakit."""

import copy
import io
import multiprocessing
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch

from debertakit import accelerate, undo
from tests.stock import VARIANTS, assert_same, inputs, pair

STEPS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


def logits(model):
    with torch.no_grad():
        return model(**inputs()).logits


@pytest.mark.parametrize("name", ["deberta-v3-base", "deberta-base"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_copy_computes_the_same_with_its_own_weights(variant, step, name):
    model, stock = pair(variant, name=name)
    before = logits(model)  # what an evaluation keeps is not copied
    twin = STEPS[step](model)
    assert_same(logits(twin), before)
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            weight.mul_(0.5)
            stock.get_parameter(name).mul_(0.5)
    assert_same(logits(twin), logits(stock))
    assert_same(logits(model), before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_save_and_load(variant):
    model, _ = pair(variant)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert_same(logits(torch.load(file, weights_only=False)), logits(model))


def test_a_copied_accelerated_model_can_be_undone():
    model, stock = pair("accelerated")
    twin = copy.deepcopy(model)
    undo(twin)
    assert torch.equal(logits(twin), logits(stock))
    assert_same(logits(accelerate(twin)), logits(stock))


WITHOUT_DEBERTAKIT = """
    import sys

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "debertakit":
                raise ModuleNotFoundError("No module named 'debertakit'", name="debertakit")

    sys.meta_path.insert(0, Absent())
    import torch

    model = torch.load(sys.argv[1], weights_only=False)
    batch, expected = torch.load(sys.argv[2])
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, expected, atol=2e-5, rtol=1e-4)
    assert not any(name.partition(".")[0] == "debertakit" for name in sys.modules)
    print(type(model).__name__)
"""


def test_an_accelerated_model_saved_whole_loads_where_debertakit_is_absent(tmp_path):
    model, stock = pair("accelerated")
    logits(model)
    torch.save(model, tmp_path / "model.pt")
    torch.save((inputs(), logits(stock)), tmp_path / "expected.pt")
    code = textwrap.dedent(WITHOUT_DEBERTAKIT)
    command = [sys.executable, "-c", code, str(tmp_path / "model.pt"), str(tmp_path / "expected.pt")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == type(stock).__name__


def _send(model, pipe):
    torch.set_num_threads(1)
    pipe.send(logits(model).tolist())


def test_an_accelerated_model_is_sent_to_a_new_process():
    model, _ = pair("accelerated")
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_send, args=(model, theirs))
    process.start()
    found = torch.tensor(ours.recv()) if ours.poll(120) else None
    process.join(30)
    assert found is not None
    assert_same(found, logits(model))


@pytest.mark.parametrize("variant", VARIANTS)
def test_eight_threads_share_a_model(variant):
    from concurrent.futures import ThreadPoolExecutor

    model, _ = pair(variant)
    expected = logits(model)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(logits, [model] * 32):
            assert_same(found, expected, tolerance=0)
