"""Compare the fused kernel with the reference: values, and gradients of q, k, v and both position tables."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad

from debertakit.attention import (
    Layout,
    PositionTables,
    RelativePositions,
    cpu,
    disentangled_attention,
    reference,
    use_backend,
)
from tests.attention.tables import RULES, V3, lengths, tensors, with_gradients, with_tables

pytestmark = pytest.mark.skipif(not cpu.available(), reason=cpu.reason() or "built")

QUIET = settings(max_examples=40)
ISAS = [name for name in cpu.ISAS if cpu.available() and cpu._library()[0].attention_select(name.encode())][::-1]
fused, written_out = with_tables(cpu.attend), with_tables(reference.attend)


@pytest.fixture(autouse=True, scope="module", params=ISAS or ["none"])
def isa(request):
    """Run all tests of this file once per instruction set of this CPU."""
    library = cpu._library()[0]
    before = cpu.instruction_set()
    library.attention_select(request.param.encode())
    yield request.param
    library.attention_select(before.encode())


def check(layout: Layout, relative: RelativePositions, heads=2, d=16, dropout=0.0, c2p=True, p2c=True, tolerance=2e-5):
    inputs = tensors(layout, heads, d, 2 * relative.span, c2p, p2c)
    assert inputs[0] is not None
    d_out = torch.randn_like(inputs[0])
    scale, seed = (3 * d) ** -0.5, torch.tensor(20240 + heads)
    ours = with_gradients(lambda x: fused(*x, layout, relative, scale, dropout, seed), inputs, d_out)
    truth = with_gradients(lambda x: written_out(*x, layout, relative, scale, dropout, seed)[0], inputs, d_out)
    for name, expected in truth.items():
        torch.testing.assert_close(
            ours[name], expected, atol=tolerance, rtol=tolerance, msg=lambda m, name=name: f"{name}: {m}"
        )
    return ours


@QUIET
@given(
    runs=st.lists(st.integers(0, 70), min_size=1, max_size=4).filter(any),
    heads=st.integers(1, 4),
    d=st.integers(1, 16).map(lambda n: 8 * n),
    relative=st.sampled_from(RULES),
    shift=st.sampled_from([0, 0, 150, -150]) | st.integers(-20, 20),
    dropout=st.sampled_from([0.0, 0.0, 0.1, 0.6]),
    seed=st.integers(0, 2**16),
)
def test_equals_the_reference(runs, heads, d, relative, shift, dropout, seed):
    """``shift`` moves queries relative to keys: groups of eight start at any distance, or all distances are clamped."""
    torch.manual_seed(seed)
    layout = lengths(*runs)
    check(replace(layout, q_positions=layout.q_positions + shift), relative, heads, d, dropout)


@QUIET
@given(
    columns=st.integers(2, 90),
    sequences=st.integers(1, 3),
    density=st.sampled_from([0.2, 0.7, 0.97]),
    asked=st.sampled_from([None, 0.15, 0.6]),
    order=st.sampled_from(["all", "causal", "prefix"]),
    relative=st.sampled_from(RULES),
    dropout=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**16),
)
def test_holes_subsets_and_orders(columns, sequences, density, asked, order, relative, dropout, seed):
    """Combine gaps in the positions, subsets of query rows, and causal or prefix masks."""
    torch.manual_seed(seed)
    mask = torch.rand(sequences, columns) < density
    mask[0, 0] = True
    layout, _ = Layout.from_mask(mask)
    if order == "causal":
        layout = layout.causal()
    elif order == "prefix":
        layout = layout.prefix(torch.randint(columns, (sequences,)))
    if asked is not None:
        rows = (torch.rand(layout.q_positions.shape[0]) < asked).nonzero().squeeze(-1)
        layout = layout.at_rows(rows)
    check(layout, relative, dropout=dropout)


@pytest.mark.parametrize(
    ("layout", "relative"),
    [
        (lengths(700), V3),  # beyond the last bucket in both directions
        (lengths(513, 129), V3),
        (lengths(640).causal(), V3),
        (lengths(600), RelativePositions(span=512)),
        (lengths(600), RelativePositions(span=9)),  # whole tiles beyond the last row
        (lengths(600).at_rows(torch.arange(3, 600, 7)), V3),
    ],
    ids=["one", "two", "causal", "exact", "narrow", "rows"],
)
def test_long_texts(layout, relative):
    torch.manual_seed(0)
    check(layout, relative, heads=1, d=64)


@pytest.mark.parametrize(("queries", "keys"), [([5, 0, 40], [33, 7, 1]), ([1, 1], [150, 9]), ([0, 3], [20, 0])])
def test_queries_of_another_length(queries, keys):
    """Cross-attention and cached decoding: lengths differ, either may be 0, and a query without keys gives zeros."""
    torch.manual_seed(1)
    q, k = lengths(*queries), lengths(*keys)
    layout = replace(k, q_offsets=q.q_offsets, q_positions=q.q_positions + 4, max_q=q.max_q)
    ours = check(layout, RULES[0])
    for s, (n, seen) in enumerate(zip(queries, keys, strict=True)):
        if n and not seen:
            start = int(q.q_offsets[s])
            assert not ours["out"][start : start + n].any()
            assert not ours["q"][start : start + n].any()


def test_a_query_that_sees_nothing_gives_zeros():
    torch.manual_seed(2)
    layout = lengths(20, 12)
    visible = torch.randint(0, 21, (32,), dtype=torch.int32)
    visible[[3, 25]] = 0
    ours = check(replace(layout, visible=visible), RULES[3], dropout=0.2)
    assert not ours["out"][[3, 25]].any()
    assert not ours["q"][[3, 25]].any()


def test_queries_in_any_order():
    torch.manual_seed(3)
    layout = lengths(50, 30)
    order = torch.cat([torch.randperm(50), torch.randperm(30)]).int()
    check(replace(layout, q_positions=order), V3)


@pytest.mark.parametrize(("c2p", "p2c"), [(True, False), (False, True), (False, False)])
def test_fewer_terms(c2p, p2c):
    torch.manual_seed(4)
    check(lengths(140, 21), RULES[3], c2p=c2p, p2c=p2c)


def test_a_table_cut_to_the_rows_within_reach():
    torch.manual_seed(5)
    layout = lengths(19, 30)
    relative = V3.cut(29)
    assert relative.count is not None
    inputs = tensors(layout, 2, 16, relative.count)
    ours, truth = (
        with_gradients(lambda x, f=f: f(*x, layout, relative, 0.2), inputs, torch.ones(49, 2, 16))
        for f in (fused, lambda *a: written_out(*a)[0])
    )
    for name, expected in truth.items():
        torch.testing.assert_close(ours[name], expected, atol=1e-5, rtol=1e-5)


def test_strided_inputs_are_read_in_place(monkeypatch):
    """q, k and v are views of one fused projection, split into thirds (v2, v3) or per head (v1)."""
    torch.manual_seed(6)
    layout, table = lengths(40, 9), torch.randn(18, 2, 2, 24)
    thirds = torch.randn(49, 3, 2, 24).unbind(1)
    by_head = torch.randn(49, 2, 72).chunk(3, dim=-1)
    for q, k, v in (thirds, by_head):
        assert not q.is_contiguous()
        expected = written_out(q, k, v, *table.unbind(1), layout, RULES[0], 0.1)[0]
        monkeypatch.setattr(Tensor, "contiguous", lambda self: pytest.fail("copied"))
        ours = fused(q, k, v, *table.unbind(1), layout, RULES[0], 0.1)
        monkeypatch.undo()
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_a_strided_last_dimension_is_copied():
    torch.manual_seed(7)
    layout = lengths(11)
    q, k, v = (torch.randn(16, 2, 11).transpose(0, 2) for _ in range(3))
    expected = written_out(q, k, v, None, None, layout, None, 0.3)[0]
    torch.testing.assert_close(fused(q, k, v, None, None, layout, None, 0.3), expected, atol=1e-5, rtol=1e-5)


def test_gradients_that_are_broadcast():
    """The gradient of sum() is a tensor with stride 0."""
    torch.manual_seed(8)
    layout = lengths(30)
    inputs = tensors(layout, 2, 16, 18)
    ours, truth = (
        torch.autograd.grad(f(*inputs, layout, RULES[0], 0.2).sum(), inputs)
        for f in (fused, lambda *a: written_out(*a)[0])
    )
    for mine, theirs in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out(dtype):
    """Only inputs and outputs are rounded, so the error is that of one rounding."""
    torch.manual_seed(9)
    layout = lengths(60, 33)
    full = tensors(layout, 2, 32, 18)
    half = [t.detach().to(dtype).requires_grad_() for t in full if t is not None]
    d_out = torch.randn(93, 2, 32).to(dtype)
    ours = with_gradients(lambda x: fused(*x, layout, RULES[0], 0.1), half, d_out)
    exact = [t.detach().float().requires_grad_() for t in half]
    truth = with_gradients(lambda x: written_out(*x, layout, RULES[0], 0.1)[0], exact, d_out.float())
    step = torch.finfo(dtype).eps
    for name, expected in truth.items():
        assert ours[name].dtype is dtype
        error = (ours[name].float() - expected).abs().max() / expected.abs().max()
        assert error < 2 * step, f"{name}: {error:.1e}"


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("runs", [(300, 90, 130), (400,)])
def test_threads_do_not_change_the_result(runs):
    """Forward is bitwise equal for any thread count, backward only for equal counts (the order of sums changes)."""
    torch.manual_seed(10)
    layout = lengths(*runs)
    inputs = tensors(layout, 2, 16, 512)
    d_out = torch.randn(sum(runs), 2, 16)
    results = []
    for threads in (1, 2, 2, 5):
        torch.set_num_threads(threads)
        results.append(with_gradients(lambda x: fused(*x, layout, V3, 0.2), inputs, d_out))
    one, two, again, five = results
    for name in one:
        assert torch.equal(two[name], again[name])
        for other in (two, five):
            torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)
    assert torch.equal(one["out"], two["out"])
    assert torch.equal(one["out"], five["out"])


@pytest.mark.usefixtures("_threads")
def test_threads_without_an_openmp_runtime(monkeypatch):
    torch.manual_seed(11)
    torch.set_num_threads(3)
    library = cpu._library()[0]
    expected = check(lengths(200, 64), V3)["out"]
    monkeypatch.setattr(cpu, "_library", lambda: (library, "", 0))
    torch.manual_seed(11)
    assert torch.equal(check(lengths(200, 64), V3)["out"], expected)


def test_dropout_keeps_the_reference_mask_and_depends_on_the_seed():
    torch.manual_seed(12)
    layout = lengths(64)
    q, k, v, pos_k, pos_q = tensors(layout, 2, 16, 18)
    with torch.no_grad():
        a, b, same = (
            fused(q, k, v, pos_k, pos_q, layout, RULES[0], 0.2, 0.5, torch.tensor(seed)) for seed in (1, 2, 1)
        )
        expected = written_out(q, k, v, pos_k, pos_q, layout, RULES[0], 0.2, 0.5, torch.tensor(1))[0]
    assert torch.equal(a, same)
    assert not torch.allclose(a, b)
    torch.testing.assert_close(a, expected, atol=1e-5, rtol=1e-5)


def test_nan_is_not_hidden():
    layout = lengths(20)
    q, k, v = torch.randn(3, 20, 1, 8).unbind(0)
    q[4, 0, 2] = float("nan")
    out = fused(q, k, v, None, None, layout, None, 0.3)
    assert out[4].isnan().all()
    assert not out[5].isnan().any()


def test_large_scores_do_not_overflow():
    torch.manual_seed(13)
    layout = lengths(300)
    q, k, v = (torch.randn(300, 1, 8) * 30 for _ in range(3))
    expected = written_out(q, k, v, None, None, layout, None, 1.0)[0]
    torch.testing.assert_close(fused(q, k, v, None, None, layout, None, 1.0), expected, atol=1e-2, rtol=1e-3)


def test_frozen_tables_cost_no_gradient():
    torch.manual_seed(14)
    layout = lengths(30)
    inputs = tensors(layout, 2, 16, 18)
    frozen = [t.detach() if i > 2 else t for i, t in enumerate(inputs)]
    for mine, theirs in zip(
        torch.autograd.grad(fused(*frozen, layout, RULES[0], 0.2).sum(), inputs[:3]),
        torch.autograd.grad(fused(*inputs, layout, RULES[0], 0.2).sum(), inputs[:3]),
        strict=True,
    ):
        assert torch.equal(mine, theirs)


def arguments(layout: Layout, relative: RelativePositions, dropout: float = 0.0) -> tuple:
    seed = torch.tensor(3) if dropout else None
    lookup = relative.lookup()
    rows = (layout.q_offsets, layout.k_offsets, layout.q_positions, layout.k_positions, layout.visible, lookup)
    return *tensors(layout, 2, 16, 2 * relative.span), *rows, 0.2, dropout, seed


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_opcheck(dropout):
    torch.manual_seed(15)
    torch.library.opcheck(cpu.attention_forward, arguments(lengths(12, 20).causal(), RULES[0], dropout))


@pytest.mark.slow
def test_compiled_with_changing_lengths_equals_eager():
    torch.manual_seed(16)

    def run(q, k, v, pos_k, pos_q, layout):
        return fused(q * 2, k, v, pos_k, pos_q, layout, RULES[3], 0.1).sin()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for layout in (lengths(30, 11), lengths(17, 9, 25)):
        inputs = tensors(layout, 2, 16, 16)
        d_out = torch.randn(layout.q_positions.shape[0], 2, 16)
        ours, truth = (
            with_gradients(lambda x, f=f, layout=layout: f(*x, layout), inputs, d_out) for f in (compiled, run)
        )
        for name, expected in truth.items():
            torch.testing.assert_close(ours[name], expected)


def test_exported_with_the_operator_in_the_graph():
    fresh = RelativePositions(span=8, buckets=8, max_position=31)  # not cached: its lookup is built during tracing

    class Attention(torch.nn.Module):
        def forward(self, q, k, v, pos_k, pos_q, q_offsets, positions):
            layout = Layout(q_offsets, q_offsets, positions, positions, max_q=0, max_k=0, max_distance=0)
            return fused(q, k, v, pos_k, pos_q, layout, fresh, 0.1)

    def example(layout):
        return *(t.detach() for t in tensors(layout, 2, 16, 16)), layout.q_offsets, layout.q_positions

    torch.manual_seed(17)
    total, sequences = torch.export.Dim("total", min=2), torch.export.Dim("sequences", min=2)
    shapes = ({0: total}, {0: total}, {0: total}, None, None, {0: sequences}, {0: total})
    program = torch.export.export(Attention(), example(lengths(20, 9)), dynamic_shapes=shapes)
    assert "debertakit.attention_forward" in str(program.graph)
    other = example(lengths(31, 2, 8))
    torch.testing.assert_close(program.module()(*other), Attention()(*other))
    assert type(fresh.lookup()) is Tensor


def test_inference_leaves_the_dispatcher_out(monkeypatch):
    layout = lengths(5)
    q, k, v = torch.randn(3, 5, 1, 8).unbind(0)
    monkeypatch.setattr(cpu, "attention_forward", lambda *_: pytest.fail("dispatched"))
    fused(q, k, v, None, None, layout, None, 0.1)


def test_wrong_calls_say_what_is_wrong():
    layout = lengths(6)
    q, k, v = torch.randn(3, 6, 2, 8).unbind(0)
    table = torch.randn(10, 2, 8)
    with pytest.raises(ValueError, match="row outside the position tables"):
        fused(q, k, v, table[:7], None, layout, RelativePositions(span=5), 1.0)
    with pytest.raises(ValueError, match="2 heads of size 8"):
        fused(q, k, v, table[:, :1], None, layout, RelativePositions(span=5), 1.0)
    with pytest.raises(ValueError, match="does not compute p2p"):
        cpu.attend(q, k, v, PositionTables(("p2p",), table, table, RelativePositions(span=5)), layout, 1.0)
    with pytest.raises(ValueError, match="offsets"):
        fused(q, k, v, None, None, replace(layout, k_offsets=torch.tensor([0, 9]).int()), None, 1.0)
    with pytest.raises(ValueError, match="layout does not match 6 queries"):
        fused(q, k, v, None, None, lengths(5), None, 1.0)
    with pytest.raises(ValueError, match="multiples of 8"):
        fused(q[..., :6], k[..., :6], v[..., :6], None, None, layout, None, 1.0)
    with pytest.raises(ValueError, match="needs a seed"):
        fused(q, k, v, None, None, layout, None, 1.0, 0.1)
    with pytest.raises(ValueError, match="scale above 0"):
        fused(q, k, v, None, None, layout, None, 0.0)


def test_the_instruction_set_can_be_forced(isa, monkeypatch):
    for wanted in (isa, "sse9"):
        monkeypatch.setenv("DEBERTAKIT_KERNEL", wanted)
        cpu._library.cache_clear()
        try:
            assert cpu.available() == (wanted == isa)
            assert cpu.instruction_set() == (isa if wanted == isa else "")
            assert ("DEBERTAKIT_KERNEL=sse9" in cpu.reason()) == (wanted != isa)
        finally:
            cpu._library.cache_clear()


def test_second_derivatives_equal_those_of_the_reference():
    layout, relative = lengths(5, 3), RelativePositions(4)
    content = [torch.randn(8, 2, 8, requires_grad=True) for _ in range(3)]
    tables = [torch.randn(8, 2, 8, requires_grad=True) for _ in range(2)]
    found = []
    for attend in (fused, lambda *x: written_out(*x)[0]):
        out = attend(*content, *tables, layout, relative, 0.3)
        first = torch.autograd.grad(out.pow(2).sum(), [*content, *tables], create_graph=True)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), [*content, *tables]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_forward_mode_keeps_the_tangent():
    """The fused operator would drop the tangent, so forward mode must not use it."""
    layout = lengths(5)
    q, k, v, tangent = (torch.randn(5, 2, 8) for _ in range(4))
    attend = partial(disentangled_attention, positions=None, layout=layout, scale=0.3)
    _, expected = torch.func.jvp(lambda x: written_out(x, k, v, None, None, layout, None, 0.3)[0], (q,), (tangent,))
    _, found = torch.func.jvp(lambda x: attend(x, k, v), (q,), (tangent,))
    torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(attend(forward_ad.make_dual(q, tangent), k, v))
        torch.testing.assert_close(dual.tangent, expected)


@given(st.integers(1, 700), st.data())
def test_the_content_hash_sees_a_change_of_any_byte(size, data):
    numbers = torch.arange(size, dtype=torch.uint8)
    before = cpu.content_hash(numbers)
    place, value = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, 255))
    numbers[place] ^= value
    assert cpu.content_hash(numbers) != before
    numbers[place] ^= value
    assert cpu.content_hash(numbers) == before
    assert cpu.content_hash(torch.cat([numbers, torch.zeros(1, dtype=torch.uint8)])) != before


def test_rows_that_change_places_change_the_content_hash():
    rows = torch.randn(64, 64)
    assert cpu.content_hash(rows) != cpu.content_hash(rows.flip(0).contiguous())
    assert cpu.content_hash(rows.t()) is None  # not dense, so its memory cannot be hashed


def test_supports_leaves_the_rest_to_the_reference():
    q = torch.randn(4, 2, 8)
    assert cpu.supports(q)
    assert not cpu.supports(q.double())
    assert not cpu.supports(q[..., :6])
    assert not cpu.supports(q.to("meta"))


@pytest.mark.parametrize("backend", ["cpu", "flex", "triton"])
def test_fast_backends_leave_other_terms_to_the_reference(backend):
    layout, table = lengths(4), torch.randn(10, 2, 8)
    q = torch.randn(4, 2, 8)
    positions = PositionTables(("c2p", "p2p"), table, table, RelativePositions(span=5))
    with use_backend(backend), pytest.raises(ValueError, match="does not compute p2p"):
        disentangled_attention(q, q, q, positions, layout, scale=1.0)
    out = disentangled_attention(q, q, q, positions, layout, scale=1.0)
    torch.testing.assert_close(out, reference.attend(q, q, q, positions, layout, 1.0)[0], rtol=0, atol=0)


def test_without_the_library_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "__file__", str(tmp_path / "cpu.py"))
    cpu._library.cache_clear()
    try:
        assert not cpu.available()
        assert "not built" in cpu.reason()
        assert "\n" not in cpu.reason()
        assert not cpu.supports(torch.randn(4, 2, 8))
    finally:
        cpu._library.cache_clear()


def test_the_kernel_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("DEBERTAKIT_KERNEL", "0")
    cpu._library.cache_clear()
    try:
        assert not cpu.available()
        assert "DEBERTAKIT_KERNEL=0" in cpu.reason()
    finally:
        cpu._library.cache_clear()
