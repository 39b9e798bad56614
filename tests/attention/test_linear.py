"""Linear layers through oneDNN: same results and gradients, and only where nothing else hooks into the layer."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from debertakit.attention import linear as module
from debertakit.attention.linear import linear, multiply, pack

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="no oneDNN")


@pytest.fixture(autouse=True)
def onednn(monkeypatch):
    monkeypatch.setenv("DEBERTAKIT_LINEAR", "onednn")
    module._uses_onednn.cache_clear()
    yield
    module._uses_onednn.cache_clear()


@pytest.fixture
def products(monkeypatch):
    """Count the products that go through oneDNN."""
    calls = []
    monkeypatch.setattr(module, "_product", lambda *args, real=module._product: (calls.append(args), real(*args))[1])
    return calls


def layer(bias=True):
    torch.manual_seed(0)
    return nn.Linear(256, 320, bias=bias)


@pytest.mark.parametrize("shape", [(1, 256), (37, 256), (3, 5, 256)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_linear_equals_the_layer(shape, bias, packed, products):
    dense, x = layer(bias), torch.randn(shape)
    if packed:
        pack(dense)
    with torch.no_grad():
        torch.testing.assert_close(linear(dense, x), dense(x), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            linear(dense, x[..., :1].expand(shape)), dense(x[..., :1].expand(shape)), atol=1e-5, rtol=0
        )
    assert products


@pytest.mark.parametrize("shape", [(37, 256), (3, 5, 256)])
def test_gradients_equal_those_of_the_layer(shape, products):
    dense, x = layer(), torch.randn(shape, requires_grad=True)
    wanted = [x, dense.weight, dense.bias]
    upstream = torch.randn(*shape[:-1], 320)
    ours = torch.autograd.grad((linear(dense, x) * upstream).sum(), wanted)
    assert len(products) == 3
    theirs = torch.autograd.grad((dense(x) * upstream).sum(), wanted)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)


def test_second_derivatives_equal_those_of_the_layer():
    dense, x = layer(), torch.randn(4, 256, requires_grad=True)

    def penalty(output):
        (gradient,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), dense.weight)[0]

    torch.testing.assert_close(penalty(linear(dense, x)), penalty(dense(x)), atol=1e-3, rtol=1e-4)


def test_packed_weights_follow_a_change_of_dtype_and_leave_copies_alone():
    dense, x = layer(), torch.randn(3, 256)
    pack(dense)
    with torch.no_grad():
        linear(dense, x)
        other = copy.deepcopy(dense)
        other.weight.add_(1)
        torch.testing.assert_close(linear(other, x), other(x), atol=1e-4, rtol=1e-5)
        dense.bfloat16()
        torch.testing.assert_close(linear(dense, x.bfloat16()), dense(x.bfloat16()), atol=2e-2, rtol=2e-2)


def test_hooks_and_small_layers_are_not_passed_by(products):
    dense, small, x = layer(), nn.Linear(256, 8), torch.randn(3, 256)
    dense.register_forward_hook(lambda _, __, output: 2 * output)
    with torch.no_grad():
        torch.testing.assert_close(linear(dense, x), 2 * nn.functional.linear(x, dense.weight, dense.bias))
        linear(small, x)
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(layer(), x).dtype == torch.bfloat16
    assert not products


@pytest.mark.parametrize(
    ("cpuinfo", "capability", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\n", "AVX512", True),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\n", "AVX2", False),  # ATEN_CPU_CAPABILITY=avx2
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\n", "AVX512", False),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\n", "AVX512", False),
        ("", "DEFAULT", False),
    ],
)
def test_the_cpu_decides(cpuinfo, capability, expected, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.delenv("DEBERTAKIT_LINEAR")
    monkeypatch.setattr(module, "Path", lambda _: tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    module._uses_onednn.cache_clear()
    assert module._uses_onednn(torch.float32, packed=False) is expected
    assert module.choice() == ("oneDNN" if expected else "torch's default")
    monkeypatch.setenv("DEBERTAKIT_LINEAR", "torch")
    module._uses_onednn.cache_clear()
    assert not module._uses_onednn(torch.float32, packed=True)


def test_an_unknown_choice_names_those_that_exist(monkeypatch):
    monkeypatch.setenv("DEBERTAKIT_LINEAR", "mkl")
    with pytest.raises(ValueError, match="must be torch or onednn"):
        multiply(torch.randn(2, 256), torch.randn(256, 256), None)


VARYING = """
import torch
from debertakit.attention.linear import multiply

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4 / 1024  # MB

weight = torch.randn(1024, 256)
for rows in range(1, 700):
    multiply(torch.randn(rows, 256), weight, None)
    if rows == 300:
        before = resident()
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_texts_of_any_length_need_no_more_memory():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        environment.pop(name, None)
    found = subprocess.run([sys.executable, "-c", VARYING], env=environment, capture_output=True, text=True, check=True)
    assert float(found.stdout) < 30
