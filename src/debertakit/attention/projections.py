"""From hidden states to the queries, keys and values of one layer, and from the relative table to Kr and Qr.

Plain functions over any module that carries DeBERTa's parameter names, ours or stock transformers', so that
``accelerate`` needs no second implementation. Two layouts exist:

    v2, v3   query_proj, key_proj, value_proj; positions share query_proj and key_proj (share_att_key) or have
             pos_query_proj and pos_key_proj
    v1       in_proj: all three in one matrix, interleaved head by head, no key bias; q_bias, v_bias beside it;
             pos_proj (no bias) and pos_q_proj for the positions
"""

from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from debertakit.attention.cpu import content_hash
from debertakit.attention.graphs import fixed_shapes
from debertakit.attention.layout import Layout
from debertakit.attention.positions import KEY_TERMS, QUERY_TERMS, PositionTables, RelativePositions

Projected = tuple[Tensor | None, Tensor | None]  # Kr and Qr [rows, heads, d]; None where no term needs them


def project(att: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the same rows, each [rows, heads, d]."""
    if hasattr(att, "in_proj"):
        q, k, v = _heads(att, att.in_proj(hidden)).chunk(3, dim=-1)
        return q + _heads(att, att.q_bias), k, v + _heads(att, att.v_bias)
    return _heads(att, att.query_proj(hidden)), *project_memory(att, hidden)


def project_queries(att: Any, hidden: Tensor) -> Tensor:
    return project(att, hidden)[0] if hasattr(att, "in_proj") else _heads(att, att.query_proj(hidden))


def project_memory(att: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, for queries that come from elsewhere."""
    if hasattr(att, "in_proj"):
        return project(att, hidden)[1:]
    return _heads(att, att.key_proj(hidden)), _heads(att, att.value_proj(hidden))


def project_positions(att: Any, table: Tensor, terms: Sequence[str]) -> Projected:
    """Kr and Qr [rows, heads, d] of the relative table; None where no term reads it."""
    to_key, to_query = position_projections(att)
    return (
        _heads(att, to_key(table)) if to_key is not None and KEY_TERMS.intersection(terms) else None,
        _heads(att, to_query(table)) if to_query is not None and QUERY_TERMS.intersection(terms) else None,
    )


def position_projections(att: Any) -> tuple[nn.Module | None, nn.Module | None]:
    """The layers that project the relative table to keys and to queries."""
    if hasattr(att, "in_proj"):
        return getattr(att, "pos_proj", None), getattr(att, "pos_q_proj", None)
    if att.share_att_key:
        return att.key_proj, att.query_proj
    return getattr(att, "pos_key_proj", None), getattr(att, "pos_query_proj", None)


def _heads(att: Any, x: Tensor) -> Tensor:
    return x.unflatten(-1, (att.num_attention_heads, -1))


# The projections of an attention module, with the state of the weights that they were computed from.
_cache: WeakKeyDictionary[nn.Module, tuple[Hashable, Projected]] = WeakKeyDictionary()
_frozen: WeakSet[nn.Module] = WeakSet()


def freeze_positions(model: nn.Module) -> None:
    """Promise that the weights of ``model`` no longer change, so that its cached projections need no check.

    For those who own the model: predictors and the server. Moves to another device or dtype are still noticed.
    """
    _frozen.update(module for module in model.modules() if hasattr(module, "rel_embeddings"))


class RelativeTable:
    """The relative table of an encoder on its way into the layers of one forward pass.

    With gradients, the table is cut to the rows that this batch can reach, normalised once and projected once per
    layer. Without gradients, each layer's projections are cached. Before they are used again, the weights behind them
    are compared by a hash of their content: writes through ``.data``, merged adapters and fused optimisers change
    weights without leaving another trace. The hash reads weights that the layer is about to read anyway.
    """

    def __init__(self, encoder: Any, relative: RelativePositions, terms: Sequence[str], norm: bool, layout: Layout):
        self.terms = tuple(terms)
        tracing = fixed_shapes()
        use_cache = not torch.is_grad_enabled() and not encoder.training and not tracing
        # Lengths are symbols in a trace: nothing to cut by.
        self.relative = relative if use_cache or tracing else relative.cut(layout.max_distance)
        self._encoder, self._norm = encoder, norm
        self.rows = None if use_cache else self._normalised()
        """The rows that the layers project; None: take the cached projections. A layer under gradient checkpointing
        takes them as an argument of its own, where its gradient can leave."""
        self._table_state = self._state(self._table_modules()) if use_cache else None
        self._projected: dict[Any, Projected] = {}  # in this pass: the mask decoder runs one layer several times

    def project(self, att: Any, rows: Tensor | None = None) -> PositionTables:
        """The tables of one attention module, projected from ``rows`` (default: its own)."""
        rows = self.rows if rows is None else rows
        if rows is not None:
            projected = project_positions(att, att.pos_dropout(rows), self.terms)
        else:
            if att not in self._projected:
                self._projected[att] = self._cached(att)
            projected = self._projected[att]
        return PositionTables(self.terms, *projected, self.relative)

    def _cached(self, att: Any) -> Projected:
        used = [layer for layer in position_projections(att) if layer is not None]
        state = self._state(used) if self._table_state is not None and all(map(_is_plain, used)) else None
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
        """Changes whenever a weight of these modules does; None: cannot be told, so do not cache."""
        weights = [weight for module in modules for weight in module.parameters()]
        device = weights[0].device.type
        if device == "meta":  # offloaded: the weights come when the layer is called
            return None
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if self._encoder in _frozen:
            return autocast, *((w.data_ptr(), w.dtype) for w in weights)
        hashes = tuple(map(content_hash, weights))
        return None if None in hashes else (autocast, hashes, weights[0].dtype)


def _is_plain(layer: nn.Module) -> bool:
    """A linear layer and nothing more: an adapter or a hook may change its output without changing a weight."""
    return type(layer) is nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks
