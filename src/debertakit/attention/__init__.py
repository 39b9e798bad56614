"""Disentangled attention and the choice of its backend.

``reference`` is the readable implementation and the only one that returns probabilities. ``cpu`` is the fused kernel.
``flex`` is torch's FlexAttention for CUDA. ``triton`` has our own kernels for CUDA, used only on request. All take the
same arguments and agree forward and backward (tests/attention).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
from torch import Tensor

from debertakit.attention import cpu, reference
from debertakit.attention.graphs import constant_in_graphs, exporting
from debertakit.attention.layout import Layout
from debertakit.attention.positions import PositionTables, RelativePositions

__all__ = ["BACKENDS", "Layout", "PositionTables", "RelativePositions", "disentangled_attention", "use_backend"]

BACKENDS = ("auto", "reference", "cpu", "flex", "triton")
_chosen: ContextVar[str] = ContextVar("debertakit_attention_backend", default="auto")


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Use this attention backend inside the ``with`` block. 'auto' selects the fastest one that supports the call,
    but never 'triton'."""
    if name not in BACKENDS:
        raise ValueError(f"unknown attention backend {name!r}; choose from {', '.join(BACKENDS)}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def disentangled_attention(
    q: Tensor,  # [total queries, heads, d]
    k: Tensor,  # [total keys, heads, d]
    v: Tensor,  # [total keys, heads, d]
    positions: PositionTables | None,
    layout: Layout,
    *,
    scale: float,
    dropout: float = 0.0,
    observe: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Compute attention outputs [total queries, heads, d]. The equation is at the top of ``reference.py``.

    ``observe`` receives the probabilities [n, heads, max_q, max_k]. Its return value replaces them.
    """
    # Use torch's own generator, so that manual_seed and gradient checkpointing reproduce the seed.
    seed = torch.randint(2**31 - 1, (), device="cpu") if dropout > 0.0 else None
    backend = "reference" if observe is not None else _backend_for(q, positions)
    if backend == "cpu":
        return cpu.attend(q, k, v, positions, layout, scale, dropout, seed)
    if backend == "flex":
        from debertakit.attention import flex  # lazy, because it imports torch's compiler

        return flex.attend(q, k, v, positions, layout, scale, dropout, seed)
    if backend == "triton":
        from debertakit.attention import triton  # lazy, because triton is installed only with torch's CUDA builds

        return triton.attend(q, k, v, positions, layout, scale, dropout, seed)
    return reference.attend(q, k, v, positions, layout, scale, dropout, seed, observe)[0]


@constant_in_graphs
def _chosen_backend() -> str:
    return _chosen.get()


def _backend_for(q: Tensor, positions: PositionTables | None) -> str:
    """Select the backend. Exported graphs and terms outside FUSED_TERMS need the reference."""
    chosen = _chosen_backend()
    reference_only = positions.reference_only if positions is not None else ()
    if chosen == "auto":
        if q.is_cuda and not reference_only and not exporting():
            return "flex"
        if not reference_only and cpu.supports(q):
            return "cpu"
        if q.device.type == "cpu" and not cpu.available():
            _warn_once(cpu.reason())
        return "reference"
    if chosen in ("cpu", "flex", "triton") and reference_only:
        raise ValueError(f"the {chosen} backend does not compute {', '.join(reference_only)}")
    if chosen == "cpu" and not cpu.supports(q):
        raise ValueError(f"the cpu backend does not support this call: {cpu.reason() or 'export, or the head size'}")
    return chosen


@lru_cache(maxsize=1)
def _warn_once(message: str) -> None:
    logging.getLogger("debertakit").warning(message)
