"""Disentangled attention as Triton kernels for CUDA: forward and backward, without a length² tensor.

Softmax runs online over blocks of keys, and the backward pass recomputes the probabilities from the logsumexp of each
query (FlashAttention). The position terms are computed inside the kernels. In a text without gaps, a tile of B queries
and B keys has 2 B - 1 distances, nearest to nearest + 2 B - 2. The table rows of the first B of these distances are
Klow and Qlow, those of the next B are Khigh and Qhigh, all [B, d]. Pair (i, j), counted inside the tile, has slot
w = i - j + B - 1, and u = w mod B. For one query i, each u belongs to one j, and the row is low if u >= i. For one key
j, each u belongs to one i, and the row is low if u + j >= B - 1. So the terms are gathered from tiles [B, B]:

    C[i, u] = Qc_i . (Klow_u if u >= i, else Khigh_u)              c2p(i, j) = C[i, u(i, j)]
    P[u, j] = Kc_j . (Qlow_u if u + j >= B - 1, else Qhigh_u)      p2c(i, j) = P[u(i, j), j]

The backward pass gathers dC and dP from dS in the same way, and multiplies their low and high parts with the tables
(for dQ, dK) and with Qc and Kc (for dKr, dQr, added with atomics). Two cases differ:

    far tiles   All distances are beyond the table's reach and share one row, so C and P are vectors.
    gaps        Queries of masked rows only, holes in the mask, two streams: the distances of a tile can span more than
                2 B, so the forward pass reads the table in as many windows of B distances as necessary. The backward
                pass adds dS to [heads, queries or keys, rows] with atomics, and torch multiplies these with the tables.

Numerically tested in Triton's interpreter and compiled for sm_80 and sm_90, not yet timed on a GPU. Therefore it is
never selected automatically: ``use_backend("triton")``.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (the types of kernel arguments are Triton's)

from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from debertakit.attention.arguments import check_dropout, check_shapes
from debertakit.attention.layout import Layout
from debertakit.attention.positions import PositionTables

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        "the triton backend needs triton, which torch's CUDA builds for Linux include; otherwise: pip install triton"
    ) from error

LOG2E = tl.constexpr(1.4426950408889634)
MAX_HEAD_SIZE = 128


TILE, STAGES = 32, 2
"""Queries (and keys) of a tile, and stages of the pipeline. Tiles of 64 would spill registers."""


def warps(head_size: int, dtype: torch.dtype) -> int:
    """Return the warps of a program. Fewer would spill more registers (benchmarks/triton_cubins.py)."""
    return 4 if head_size <= 64 and dtype is not torch.float32 else 8


@torch.compiler.disable  # torch.compile breaks its graph here
def attend(
    q: Tensor,  # [total queries, heads, d]; rows and heads may be strided
    k: Tensor,  # [total keys, heads, d]
    v: Tensor,  # [total keys, heads, d]
    positions: PositionTables | None,  # FUSED_TERMS only
    layout: Layout,
    scale: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """Compute attention outputs [total queries, heads, d]. The equation is at the top of ``reference.py``."""
    pos_k = pos_q = lookup = None
    if positions is not None:
        pos_k, pos_q, lookup = positions.fused("the triton backend", q.device)
    _check(q, k, v, pos_k, pos_q, lookup, layout, dropout, seed)
    return _Attention.apply(q, k, v, pos_k, pos_q, lookup, layout, scale, dropout, seed)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pos_k: Tensor | None,
    pos_q: Tensor | None,
    lookup: Tensor | None,
    layout: Layout,
    dropout: float,
    seed: Tensor | None,
) -> None:
    if not q.is_cuda and not INTERPRETED:
        raise ValueError(f"the triton backend takes tensors on a GPU, got {q.device}")
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"the triton backend takes float32, bfloat16 or float16, got {q.dtype}")
    if INTERPRETED and q.dtype is torch.bfloat16:  # triton 3.7 multiplies the bit patterns
        raise TypeError("Triton's interpreter does not multiply bfloat16; use float16 or float32")
    if q.shape[-1] > MAX_HEAD_SIZE:
        raise ValueError(f"the triton backend takes head sizes up to {MAX_HEAD_SIZE}, got {q.shape[-1]}")
    rows = (layout.q_offsets, layout.k_offsets, layout.q_positions, layout.k_positions, layout.visible)
    check_shapes((q, k, v), (pos_k, pos_q), (), None, rows, lookup)
    check_dropout(dropout, seed)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pos_k: Tensor | None,
        pos_q: Tensor | None,
        lookup: Tensor | None,
        layout: Layout,
        scale: float,
        dropout: float,
        seed: Tensor | None,
    ) -> Tensor:
        q, k, v = (_dense_rows(t.to(q.dtype)) for t in (q, k, v))
        tables = [None if t is None else t.to(q.dtype).contiguous() for t in (pos_k, pos_q)]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
        shared, options = _arguments(q, k, v, tables, lookup, layout, scale, dropout, seed)
        _launch(_forward_kernel, layout, layout.max_q, options["B"], q, shared, (out, lse), options)
        ctx.save_for_backward(q, k, v, *tables, lookup, out, lse, seed)
        ctx.layout, ctx.scale, ctx.dropout = layout, scale, dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, pos_k, pos_q, lookup, out, lse, seed = ctx.saved_tensors
        layout, d_out = ctx.layout, d_out.to(q.dtype).contiguous()
        delta = (out.float() * d_out.float()).sum(-1).T.contiguous()  # [heads, queries]: sum_j p_ij dp_ij
        shared, options = _arguments(q, k, v, [pos_k, pos_q], lookup, layout, ctx.scale, ctx.dropout, seed)
        gaps = lookup is not None and not options["CONSECUTIVE"]
        wanted = (pos_k is not None and ctx.needs_input_grad[3], pos_q is not None and ctx.needs_input_grad[4])

        def gradient(of: Tensor, table: Tensor | None) -> Tensor:
            return torch.empty(
                of.shape, dtype=torch.float32 if gaps and table is not None else q.dtype, device=q.device
            )

        def position_gradient(of: Tensor, table: Tensor | None, need: bool) -> Tensor | None:
            """Gradient of a table, or with gaps the sums of dS by row, [heads, queries or keys, rows]."""
            if table is None or not (need or gaps):
                return None
            shape = (of.shape[1], of.shape[0], table.shape[0]) if gaps else table.shape
            return torch.zeros(shape, dtype=torch.float32, device=q.device)

        d_q, d_k, d_v = gradient(q, pos_k), gradient(k, pos_q), gradient(v, None)
        d_pos_k, d_pos_q = position_gradient(q, pos_k, wanted[0]), position_gradient(k, pos_q, wanted[1])
        saved = (d_out, lse, delta)
        _launch(_d_queries_kernel, layout, layout.max_q, options["B"], q, shared, (*saved, d_q, d_pos_k), options)
        _launch(_d_keys_kernel, layout, layout.max_k, options["B"], q, shared, (*saved, d_k, d_v, d_pos_q), options)
        if gaps:
            d_q, d_pos_k = _from_row_sums(d_q, d_pos_k, q, pos_k)
            d_k, d_pos_q = _from_row_sums(d_k, d_pos_q, k, pos_q)
        d_pos_k, d_pos_q = (t if need else None for t, need in zip((d_pos_k, d_pos_q), wanted, strict=True))
        return d_q, d_k, d_v, d_pos_k, d_pos_q, None, None, None, None, None


def _from_row_sums(d_x: Tensor, sums: Tensor | None, x: Tensor, table: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of x (queries or keys) and of the table that it is multiplied with."""
    if sums is None or table is None:
        return d_x, None
    d_x = d_x + torch.einsum("hir,rhd->ihd", sums, table.float())
    return d_x.to(x.dtype), torch.einsum("hir,ihd->rhd", sums, x.float())


def _dense_rows(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 else t.contiguous()


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: list[Tensor | None],
    lookup: Tensor | None,
    layout: Layout,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that all kernels share, and their compile-time options."""
    d = q.shape[-1]
    indices = [layout.q_offsets, layout.k_offsets, layout.q_positions, layout.k_positions, layout.visible]
    shared = (
        *(q, k, v, *tables, lookup),
        *(None if t is None else t.to(q.device, torch.int32).contiguous() for t in indices),
        *(stride for t in (q, k, v) for stride in t.stride()[:2]),
        *(q.shape[0], next((t.shape[0] for t in tables if t is not None), 0)),
        *(0 if lookup is None else lookup.shape[0] // 2, scale),
        *(0 if seed is None else int(seed) & 0xFFFFFFFF, int(dropout * 2**32), 1.0 / (1.0 - dropout)),
    )
    options = {
        "D": d,
        "BD": max(16, triton.next_power_of_2(d)),
        "B": TILE,
        "CONSECUTIVE": lookup is not None and _consecutive(layout),
        "DROPOUT": dropout > 0.0,
        # Three tf32 products per fp32 product, as exact as fp32 sums. "ieee" would leave the tensor cores unused.
        "PRECISION": "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "num_warps": warps(d, q.dtype),
        "num_stages": STAGES,
    }
    return shared, options


_consecutive_layouts: WeakKeyDictionary[Layout, bool] = WeakKeyDictionary()


def _consecutive(layout: Layout) -> bool:
    """Return whether the positions inside every sequence are consecutive. Computed once per layout."""
    if layout not in _consecutive_layouts:
        checks = []
        for offsets, positions in ((layout.q_offsets, layout.q_positions), (layout.k_offsets, layout.k_positions)):
            steps = positions.diff() == 1
            starts = offsets[1:-1].long()
            starts = starts[(starts > 0) & (starts < positions.shape[0])]
            steps[starts - 1] = True
            checks.append(steps.all())
        _consecutive_layouts[layout] = bool(torch.stack(checks).all())
    return _consecutive_layouts[layout]


def _launch(
    kernel: Any,
    layout: Layout,
    longest: int,
    block: int,
    q: Tensor,
    shared: tuple[Any, ...],
    own: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    grid = (layout.sequences, q.shape[1], triton.cdiv(longest, block))
    if 0 in grid:
        return
    with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
        kernel[grid](*shared, *own, **options)


# The kernels. A program computes one block of queries (or keys) of one sequence and head. Names: qt, kt, vt tiles of q,
# k and v; i, j rows of the sequence; pi, pj their positions; s scores [B, B] in fp32, times scale.


@triton.jit
def _load_rows(base, rows, inside, stride, D: tl.constexpr, BD: tl.constexpr):
    dims = tl.arange(0, BD)
    pointers = base + rows[:, None].to(tl.int64) * stride + dims[None, :]
    return tl.load(pointers, mask=inside[:, None] & (dims < D)[None, :], other=0.0)


@triton.jit
def _store_rows(base, rows, inside, stride, values, D: tl.constexpr, BD: tl.constexpr):
    dims = tl.arange(0, BD)
    pointers = base + rows[:, None].to(tl.int64) * stride + dims[None, :]
    tl.store(pointers, values, mask=inside[:, None] & (dims < D)[None, :])


@triton.jit
def _table_rows(lookup, distances, reach):
    return tl.load(lookup + tl.minimum(tl.maximum(distances, -reach), reach) + reach)


@triton.jit
def _sequence(q_offsets, k_offsets):
    """First query and key of this program's sequence, and their numbers."""
    q_start, q_end = tl.load(q_offsets + tl.program_id(0)), tl.load(q_offsets + tl.program_id(0) + 1)
    k_start, k_end = tl.load(k_offsets + tl.program_id(0)), tl.load(k_offsets + tl.program_id(0) + 1)
    return q_start.to(tl.int64), k_start.to(tl.int64), q_end - q_start, k_end - k_start


@triton.jit
def _positions(positions, start, rows, first, n):
    """Positions of rows. Rows past the end of the sequence get the position of row ``first``."""
    return tl.load(positions + start + rows, mask=rows < n, other=tl.load(positions + start + first))


@triton.jit
def _part(part: tl.constexpr, before, after, n, B: tl.constexpr, CONSECUTIVE: tl.constexpr):
    """Return where to start and end one of three loops over n rows in blocks of B: far, near and far tiles.

    Blocks that start at ``before`` or earlier, or at ``after`` or later, are far. With gaps, part 1 has all blocks.
    """
    start = tl.maximum(before + B, 0) // B * B
    end = (tl.maximum(after, 0) + B - 1) // B * B
    if not CONSECUTIVE:
        start, end = start * 0, n
    elif part == 0:
        start, end = start * 0, tl.minimum(start, n)
    elif part == 1:
        end = tl.minimum(end, n)
    else:
        start, end = end, n
    return start, end


@triton.jit
def _table_row(table, row, stride, D: tl.constexpr, BD: tl.constexpr):
    dims = tl.arange(0, BD)
    return tl.load(table + row * stride + dims, mask=dims < D, other=0.0).to(tl.float32)


@triton.jit
def _far_terms(s, qt, kt, pos_k, pos_q, row, table_stride, D: tl.constexpr, BD: tl.constexpr):
    """Add the position terms of a tile whose pairs all use one table row."""
    if pos_k is not None:
        s += tl.sum(qt.to(tl.float32) * _table_row(pos_k, row, table_stride, D, BD)[None, :], 1)[:, None]
    if pos_q is not None:
        s += tl.sum(kt.to(tl.float32) * _table_row(pos_q, row, table_stride, D, BD)[None, :], 1)[None, :]
    return s


@triton.jit
def _near_terms(
    s, qt, kt, pos_k, pos_q, low_rows, high_rows, turned, table_stride,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the position terms of a tile with 2 B - 1 distances, read from B low and B high table rows."""
    m, n = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    every = tl.arange(0, B) < B
    if pos_k is not None:
        low = _load_rows(pos_k, low_rows, every, table_stride, D, BD)
        high = _load_rows(pos_k, high_rows, every, table_stride, D, BD)
        c = tl.dot(qt, tl.trans(low), input_precision=PRECISION)
        c = tl.where(n >= m, c, tl.dot(qt, tl.trans(high), input_precision=PRECISION))
        s += tl.gather(c, turned, 1)
    if pos_q is not None:
        low = _load_rows(pos_q, low_rows, every, table_stride, D, BD)
        high = _load_rows(pos_q, high_rows, every, table_stride, D, BD)
        p = tl.dot(low, tl.trans(kt), input_precision=PRECISION)
        p = tl.where(m + n >= B - 1, p, tl.dot(high, tl.trans(kt), input_precision=PRECISION))
        s += tl.gather(p, turned, 0)
    return s


@triton.jit
def _window_terms(
    s, qt, kt, pos_k, pos_q, rows, slot, table_stride,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the position terms of pairs whose table row is ``rows[slot]``."""
    every = tl.arange(0, B) < B
    if pos_k is not None:
        kr = _load_rows(pos_k, rows, every, table_stride, D, BD)
        s += tl.gather(tl.dot(qt, tl.trans(kr), input_precision=PRECISION), slot, 1)
    if pos_q is not None:
        qr = _load_rows(pos_q, rows, every, table_stride, D, BD)
        s += tl.gather(tl.dot(qr, tl.trans(kt), input_precision=PRECISION), slot, 0)
    return s


@triton.jit
def _scores(
    qt, kt, nearest, pi, pj, pos_k, pos_q, lookup, reach, table_stride, scale,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, FAR: tl.constexpr, CONSECUTIVE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores [B, B]. ``nearest`` is the smallest distance of the tile; unused if positions are not consecutive."""
    s = tl.dot(qt, tl.trans(kt), input_precision=PRECISION)
    if lookup is not None:
        window = tl.arange(0, B)
        if CONSECUTIVE:
            if FAR:
                s = _far_terms(s, qt, kt, pos_k, pos_q, _table_rows(lookup, nearest, reach), table_stride, D, BD)
            else:
                turned = (pi[:, None] - pj[None, :] - nearest) & (B - 1)
                low = _table_rows(lookup, nearest + window, reach)
                high = _table_rows(lookup, nearest + B + window, reach)
                s = _near_terms(s, qt, kt, pos_k, pos_q, low, high, turned, table_stride, D, BD, B, PRECISION)
        else:
            x = tl.minimum(tl.maximum(pi[:, None] - pj[None, :], -reach), reach)
            for first in range(tl.min(x), tl.max(x) + 1, B):
                inside = (x >= first) & (x < first + B)
                slot = tl.where(inside, x - first, 0)
                rows = _table_rows(lookup, first + window, reach)
                here = _window_terms(s, qt, kt, pos_k, pos_q, rows, slot, table_stride, D, BD, B, PRECISION)
                s = tl.where(inside, here, s)
    return s * scale


@triton.jit
def _mix(x):
    """The hash of ``reference.mix``, in 32 bits."""
    x = (x ^ (x >> 16)) * tl.full([], 0x7FEB352D, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full([], 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _kept(query, head, key, seed, drop_below):
    """The mask of ``reference.keep_mask`` [B, B]. ``query`` counts in the packed tensor, ``key`` in its sequence."""
    query = query.to(tl.uint32) * tl.full([], 0x9E3779B1, tl.uint32)
    head = head.to(tl.uint32) * tl.full([], 0x85EBCA77, tl.uint32)
    key = key.to(tl.uint32) * tl.full([], 0xC2B2AE3D, tl.uint32)
    return _mix(_mix(query + head + seed.to(tl.uint32))[:, None] ^ key[None, :]) >= drop_below.to(tl.uint32)


@triton.jit
def _valid(i, j, n_q, n_k, visible, q_start):
    """Whether query i sees key j [B, B]."""
    valid = (i < n_q)[:, None] & (j < n_k)[None, :]
    if visible is not None:
        valid &= j[None, :] < tl.load(visible + q_start + i, mask=i < n_q, other=0)[:, None]
    return valid


@triton.jit(do_not_specialize=["seed", "drop_below", "rows", "queries"])
def _forward_kernel(
    q, k, v, pos_k, pos_q, lookup, q_offsets, k_offsets, q_positions, k_positions, visible,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, queries, rows, reach, scale, seed, drop_below, keep_scale,
    out, lse,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr,
    CONSECUTIVE: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    q_start, k_start, n_q, n_k = _sequence(q_offsets, k_offsets)
    i0 = tl.program_id(2) * B
    if i0 >= n_q:
        return
    table_stride = tl.num_programs(1) * D
    if pos_k is not None:
        pos_k += h * D
    if pos_q is not None:
        pos_q += h * D
    q += q_start * q_stride + h * q_head
    k += k_start * k_stride + h * k_head
    v += k_start * v_stride + h * v_head

    i = i0 + tl.arange(0, B)
    qt = _load_rows(q, i, i < n_q, q_stride, D, BD)
    pi = _positions(q_positions, q_start, i, i0, n_q)
    most = tl.full([B], float("-inf"), tl.float32)  # running maximum of the scores, in units of log 2
    total = tl.zeros([B], tl.float32)
    mixed = tl.zeros([B, BD], tl.float32)
    last = n_k
    if visible is not None:
        last = tl.minimum(n_k, tl.max(tl.load(visible + q_start + i, mask=i < n_q, other=0)))
    d0 = tl.load(q_positions + q_start + i0) - tl.load(k_positions + k_start, mask=n_k > 0, other=0) - (B - 1)
    for part in tl.static_range(0 if CONSECUTIVE else 1, 3 if CONSECUTIVE else 2):
        first, end = _part(part, d0 - reach, d0 + reach + 2 * B - 2, last, B, CONSECUTIVE)
        for j0 in range(first, end, B):
            j = j0 + tl.arange(0, B)
            kt = _load_rows(k, j, j < n_k, k_stride, D, BD)
            vt = _load_rows(v, j, j < n_k, v_stride, D, BD)
            nearest = tl.load(q_positions + q_start + i0) - tl.load(k_positions + k_start + j0) - (B - 1)
            pj = _positions(k_positions, k_start, j, j0, n_k)
            s = _scores(
                qt, kt, nearest, pi, pj, pos_k, pos_q, lookup, reach, table_stride, scale * LOG2E,
                D, BD, B, part != 1, CONSECUTIVE, PRECISION,
            )  # fmt: skip
            s = tl.where(_valid(i, j, n_q, n_k, visible, q_start), s, float("-inf"))
            now = tl.maximum(most, tl.max(s, 1))
            finite = tl.where(now == float("-inf"), 0.0, now)  # minus infinity: no key seen so far
            p = tl.exp2(s - finite[:, None])
            fade = tl.exp2(most - finite)
            total = total * fade + tl.sum(p, 1)
            if DROPOUT:
                p = tl.where(_kept(q_start + i, h, j, seed, drop_below), p * keep_scale, 0.0)
            mixed = mixed * fade[:, None] + tl.dot(p.to(vt.dtype), vt, input_precision=PRECISION)
            most = now
    total = tl.where(total == 0.0, 1.0, total)  # a query that sees no key: zeros
    mixed = mixed / total[:, None]
    _store_rows(out + q_start * table_stride + h * D, i, i < n_q, table_stride, mixed, D, BD)
    tl.store(lse + h.to(tl.int64) * queries + q_start + i, most + tl.log2(total), mask=i < n_q)


@triton.jit
def _d_scores(
    s, valid, vt, d_out_t, lse_t, delta_t, query, h, j, seed, drop_below, keep_scale,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Recompute probabilities from scores. Returns them after dropout, and the gradient of the scores, both [B, B]."""
    p = tl.exp2(tl.where(valid, s - lse_t[:, None], float("-inf")))
    d_p = tl.dot(d_out_t, tl.trans(vt), input_precision=PRECISION)
    mixed = p
    if DROPOUT:
        kept = _kept(query, h, j, seed, drop_below)
        mixed = tl.where(kept, p * keep_scale, 0.0)
        d_p = tl.where(kept, d_p * keep_scale, 0.0)
    return mixed, p * (d_p - delta_t[:, None])


@triton.jit(do_not_specialize=["seed", "drop_below", "rows", "queries"])
def _d_queries_kernel(
    q, k, v, pos_k, pos_q, lookup, q_offsets, k_offsets, q_positions, k_positions, visible,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, queries, rows, reach, scale, seed, drop_below, keep_scale,
    d_out, lse, delta, d_q, d_pos_k,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr,
    CONSECUTIVE: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    q_start, k_start, n_q, n_k = _sequence(q_offsets, k_offsets)
    i0 = tl.program_id(2) * B
    if i0 >= n_q:
        return
    table_stride = tl.num_programs(1) * D
    if pos_k is not None:
        pos_k += h * D
    if pos_q is not None:
        pos_q += h * D
    q += q_start * q_stride + h * q_head
    k += k_start * k_stride + h * k_head
    v += k_start * v_stride + h * v_head

    i = i0 + tl.arange(0, B)
    dims = tl.arange(0, BD)
    window = tl.arange(0, B)
    row_of_i = h.to(tl.int64) * queries + q_start + i
    qt = _load_rows(q, i, i < n_q, q_stride, D, BD)
    d_out_t = _load_rows(d_out + q_start * table_stride + h * D, i, i < n_q, table_stride, D, BD)
    lse_t = tl.load(lse + row_of_i, mask=i < n_q, other=0.0)
    delta_t = tl.load(delta + row_of_i, mask=i < n_q, other=0.0)
    pi = _positions(q_positions, q_start, i, i0, n_q)
    d_qt = tl.zeros([B, BD], tl.float32)
    last = n_k
    if visible is not None:
        last = tl.minimum(n_k, tl.max(tl.load(visible + q_start + i, mask=i < n_q, other=0)))
    d0 = tl.load(q_positions + q_start + i0) - tl.load(k_positions + k_start, mask=n_k > 0, other=0) - (B - 1)
    for part in tl.static_range(0 if CONSECUTIVE else 1, 3 if CONSECUTIVE else 2):
        first, end = _part(part, d0 - reach, d0 + reach + 2 * B - 2, last, B, CONSECUTIVE)
        for j0 in range(first, end, B):
            j = j0 + tl.arange(0, B)
            kt = _load_rows(k, j, j < n_k, k_stride, D, BD)
            vt = _load_rows(v, j, j < n_k, v_stride, D, BD)
            nearest = tl.load(q_positions + q_start + i0) - tl.load(k_positions + k_start + j0) - (B - 1)
            pj = _positions(k_positions, k_start, j, j0, n_k)
            s = _scores(
                qt, kt, nearest, pi, pj, pos_k, pos_q, lookup, reach, table_stride, scale * LOG2E,
                D, BD, B, part != 1, CONSECUTIVE, PRECISION,
            )  # fmt: skip
            valid = _valid(i, j, n_q, n_k, visible, q_start)
            _, ds = _d_scores(
                s,
                valid,
                vt,
                d_out_t,
                lse_t,
                delta_t,
                q_start + i,
                h,
                j,
                seed,
                drop_below,
                keep_scale,
                DROPOUT,
                PRECISION,
            )
            d_qt += tl.dot(ds.to(kt.dtype), kt, input_precision=PRECISION)
            if pos_k is not None:
                if CONSECUTIVE:
                    if part != 1:
                        far_row = _table_rows(lookup, nearest, reach)
                        sums = tl.sum(ds, 1)[:, None]
                        d_qt += sums * _table_row(pos_k, far_row, table_stride, D, BD)[None, :]
                        if d_pos_k is not None:
                            d_far_row = tl.sum(sums * qt.to(tl.float32), 0) * scale
                            far_pointers = d_pos_k + far_row * table_stride + h * D + dims
                            tl.atomic_add(far_pointers, d_far_row, mask=dims < D, sem="relaxed")
                    else:
                        d_c = tl.gather(ds, (pi[:, None] - nearest - window[None, :] - tl.min(pj)) & (B - 1), 1)
                        for half in tl.static_range(2):
                            near_rows = _table_rows(lookup, nearest + half * B + window, reach)
                            kr = _load_rows(pos_k, near_rows, window < B, table_stride, D, BD)
                            d_half = tl.where((window[None, :] >= window[:, None]) == (half == 0), d_c, 0.0).to(
                                kr.dtype
                            )
                            d_qt += tl.dot(d_half, kr, input_precision=PRECISION)
                            if d_pos_k is not None:
                                d_kr = tl.dot(tl.trans(d_half), qt, input_precision=PRECISION) * scale
                                pointers = d_pos_k + near_rows[:, None] * table_stride + h * D + dims[None, :]
                                tl.atomic_add(pointers, d_kr, mask=(dims < D)[None, :], sem="relaxed")
                else:
                    table_rows = _table_rows(lookup, pi[:, None] - pj[None, :], reach)
                    tl.atomic_add(
                        d_pos_k + row_of_i[:, None] * rows + table_rows, ds * scale, mask=valid, sem="relaxed"
                    )
    _store_rows(d_q + q_start * table_stride + h * D, i, i < n_q, table_stride, d_qt * scale, D, BD)


@triton.jit(do_not_specialize=["seed", "drop_below", "rows", "queries"])
def _d_keys_kernel(
    q, k, v, pos_k, pos_q, lookup, q_offsets, k_offsets, q_positions, k_positions, visible,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, queries, rows, reach, scale, seed, drop_below, keep_scale,
    d_out, lse, delta, d_k, d_v, d_pos_q,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr,
    CONSECUTIVE: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    q_start, k_start, n_q, n_k = _sequence(q_offsets, k_offsets)
    j0 = tl.program_id(2) * B
    if j0 >= n_k:
        return
    table_stride = tl.num_programs(1) * D
    keys = tl.load(k_offsets + tl.num_programs(0))
    if pos_k is not None:
        pos_k += h * D
    if pos_q is not None:
        pos_q += h * D
    q += q_start * q_stride + h * q_head
    k += k_start * k_stride + h * k_head
    v += k_start * v_stride + h * v_head

    j = j0 + tl.arange(0, B)
    dims = tl.arange(0, BD)
    window = tl.arange(0, B)
    row_of_j = h.to(tl.int64) * keys + k_start + j
    kt = _load_rows(k, j, j < n_k, k_stride, D, BD)
    vt = _load_rows(v, j, j < n_k, v_stride, D, BD)
    pj = _positions(k_positions, k_start, j, j0, n_k)
    d_kt = tl.zeros([B, BD], tl.float32)
    d_vt = tl.zeros([B, BD], tl.float32)
    d0 = tl.load(q_positions + q_start, mask=n_q > 0, other=0) - tl.load(k_positions + k_start + j0) - (B - 1)
    for part in tl.static_range(0 if CONSECUTIVE else 1, 3 if CONSECUTIVE else 2):
        first, end = _part(part, -d0 - reach - 2 * B + 2, reach - d0, n_q, B, CONSECUTIVE)
        for i0 in range(first, end, B):
            i = i0 + tl.arange(0, B)
            row_of_i = h.to(tl.int64) * queries + q_start + i
            valid = _valid(i, j, n_q, n_k, visible, q_start)
            qt = _load_rows(q, i, i < n_q, q_stride, D, BD)
            d_out_t = _load_rows(d_out + q_start * table_stride + h * D, i, i < n_q, table_stride, D, BD)
            lse_t = tl.load(lse + row_of_i, mask=i < n_q, other=0.0)
            delta_t = tl.load(delta + row_of_i, mask=i < n_q, other=0.0)
            nearest = tl.load(q_positions + q_start + i0) - tl.load(k_positions + k_start + j0) - (B - 1)
            pi = _positions(q_positions, q_start, i, i0, n_q)
            s = _scores(
                qt, kt, nearest, pi, pj, pos_k, pos_q, lookup, reach, table_stride, scale * LOG2E,
                D, BD, B, part != 1, CONSECUTIVE, PRECISION,
            )  # fmt: skip
            mixed, ds = _d_scores(
                s,
                valid,
                vt,
                d_out_t,
                lse_t,
                delta_t,
                q_start + i,
                h,
                j,
                seed,
                drop_below,
                keep_scale,
                DROPOUT,
                PRECISION,
            )
            d_vt += tl.dot(tl.trans(mixed.to(qt.dtype)), d_out_t, input_precision=PRECISION)
            d_kt += tl.dot(tl.trans(ds.to(qt.dtype)), qt, input_precision=PRECISION)
            if pos_q is not None:
                if CONSECUTIVE:
                    if part != 1:
                        far_row = _table_rows(lookup, nearest, reach)
                        sums = tl.sum(ds, 0)[:, None]
                        d_kt += sums * _table_row(pos_q, far_row, table_stride, D, BD)[None, :]
                        if d_pos_q is not None:
                            d_far_row = tl.sum(sums * kt.to(tl.float32), 0) * scale
                            far_pointers = d_pos_q + far_row * table_stride + h * D + dims
                            tl.atomic_add(far_pointers, d_far_row, mask=dims < D, sem="relaxed")
                    else:
                        d_p = tl.gather(ds, (window[:, None] + nearest + pj[None, :] - tl.min(pi)) & (B - 1), 0)
                        for half in tl.static_range(2):
                            near_rows = _table_rows(lookup, nearest + half * B + window, reach)
                            qr = _load_rows(pos_q, near_rows, window < B, table_stride, D, BD)
                            is_low = window[:, None] + window[None, :] >= B - 1
                            d_half = tl.where(is_low == (half == 0), d_p, 0.0).to(qr.dtype)
                            d_kt += tl.dot(tl.trans(d_half), qr, input_precision=PRECISION)
                            if d_pos_q is not None:
                                d_qr = tl.dot(d_half, kt, input_precision=PRECISION) * scale
                                pointers = d_pos_q + near_rows[:, None] * table_stride + h * D + dims[None, :]
                                tl.atomic_add(pointers, d_qr, mask=(dims < D)[None, :], sem="relaxed")
                else:
                    table_rows = _table_rows(lookup, pi[:, None] - pj[None, :], reach)
                    tl.atomic_add(
                        d_pos_q + row_of_j[None, :] * rows + table_rows, ds * scale, mask=valid, sem="relaxed"
                    )
    _store_rows(d_k + k_start * table_stride + h * D, j, j < n_k, table_stride, d_kt * scale, D, BD)
    _store_rows(d_v + k_start * table_stride + h * D, j, j < n_k, table_stride, d_vt, D, BD)


INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)
"""Whether TRITON_INTERPRET=1 was set when this file was imported: the kernels run on CPU tensors, slowly."""
