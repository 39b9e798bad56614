"""Project hidden states to queries, keys and values, and the relative table to Kr and Qr.

These functions accept any module with DeBERTa's parameter names, ours or from stock transformers, so that
``accelerate`` needs no second implementation. There are two layouts:

    v2, v3   query_proj, key_proj, value_proj; positions share query_proj and key_proj (share_att_key) or have
             pos_query_proj and pos_key_proj
    v1       in_proj: all three in one matrix, interleaved by head, without bias; q_bias and v_bias are separate, and
             there is no key bias; pos_proj (no bias) and pos_q_proj for the positions
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from debertakit.attention.cpu import content_hash
from debertakit.attention.graphs import fixed_shapes
from debertakit.attention.layout import Layout
from debertakit.attention.linear import is_plain, linear, pack
from debertakit.attention.positions import KEY_TERMS, QUERY_TERMS, PositionTables, RelativePositions
from debertakit.protocols import FusedAttention, HasRelativeTable, SelfAttention

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Projected = tuple[Tensor | None, Tensor | None]  # Kr and Qr [rows, heads, d]; None if no term needs it


def is_fused(att: SelfAttention) -> TypeIs[FusedAttention]:
    """Return whether a module has the v1 layout."""
    return hasattr(att, "in_proj")


def project(att: SelfAttention, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of the same rows, each [rows, heads, d]."""
    if is_fused(att):
        q, k, v = _heads(att, linear(att.in_proj, hidden)).chunk(3, dim=-1)
        return q + _heads(att, att.q_bias), k, v + _heads(att, att.v_bias)
    return _heads(att, linear(att.query_proj, hidden)), *project_memory(att, hidden)


def project_queries(att: SelfAttention, hidden: Tensor) -> Tensor:
    return project(att, hidden)[0] if is_fused(att) else _heads(att, linear(att.query_proj, hidden))


def project_memory(att: SelfAttention, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return only keys and values, for use with separate queries."""
    if is_fused(att):
        return project(att, hidden)[1:]
    return _heads(att, linear(att.key_proj, hidden)), _heads(att, linear(att.value_proj, hidden))


def project_positions(att: SelfAttention, table: Tensor, terms: Sequence[str]) -> Projected:
    """Return Kr and Qr [rows, heads, d] of the relative table. Either is None if no term reads it."""
    to_key, to_query = position_projections(att)
    return (
        _heads(att, linear(to_key, table)) if to_key is not None and KEY_TERMS.intersection(terms) else None,
        _heads(att, linear(to_query, table)) if to_query is not None and QUERY_TERMS.intersection(terms) else None,
    )


def position_projections(att: SelfAttention) -> tuple[nn.Module | None, nn.Module | None]:
    """Return the layers that project the relative table to keys and to queries."""
    if is_fused(att):
        return getattr(att, "pos_proj", None), getattr(att, "pos_q_proj", None)
    if att.share_att_key:
        return att.key_proj, att.query_proj
    return getattr(att, "pos_key_proj", None), getattr(att, "pos_query_proj", None)


def _heads(att: SelfAttention, x: Tensor) -> Tensor:
    return x.unflatten(-1, (att.num_attention_heads, -1))


# Cached projections per attention module, each with the state of the weights it was computed from.
_cache: WeakKeyDictionary[SelfAttention, tuple[Hashable, Projected]] = WeakKeyDictionary()
_frozen: WeakSet[object] = WeakSet()  # encoders of models whose weights no longer change


def freeze(model: nn.Module) -> None:
    """Declare that the weights of ``model`` no longer change: cached projections need no check, and linear layers may
    be packed.

    Used by predictors and the server, which own their model. Moving it to another device or dtype is still detected.
    """
    pack(model)
    _frozen.update(module for module in model.modules() if hasattr(module, "rel_embeddings"))


class RelativeTable:
    """The relative table of an encoder during one forward pass.

    With gradients, the table is cut to the rows that this batch uses, normalised once and projected once per layer.
    Without gradients, each layer's projections are cached. Before reuse, we compare a hash of the weights, because
    writes through ``.data``, merged adapters and fused optimisers change weights without any other sign. The hash reads
    weights that the layer is about to read anyway.
    """

    def __init__(
        self, encoder: HasRelativeTable, relative: RelativePositions, terms: Sequence[str], norm: bool, layout: Layout
    ):
        self.terms = tuple(terms)
        tracing = fixed_shapes()
        use_cache = not torch.is_grad_enabled() and not encoder.training and not tracing
        # Lengths are symbolic in a trace, so the table cannot be cut.
        self.relative = relative if use_cache or tracing else relative.cut(layout.max_distance)
        self._encoder, self._norm = encoder, norm
        self.rows = None if use_cache else self._normalised()
        """The rows that the layers project. None: use the cached projections. Gradient checkpointing passes these rows
        to each layer as an argument, so that gradients flow through them."""
        self._table_state = self._state(self._table_modules()) if use_cache else None
        self._projected: dict[SelfAttention, Projected] = {}
        """Projections of this pass, because the mask decoder runs one layer several times."""

    def project(self, att: SelfAttention, rows: Tensor | None = None) -> PositionTables:
        """Project ``rows`` (default: ``self.rows``) for one attention module."""
        rows = self.rows if rows is None else rows
        if rows is not None:
            projected = project_positions(att, att.pos_dropout(rows), self.terms)
        else:
            if att not in self._projected:
                self._projected[att] = self._cached(att)
            projected = self._projected[att]
        return PositionTables(self.terms, *projected, self.relative)

    def _cached(self, att: SelfAttention) -> Projected:
        used = [layer for layer in position_projections(att) if layer is not None]
        state = self._state(used) if self._table_state is not None and all(map(is_plain, used)) else None
        if state is None:
            return project_positions(att, self._normalised(), self.terms)
        key = (self._table_state, state)
        cached = _cache.get(att)
        if cached is None or cached[0] != key:
            cached = _cache[att] = key, project_positions(att, self._normalised(), self.terms)
        return cached[1]

    def _normalised(self) -> Tensor:
        first, count = self.relative.first, self.relative.count
        rows = self._encoder.rel_embeddings.weight
        if count is not None:
            rows = rows[first : first + count]
        return self._encoder.LayerNorm(rows) if self._norm else rows

    def _table_modules(self) -> list[nn.Module]:
        return [self._encoder.rel_embeddings, *([self._encoder.LayerNorm] if self._norm else [])]

    def _state(self, modules: list[nn.Module]) -> Hashable | None:
        """Return a key that changes with the weights of these modules, or None if they cannot be cached."""
        weights = [weight for module in modules for weight in module.parameters()]
        device = weights[0].device.type
        if device == "meta":  # offloaded weights are loaded when the layer is called
            return None
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if self._encoder in _frozen:
            return autocast, *((w.data_ptr(), w.dtype) for w in weights)
        hashes = tuple(map(content_hash, weights))
        return None if None in hashes else (autocast, hashes, weights[0].dtype)
