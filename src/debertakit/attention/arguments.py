"""Checks of the arguments of the fused kernel, which reads raw addresses: a wrong argument would crash the process.

The kernel itself checks what needs a pass over the values: offsets, and the table row of each distance.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# q_offsets, k_offsets, q_positions, k_positions, visible
LayoutRows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_INT32 = torch.iinfo(torch.int32)


def float_rows(t: Tensor) -> Tensor:
    """Return fp32 rows on the CPU with a contiguous last dimension. Copies only if necessary."""
    if not t.is_cpu:
        raise ValueError(f"the fused kernel takes tensors on the CPU, got one on {t.device}")
    if t.dtype is not torch.float32 or t.stride()[2] != 1:
        if t.dtype not in _FLOATS:
            raise TypeError(f"the fused kernel takes float32, bfloat16 or float16, got {t.dtype}")
        t = t.to(torch.float32).contiguous()
    return t


def is_bf16_rows(t: Tensor) -> bool:
    """Return whether the kernel can read these bf16 rows in place, as pairs in 4-byte words."""
    return (
        t.dtype is torch.bfloat16
        and t.is_cpu
        and t.shape[-1] % 16 == 0
        and t.stride(-1) == 1
        and not any(stride % 2 for stride in t.stride()[:-1])
        and t.data_ptr() % 4 == 0
    )


def indices(t: Tensor) -> Tensor:
    """Return contiguous int32 values on the CPU. Copies only if necessary."""
    if not t.is_cpu:
        raise ValueError(f"the fused kernel takes indices on the CPU, got some on {t.device}")
    if t.dtype is not torch.int32:
        if t.dtype is not torch.int64:
            raise TypeError(f"the fused kernel takes indices of type int32 or int64, got {t.dtype}")
        if t.numel() and (t.min() < _INT32.min or t.max() > _INT32.max):
            raise ValueError("the fused kernel takes indices that fit into 32 bits")
        t = t.to(torch.int32)
    return t if t.is_contiguous() else t.contiguous()


def address(t: Tensor | None) -> int:
    """Return the address of the data, 0 for None."""
    if t is None:
        return 0
    found = t.data_ptr()
    if not found and t.numel():
        raise ValueError(f"a tensor of shape {tuple(t.shape)} has no memory; it was freed")
    return found


def check_shapes(
    content: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor | None, Tensor | None],
    results: Sequence[Tensor | None],
    lse: Tensor | None,
    layout: LayoutRows,
    lookup: Tensor | None,
) -> None:
    """Raise ValueError if two shapes do not fit together."""
    q, k, v = (t.shape for t in content)
    if len(q) != 3 or len(k) != 3:
        raise ValueError(f"q, k and v need the shape [rows, heads, head size], got {[tuple(s) for s in (q, k, v)]}")
    queries, heads, d = q
    keys = k[0]
    if d % 8 or not d or not heads:
        raise ValueError(f"the fused kernel takes head sizes that are multiples of 8, got {heads} heads of size {d}")
    if k != (keys, heads, d) or v != k:
        raise ValueError(f"q, k and v do not fit together: {tuple(q)}, {tuple(k)}, {tuple(v)}")
    rows = [t.shape for t in tables if t is not None]
    if rows:
        if any(len(r) != 3 or not r[0] or r != (rows[0][0], heads, d) for r in rows):
            raise ValueError(f"position tables {[tuple(r) for r in rows]} do not fit {heads} heads of size {d}")
        if lookup is None:
            raise ValueError("position tables need a lookup from distances to table rows")
        if lookup.dim() != 1 or lookup.shape[0] % 2 == 0:
            raise ValueError(f"the lookup needs one row for each distance -n .. n, got shape {tuple(lookup.shape)}")
    q_offsets, k_offsets, q_positions, k_positions = (t.shape for t in layout[:4])
    visible = layout[4]
    if q_offsets != k_offsets or len(q_offsets) != 1 or not q_offsets[0]:
        raise ValueError(f"offsets need the shape [sequences + 1], got {tuple(q_offsets)} and {tuple(k_offsets)}")
    if q_positions != (queries,) or k_positions != (keys,) or (visible is not None and visible.shape != (queries,)):
        raise ValueError(f"the layout does not match {queries} queries and {keys} keys")
    for t in results[:2]:  # out and d_out; the operators allocate the others
        if t is not None and t.shape != q:
            raise ValueError(f"out and its gradient need the shape of q, {tuple(q)}, got {tuple(t.shape)}")
    if lse is not None and (lse.shape != (heads, queries) or lse.dtype is not torch.float32 or not lse.is_cpu):
        raise ValueError(f"lse needs shape {(heads, queries)} and type float32, got {tuple(lse.shape)}, {lse.dtype}")


def check_dropout(dropout: float, seed: Tensor | None) -> None:
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be >= 0 and < 1, got {dropout}")
    if dropout and seed is None:
        raise ValueError("dropout needs a seed")
    if seed is not None and (seed.numel() != 1 or seed.dtype.is_floating_point or seed.dtype.is_complex):
        raise ValueError(f"the seed must be one integer, got shape {tuple(seed.shape)} and type {seed.dtype}")
