"""Load the compiled kernel: refuse a library of another version, and use it in many threads and forked processes."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from debertakit.attention import Layout, cpu
from debertakit.model import DebertaModel
from tests.models import small

needs_kernel = pytest.mark.skipif(not cpu.available(), reason=cpu.reason() or "built")
BUILT = Path(cpu.__file__).with_name("_kernel.so")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder from which the kernel is loaded instead."""
    monkeypatch.setattr(cpu, "__file__", str(tmp_path / "cpu.py"))
    cpu._library.cache_clear()
    yield tmp_path
    cpu._library.cache_clear()


@needs_kernel
@pytest.mark.parametrize(("change", "loaded"), [(b"", True), (b"// another version\n", False)])
def test_a_library_of_another_source_is_refused(folder, change, loaded):
    shutil.copy(BUILT, folder)
    shutil.copytree(BUILT.with_name("kernel"), folder / "kernel")
    with open(folder / "kernel" / "plan.h", "ab") as file:
        file.write(change)
    assert cpu.available() == loaded
    if not loaded:
        assert "rebuild it with: pip install -e ." in cpu.reason()


@needs_kernel
def test_a_wheel_has_no_source_to_compare(folder, monkeypatch):
    shutil.copy(BUILT, folder)
    assert cpu.available()
    monkeypatch.setattr(cpu, "_CALL", cpu.struct.Struct("=3q"))  # but the record must have the same size
    cpu._library.cache_clear()
    assert not cpu.available()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_library_without_a_version_is_refused(folder):
    old = "int attention_forward(void *p) { return 0; } int attention_backward(void *p) { return 0; }"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "_kernel.so")]
    subprocess.run(command, input=old, text=True, check=True)
    assert "rebuild" in cpu.reason()


def test_sixteen_threads_on_one_model():
    torch.manual_seed(0)
    model = DebertaModel(small()).eval()
    texts = [torch.randint(5, 99, (1 + i % 3, 3 + 5 * i)) for i in range(16)]

    def run(i: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return [model(texts[(i + j) % 16]).last_hidden_state for j in range(16)]

    expected = [run(i) for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(run, range(16)))
    for ours, alone in zip(found, expected, strict=True):
        for a, b in zip(ours, alone, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@needs_kernel
def test_sixteen_threads_in_forward_and_backward():
    """The kernel alone: bitwise equal to the same calls one after another."""
    torch.manual_seed(0)
    cases = []
    for i in range(16):
        layout = Layout.from_lengths(torch.tensor([40 + 9 * i, 7], dtype=torch.int32))
        cases.append((layout, *torch.randn(4, len(layout.q_positions), 2, 16).unbind(0)))

    def run(case: tuple) -> list[torch.Tensor]:
        layout, *content, d_out = case
        content = [t.detach().requires_grad_() for t in content]
        out = cpu.attend(*content, None, layout, 0.2)
        return [out, *torch.autograd.grad(out, content, d_out)]

    expected = list(map(run, cases))
    with ThreadPoolExecutor(16) as pool:
        for _ in range(5):
            for ours, alone in zip(pool.map(run, cases), expected, strict=True):
                assert all(map(torch.equal, ours, alone))


FORK = """
import multiprocessing, sys, torch
from debertakit.model import DebertaModel
from tests.models import small

torch.set_num_threads(4)
torch.manual_seed(0)
model = DebertaModel(small()).eval()
ids = torch.randint(5, 99, (4, 100))

def run():
    out = model(ids).last_hidden_state
    model.zero_grad()
    out.square().mean().backward()
    return out.detach()

expected = run()

def child(queue):
    ok = torch.allclose(run(), expected, rtol=0, atol=1e-5)
    queue.put((ok, torch.get_num_threads()))

context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
for _ in range(3):
    process = context.Process(target=child, args=(queue,), daemon=True)
    process.start()
    process.join(100)
    if process.exitcode is None:
        process.kill()
        sys.exit("the forked process hangs")
    assert queue.get() == (True, 1)
assert torch.get_num_threads() == 4
run()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(cpu.os, "fork"), reason="no fork on this system")
def test_fork_after_use():
    """Forward and backward, in the parent and then in forked processes. Without our hook, they deadlock in OpenMP."""
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", FORK], cwd=root, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
