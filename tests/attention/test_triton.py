"""Compare the Triton kernels with the reference: values, and gradients of q, k, v and both position tables.

They run on CPU in Triton's interpreter. ``make test-triton`` installs triton and runs this file.
"""

import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from debertakit.attention import (
    Layout,
    PositionTables,
    RelativePositions,
    disentangled_attention,
    reference,
    use_backend,
)
from tests.attention.tables import RULES, V3, lengths, tensors, with_gradients, with_tables

interpreted = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs triton and TRITON_INTERPRET=1: make test-triton",
)


def check(layout: Layout, relative: RelativePositions, heads=1, d=16, dropout=0.0, c2p=True, p2c=True, dtype=None):
    """Return the results of the kernels. In half precision, the reference gets the same rounded inputs in fp32."""
    from debertakit.attention import triton

    inputs = tensors(layout, heads, d, relative.count or 2 * relative.span, c2p, p2c)
    if dtype is not None:
        inputs = [None if x is None else x.detach().to(dtype).requires_grad_() for x in inputs]
    full = [None if x is None else x.detach().float().requires_grad_() for x in inputs]
    d_out = torch.randn(inputs[0].shape).to(inputs[0].dtype)
    scale, seed = (3 * d) ** -0.5, torch.tensor(20240 + heads)
    fused, written_out = with_tables(triton.attend), with_tables(reference.attend)
    ours = with_gradients(lambda x: fused(*x, layout, relative, scale, dropout, seed), inputs, d_out)
    truth = with_gradients(lambda x: written_out(*x, layout, relative, scale, dropout, seed)[0], full, d_out)
    for name, expected in truth.items():
        if dtype is None:
            close = {"atol": 2e-5, "rtol": 2e-5}
        else:  # two roundings of the inputs of each product
            close = {"atol": 4 * torch.finfo(dtype).eps * max(1.0, float(expected.abs().max())), "rtol": 0.0}
            assert ours[name].dtype is dtype
        torch.testing.assert_close(ours[name].float(), expected, **close, msg=lambda m, name=name: f"{name}: {m}")
    return ours


@interpreted
@pytest.mark.slow
@settings(max_examples=8)
@given(
    runs=st.lists(st.integers(0, 40), min_size=1, max_size=2).filter(any),
    heads=st.integers(1, 2),
    d=st.sampled_from([8, 16, 24]),
    relative=st.sampled_from(RULES),
    shift=st.sampled_from([0, 150, -150]) | st.integers(-20, 20),
    view=st.sampled_from(["all", "causal", "prefix", "rows", "shuffled"]),
    dropout=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 2**16),
)
def test_equals_the_reference(runs, heads, d, relative, shift, view, dropout, seed):
    """``rows`` and ``shuffled`` give positions with gaps, which another path computes."""
    torch.manual_seed(seed)
    layout = lengths(*runs)
    if view == "causal":
        layout = layout.causal()
    elif view == "prefix":
        layout = layout.prefix(torch.tensor(runs) // 2)
    elif view == "rows":
        layout = layout.at_rows((torch.rand(sum(runs)) < 0.3).nonzero().squeeze(-1))
    elif view == "shuffled":
        layout = replace(layout, q_positions=torch.randint(40, (sum(runs),), dtype=torch.int32))
    check(replace(layout, q_positions=layout.q_positions + shift), relative, heads, d, dropout)


@interpreted
@pytest.mark.parametrize(
    "layout",
    [
        lambda: lengths(70, 33),
        lambda: lengths(70).causal(),
        lambda: lengths(100).at_rows(torch.arange(3, 100, 7)),
        lambda: Layout.from_mask(torch.rand(2, 50) < 0.8)[0],
    ],
    ids=["two", "causal", "rows", "holes"],
)
def test_near_and_far_tiles(layout):
    """Distances beyond the reach of 9 in both directions, with dropout."""
    check(layout(), RULES[0], dropout=0.3)


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "relative"),
    [
        (lambda: lengths(600).at_rows(torch.arange(560, 600)), V3),
        (lambda: lengths(600).at_rows(torch.arange(20)), V3),
        (lambda: lengths(600).at_rows(torch.arange(3, 600, 25)), V3),
        (lambda: lengths(110), RelativePositions(span=40)),
    ],
    ids=["last", "first", "rows", "exact"],
)
def test_long_texts(layout, relative):
    check(layout(), relative, d=64)


@interpreted
@pytest.mark.parametrize(("queries", "keys"), [([5, 0, 36], [33, 7, 1]), ([0, 3], [20, 0])])
def test_queries_of_another_length(queries, keys):
    """Lengths differ, either may be 0, and a query without keys gives zeros."""
    q, k = lengths(*queries), lengths(*keys)
    ours = check(replace(k, q_offsets=q.q_offsets, q_positions=q.q_positions + 4, max_q=q.max_q), RULES[0])
    for s, (n, seen) in enumerate(zip(queries, keys, strict=True)):
        if n and not seen:
            rows = slice(int(q.q_offsets[s]), int(q.q_offsets[s]) + n)
            assert not ours["out"][rows].any()
            assert not ours["q"][rows].any()


@interpreted
@pytest.mark.parametrize(("c2p", "p2c"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("gaps", [False, True])
def test_fewer_terms(c2p, p2c, gaps):
    layout = lengths(36, 5)
    check(layout.at_rows(torch.tensor([2, 30, 40])) if gaps else layout, RULES[3], c2p=c2p, p2c=p2c)


@interpreted
def test_half_precision():
    """fp16 only: Triton's interpreter does not multiply bf16."""
    check(lengths(40), RULES[3], dtype=torch.float16)


@interpreted
def test_a_table_cut_to_the_rows_within_reach():
    check(lengths(34), V3.cut(33))


@interpreted
def test_strided_inputs_and_frozen_tables():
    """q, k and v are views of one projection. Tables without gradients get none."""
    from debertakit.attention import triton

    layout, packed = lengths(20, 13), torch.randn(33, 3, 2, 16, requires_grad=True)
    tables = PositionTables(("c2p", "p2c"), *torch.randn(2, 18, 2, 16), RULES[0])
    grads = []
    for attend in (triton.attend, lambda *a: reference.attend(*a)[0]):
        out = attend(*packed.unbind(1), tables, layout, 0.2)
        grads.append(torch.autograd.grad(out.square().sum(), packed)[0])
    torch.testing.assert_close(*grads, atol=2e-5, rtol=2e-5)


@interpreted
def test_selected_by_name_with_torchs_seed(monkeypatch):
    """The backend draws the same dropout as the reference."""
    from debertakit.attention import triton

    layout, (q, k, v) = lengths(9), torch.randn(3, 9, 2, 8)
    results = []
    for name in ("triton", "reference"):
        torch.manual_seed(3)
        with use_backend(name):
            results.append(disentangled_attention(q, k, v, None, layout, scale=0.3, dropout=0.5))
    torch.testing.assert_close(*results)
    monkeypatch.setattr(triton, "INTERPRETED", False)
    with use_backend("triton"), pytest.raises(ValueError, match="takes tensors on a GPU, got cpu"):
        disentangled_attention(q, k, v, None, layout, scale=0.3)


@interpreted
def test_wrong_calls_say_what_is_wrong():
    from debertakit.attention import triton

    layout, q = lengths(4), torch.randn(4, 2, 8)
    table = torch.randn(18, 2, 8)
    with pytest.raises(ValueError, match="does not compute p2p"):
        triton.attend(q, q, q, PositionTables(("p2p",), table, table, RULES[0]), layout, 1.0)
    with pytest.raises(TypeError, match="float64"):
        triton.attend(*[q.double()] * 3, None, layout, 1.0)
    with pytest.raises(TypeError, match="interpreter does not multiply bfloat16"):
        triton.attend(*[q.bfloat16()] * 3, None, layout, 1.0)
    with pytest.raises(ValueError, match="head sizes up to 128, got 136"):
        triton.attend(*[torch.randn(4, 1, 136)] * 3, None, layout, 1.0)
    with pytest.raises(ValueError, match="dropout needs a seed"):
        triton.attend(q, q, q, None, layout, 1.0, 0.5)


def test_without_triton_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "debertakit.attention.triton", raising=False)
    monkeypatch.delattr("debertakit.attention.triton", raising=False)
    q = torch.randn(4, 2, 8)
    with use_backend("triton"), pytest.raises(ImportError, match="pip install triton"):
        disentangled_attention(q, q, q, None, lengths(4), scale=1.0)


def test_never_selected_automatically():
    from debertakit.attention import _backend_for

    class OnGpu:
        is_cuda = True

    assert _backend_for(OnGpu(), None) == "flex"
