"""FlexAttention on CPU: its score and mask functions unfused, forward and backward, and compiled, forward only."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention

from debertakit.attention import flex, reference
from debertakit.attention.layout import Layout
from debertakit.attention.positions import RelativePositions
from tests.attention.tables import with_tables

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.slow
@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    view=st.sampled_from(["all", "causal", "prefix", "rows"]),
    tables=st.sampled_from(["both", "c2p", "p2c", "none"]),
    dropout=st.sampled_from([0.0, 0.4]),
    relative=st.sampled_from([RelativePositions(8, 8, 20), RelativePositions(6)]),
)
def test_it_equals_the_reference(lengths, view, tables, dropout, relative):
    layout = Layout.from_lengths(torch.tensor(lengths))
    rows = torch.arange(sum(lengths))
    if view == "causal":
        layout = layout.causal()
    elif view == "prefix":
        layout = layout.prefix(torch.tensor(lengths) // 2)
    elif view == "rows":
        rows = rows[::3]
        layout = layout.at_rows(rows)
    total, heads, d = sum(lengths), 2, 16
    q, k, v = (torch.randn(total, heads, d) for _ in range(3))
    pos_k, pos_q = (torch.randn(2 * relative.span, heads, d) for _ in range(2))
    pos_k = pos_k if tables in ("both", "c2p") else None
    pos_q = pos_q if tables in ("both", "p2c") else None
    arguments = (q[rows], k, v, pos_k, pos_q, layout, relative, 0.2)
    seed = torch.tensor(5)
    expected, _ = with_tables(reference.attend)(*arguments, dropout=dropout, seed=seed)
    torch.testing.assert_close(with_tables(flex.attend)(*arguments, dropout, seed), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_equal_the_reference(dropout, monkeypatch):
    """torch 2.13 refuses the backward pass on CPU, but its unfused implementation can compute it."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    layout, relative = Layout.from_lengths(torch.tensor([20, 9])).causal(), RelativePositions(8, 8, 20)
    inputs = [torch.randn(n, 2, 16, requires_grad=True) for n in (29, 29, 29, 16, 16)]
    d_out, seed = torch.randn(29, 2, 16), torch.tensor(5)
    results = []
    for attend in (flex.attend, lambda *a: reference.attend(*a)[0]):
        out = with_tables(attend)(*inputs, layout, relative, 0.2, dropout, seed)
        results.append(torch.autograd.grad(out, inputs, d_out))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on CPU needs g++")
def test_compiled_on_cpu_equals_the_reference(monkeypatch):
    """The score and mask functions go through torch's compiler, here to C++, which has no backward pass.

    Shapes are static: with dynamic shapes, torch 2.13 fails on CPU ('Mul' object has no attribute 'get_name').
    """
    monkeypatch.setattr(flex, "flex_attention", torch.compile(flex_attention.flex_attention, dynamic=False))
    relative = RelativePositions(8, 8, 20)
    layout = Layout.from_lengths(torch.tensor([20, 9])).causal()
    inputs = [torch.randn(n, 2, 16) for n in (29, 29, 29, 16, 16)]
    expected, _ = with_tables(reference.attend)(*inputs, layout, relative, 0.2)
    torch.testing.assert_close(with_tables(flex.attend)(*inputs, layout, relative, 0.2), expected, atol=2e-5, rtol=1e-4)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        with_tables(flex.attend)(*(x.requires_grad_() for x in inputs), layout, relative, 0.2)
