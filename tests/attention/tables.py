"""Layouts, random inputs and position tables for the tests of the backends."""

import torch
from torch import Tensor

from debertakit.attention import Layout, PositionTables, RelativePositions

V3 = RelativePositions(span=256, buckets=256, max_position=512)
# Small spans, so that short texts reach the last row: exact (v1), log buckets, and buckets steep enough to skip rows.
# With span 15, the last exact row is also the last of a group of eight.
RULES = [
    RelativePositions(span=9),
    RelativePositions(span=15),
    RelativePositions(span=40),
    RelativePositions(span=8, buckets=8, max_position=30),
    RelativePositions(span=16, buckets=16, max_position=12),
    RelativePositions(span=8, buckets=8, max_position=30, clamp=False),
    V3,
]


def lengths(*values: int) -> Layout:
    return Layout.from_lengths(torch.tensor(values, dtype=torch.int32))


def tensors(layout: Layout, heads: int, d: int, rows: int, c2p: bool = True, p2c: bool = True) -> list[Tensor | None]:
    queries, keys = layout.q_positions.shape[0], layout.k_positions.shape[0]
    shapes = [queries, keys, keys, rows if c2p else None, rows if p2c else None]
    return [None if n is None else torch.randn(n, heads, d, requires_grad=True) for n in shapes]


def with_gradients(attend, inputs: list[Tensor | None], d_out: Tensor) -> dict[str, Tensor]:
    out = attend(inputs)
    names = [n for n, t in zip(("q", "k", "v", "pos_k", "pos_q"), inputs, strict=True) if t is not None]
    grads = torch.autograd.grad(out, [t for t in inputs if t is not None], d_out.to(out.dtype))
    return {"out": out.detach(), **dict(zip(names, grads, strict=True))}


def with_tables(attend):
    """Wrap ``attend`` to take pos_k and pos_q. Each table that is not None adds its term (c2p, p2c)."""

    def call(q, k, v, pos_k, pos_q, layout, relative, *rest, **options):
        terms = ("c2p",) * (pos_k is not None) + ("p2c",) * (pos_q is not None)
        positions = PositionTables(terms, pos_k, pos_q, relative) if terms else None
        return attend(q, k, v, positions, layout, *rest, **options)

    return call
