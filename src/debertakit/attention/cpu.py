"""Torch operators for the fused CPU kernel, which computes ``reference.attend`` without a length² tensor.

The C++ code in ``kernel/`` does not depend on torch. It takes one record of addresses, strides and sizes through
ctypes. It is built when the package is installed. Without a compiler the package uses the reference, and ``reason()``
explains why.

Autograd, torch.compile and torch.export see two operators, ``debertakit::attention_forward`` and
``debertakit::attention_backward``. Plain inference calls the kernel directly, because the dispatcher would cost more
than the attention of a short sequence.
"""

import ctypes
import os
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from debertakit.attention import reference
from debertakit.attention.arguments import (
    LayoutRows,
    address,
    check_dropout,
    check_shapes,
    float_rows,
    indices,
    is_bf16_rows,
)
from debertakit.attention.graphs import constant_in_graphs, eager, exporting, transformed
from debertakit.attention.layout import Layout
from debertakit.attention.positions import Lookup, PositionTables

__all__ = ["ISAS", "attend", "available", "instruction_set", "reason", "source_checksum", "supports"]

ISAS = ("avx512_bf16", "avx512", "avx2", "neon", "baseline")
"""Values of DEBERTAKIT_KERNEL, besides 0. By default the kernel selects the best one that the CPU has."""

# Same fields as struct Problem in kernel/problem.h: twelve matrices (address, row stride, head stride), logsumexp and
# six index vectors, seven sizes, scale and dropout, then drop_below, seed, threads, bf16, the address of GOMP_parallel.
_CALL = struct.Struct("=36q 7q 7q 2d 5q")
_ERRORS = {
    1: (MemoryError, "out of memory in the attention kernel"),
    2: (ValueError, "a distance maps to a row outside the position tables"),
    3: (ValueError, "the offsets of the layout do not match the rows of q, k and v"),
}
_NO_MATRIX = (0, 0, 0)
_DENSE = (Tensor, torch.nn.Parameter)


@constant_in_graphs
def available() -> bool:
    """Return whether the kernel was built and could be loaded."""
    return _library()[0] is not None


def reason() -> str:
    """Explain in one line why the kernel is not available. Empty if it is."""
    return _library()[1]


def instruction_set() -> str:
    """Return the name in ``ISAS`` that the kernel uses, or "" without the kernel."""
    library = _library()[0]
    return "" if library is None else library.attention_isa().decode()


def supports(q: Tensor) -> bool:
    """Return whether ``attend`` supports queries like these. The reference supports all calls."""
    return (
        available()
        and q.device.type == "cpu"
        and not exporting()
        and not transformed()
        and q.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and q.shape[-1] % 8 == 0
    )


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
        pos_k, pos_q, lookup = positions.fused("the fused kernel")
    rows = (layout.q_offsets, layout.k_offsets, layout.q_positions, layout.k_positions, layout.visible)
    if eager(q) and not (torch.is_grad_enabled() and _any_grad(q, k, v, pos_k, pos_q)):
        return _mix((q, k, v), (pos_k, pos_q), None, rows, lookup, scale, dropout, seed)
    return attention_forward(q, k, v, pos_k, pos_q, *rows, lookup, scale, dropout, seed)[0]


def content_hash(t: Tensor) -> int | None:
    """Return a 64-bit hash of the values in ``t``, or None if hashing would be slow (no kernel, not dense, a GPU)."""
    library = _library()[0]
    if library is None or type(t) not in _DENSE or t.device.type != "cpu" or not t.is_contiguous():
        return None
    return library.content_hash(t.data_ptr(), t.nbytes)


def _any_grad(*tensors: Tensor | None) -> bool:
    return any(t is not None and t.requires_grad for t in tensors)


def _mix(
    content: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor | None, Tensor | None],
    lse: Tensor | None,
    layout: LayoutRows,
    lookup: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    library = _library()[0]
    tensors = [t for t in (*content, *tables) if t is not None]
    bf16 = library is not None and library.attention_takes_bf16() and all(map(is_bf16_rows, tensors))
    out = torch.empty(*content[0].shape, dtype=torch.bfloat16 if bf16 else torch.float32)
    _call("attention_forward", content, tables, (out,), lse, layout, lookup, scale, dropout, seed, bf16)
    return out.to(content[2].dtype)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pos_k: Tensor | None,
    pos_q: Tensor | None,
    q_offsets: Tensor,
    k_offsets: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    visible: Tensor | None,
    lookup: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute attention outputs and the logsumexp of each row of scores, [heads, total queries]."""
    if q.dim() != 3:
        raise ValueError(f"q needs the shape [rows, heads, head size], got {tuple(q.shape)}")
    lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32)
    layout = (q_offsets, k_offsets, q_positions, k_positions, visible)
    return _mix((q, k, v), (pos_k, pos_q), lse, layout, lookup, scale, dropout, seed), lse


def _backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pos_k: Tensor | None,
    pos_q: Tensor | None,
    out: Tensor,
    lse: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    visible: Tensor | None,
    lookup: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor | None,
    table_grads: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of q, k, v, pos_k, pos_q. Table gradients are empty without ``table_grads`` or a table."""
    layout = (q_offsets, k_offsets, q_positions, k_positions, visible)
    grads = [torch.empty(t.shape, dtype=torch.float32) for t in (q, k, v)]
    tables = [
        torch.empty(t.shape, dtype=torch.float32) if t is not None and table_grads else None for t in (pos_k, pos_q)
    ]
    results = (out, d_out, *grads, *tables)
    _call("attention_backward", (q, k, v), (pos_k, pos_q), results, lse, layout, lookup, scale, dropout, seed)
    d_q, d_k, d_v = (g.to(t.dtype) for g, t in zip(grads, (q, k, v), strict=True))
    d_pos_k, d_pos_q = (
        q.new_empty(0) if g is None or t is None else g.to(t.dtype) for g, t in zip(tables, (pos_k, pos_q), strict=True)
    )
    return d_q, d_k, d_v, d_pos_k, d_pos_q


def _call(
    name: str,
    content: tuple[Tensor, Tensor, Tensor],  # q, k, v
    tables: tuple[Tensor | None, Tensor | None],  # pos_k, pos_q
    results: Sequence[Tensor | None],  # out; backward also: d_out, d_q, d_k, d_v, d_pos_k, d_pos_q
    lse: Tensor | None,  # optional in forward
    layout: LayoutRows,
    lookup: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor | None,
    bf16: bool = False,  # forward only: the kernel reads and writes bf16
) -> None:
    library, why, gomp_parallel = _library()
    if library is None:
        raise RuntimeError(why)
    check_shapes(content, tables, results, lse, layout, lookup)
    check_dropout(dropout, seed)
    if not scale > 0:
        raise ValueError(f"the fused kernel takes a scale above 0, got {scale}")
    # These lists keep converted copies alive during the call. All outputs already have their type and are contiguous.
    matrices = [None if t is None else t if bf16 else float_rows(t) for t in (*content, *tables, *results)]
    vectors = [None if t is None else indices(t) for t in (*layout, lookup)]
    lse = None if lse is None else lse.contiguous()
    fields: list[int] = []
    for m in matrices:
        fields += _NO_MATRIX if m is None else (address(m), *(stride >> bf16 for stride in m.stride()[:2]))
    fields += _NO_MATRIX * (12 - len(matrices))
    total_queries, heads, d = content[0].shape
    record = _CALL.pack(
        *fields,
        address(lse),
        *map(address, vectors),
        *(layout[0].shape[0] - 1, heads, d, total_queries, content[1].shape[0]),
        next((t.shape[0] for t in tables if t is not None), 0),
        0 if lookup is None else lookup.shape[0] // 2,
        *(scale, dropout),
        *(int(dropout * 2**32), 0 if seed is None else int(seed) & 0xFFFFFFFF),
        *(torch.get_num_threads(), bf16, gomp_parallel),
    )
    status = getattr(library, name)(record)
    if status:
        kind, message = _ERRORS[status]
        raise kind(message)


attention_forward = torch.library.custom_op(
    "debertakit::attention_forward", _forward, mutates_args=(), device_types="cpu"
)
attention_backward = torch.library.custom_op(
    "debertakit::attention_backward", _backward, mutates_args=(), device_types="cpu"
)


@attention_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, pos_k: Tensor | None, pos_q: Tensor | None, *rest: object
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape, dtype=v.dtype), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@attention_backward.register_fake
def _(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, pos_k: Tensor | None, pos_q: Tensor | None, *rest: object
) -> tuple[Tensor, ...]:
    table_grads = rest[-1]
    tables = (q.new_empty(0) if t is None or not table_grads else t.new_empty(t.shape) for t in (pos_k, pos_q))
    return *(t.new_empty(t.shape) for t in (q, k, v)), *tables


class _Context(Protocol):
    """What the autograd functions store between forward and backward."""

    saved_tensors: tuple[Tensor, ...]  # some are None
    needs_input_grad: tuple[bool, ...]
    scale: float
    dropout: float

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


def _save(ctx: _Context, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, lookup, scale, dropout, seed = inputs
    out, lse = output
    ctx.save_for_backward(*tensors[:5], out, lse, *tensors[5:], lookup, seed)
    ctx.scale, ctx.dropout = scale, dropout
    ctx.mark_non_differentiable(lse)


def _differentiate(ctx: _Context, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():  # create_graph=True: the gradient itself will be differentiated
        return *_differentiable_gradients(ctx, d_out), *[None] * 9
    *saved, seed = ctx.saved_tensors
    tables = ctx.needs_input_grad[3:5]
    grads = attention_backward(d_out, *saved, ctx.scale, ctx.dropout, seed, any(tables))
    wanted = [g if need else None for g, need in zip(grads, ctx.needs_input_grad[:5], strict=True)]
    return *wanted, *[None] * 9


def _differentiable_gradients(ctx: _Context, d_out: Tensor) -> list[Tensor | None]:
    """Compute the gradients with the reference. They can be differentiated again, unlike those of the kernel."""
    q, k, v, pos_k, pos_q, _out, _lse, *rows, lookup, seed = ctx.saved_tensors
    q_offsets, k_offsets, q_positions, k_positions, visible = rows
    max_q, max_k = (int(offsets.diff().max()) if len(offsets) > 1 else 0 for offsets in (q_offsets, k_offsets))
    layout = Layout(q_offsets, k_offsets, q_positions, k_positions, max_q, max_k, max_distance=0, visible=visible)
    positions = None
    if lookup is not None:
        terms = ("c2p",) * (pos_k is not None) + ("p2c",) * (pos_q is not None)
        positions = PositionTables(terms, pos_k, pos_q, Lookup(lookup))
    out, _ = reference.attend(q, k, v, positions, layout, ctx.scale, ctx.dropout, seed)
    wanted = [x for x, needed in zip((q, k, v, pos_k, pos_q), ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(out, wanted, d_out, create_graph=True))
    return [next(found) if needed else None for needed in ctx.needs_input_grad[:5]]


attention_forward.register_autograd(_differentiate, setup_context=_save)


@lru_cache(maxsize=1)
def _library() -> tuple[ctypes.CDLL | None, str, int]:
    """Load the kernel. Returns (library or None, reason if None, address of GOMP_parallel or 0)."""
    wanted = os.environ.get("DEBERTAKIT_KERNEL", "")
    if wanted == "0":
        return None, "fused attention kernel turned off (DEBERTAKIT_KERNEL=0); using the reference", 0
    path = Path(__file__).with_name("_kernel.so")
    if not path.exists():
        return None, "fused attention kernel not built (no C++ compiler at install time); using the reference", 0
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"fused attention kernel could not be loaded ({error}); using the reference", 0
    if _stale(library, path.with_name("kernel")):
        return None, "fused attention kernel is out of date; rebuild it with: pip install -e . (using the reference)", 0
    for name in ("attention_forward", "attention_backward"):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_char_p]
        function.restype = ctypes.c_int
    library.attention_isa.restype = ctypes.c_char_p
    library.attention_select.argtypes = [ctypes.c_char_p]
    library.content_hash.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.content_hash.restype = ctypes.c_uint64
    if wanted and not library.attention_select(wanted.encode()):
        why = f"DEBERTAKIT_KERNEL={wanted}: this CPU or this build does not have it; using the reference. "
        return None, why + f"Values: 0, {', '.join(ISAS)}", 0
    return library, "", _gomp_parallel()


def source_checksum(folder: Path) -> int:
    """CRC-32 of the kernel's sources, as in setup.py."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.iterdir())))


def _stale(library: ctypes.CDLL, sources: Path) -> bool:
    """Return whether the library was built from other sources, which may expect other fields than ``_CALL``.

    Wheels contain the library without its sources. Then only the size of the record is compared.
    """
    try:
        record_size, built_from = library.attention_record_size(), library.attention_source
    except AttributeError:  # built before the library carried these
        return True
    built_from.restype = ctypes.c_uint32
    return record_size != _CALL.size or (sources.exists() and built_from() != source_checksum(sources))


def _use_one_thread() -> None:
    """Prevent a deadlock in forked processes: they inherit torch's OpenMP pool, but not its threads."""
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_thread)


def _gomp_parallel() -> int:
    """Return the address of GOMP_parallel in torch's OpenMP runtime (GNU or LLVM), or 0 if there is none.

    With a separate runtime, the kernel would have a second thread pool that competes with torch's for the cores.
    """
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*"))
    for candidate in [*map(str, bundled), None]:  # None: libraries already loaded in the process
        try:
            address = ctypes.cast(ctypes.CDLL(candidate).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
        if address:
            return address
    return 0
