"""From hidden states to the queries, keys and values of one layer, and from the relative table to Kr and Qr.

Plain functions over any module that carries DeBERTa's parameter names, ours or stock transformers', so that
``accelerate`` needs no second implementation. Two layouts exist:

    v2, v3   query_proj, key_proj, value_proj; positions share query_proj and key_proj (share_att_key) or have
             pos_query_proj and pos_key_proj
    v1       in_proj: all three in one matrix, interleaved head by head, no key bias; q_bias, v_bias beside it;
             pos_proj (no bias) and pos_q_proj for the positions
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from debertakit.attention.layout import Layout
from debertakit.attention.positions import RelativePositions


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


def project_positions(att: Any, table: Tensor, terms: list[str]) -> tuple[Tensor | None, Tensor | None]:
    """Kr and Qr [rows, heads, d] of the relative table; None for a term that the model leaves out."""
    if hasattr(att, "in_proj"):
        to_key, to_query = getattr(att, "pos_proj", None), getattr(att, "pos_q_proj", None)
    elif att.share_att_key:
        to_key, to_query = att.key_proj, att.query_proj
    else:
        to_key, to_query = getattr(att, "pos_key_proj", None), getattr(att, "pos_query_proj", None)
    needs_key, needs_query = "c2p" in terms or "p2p" in terms, "p2c" in terms or "p2p" in terms
    return (
        _heads(att, to_key(table)) if needs_key and to_key is not None else None,
        _heads(att, to_query(table)) if needs_query and to_query is not None else None,
    )


def _heads(att: Any, x: Tensor) -> Tensor:
    return x.unflatten(-1, (att.num_attention_heads, -1))


# Kr and Qr do not change while the weights do not: outside training they are kept, per attention module.
_kept: WeakKeyDictionary[nn.Module, tuple[tuple, tuple[Tensor | None, Tensor | None]]] = WeakKeyDictionary()
# Fused optimisers change weights without raising their version (torch 2.13), so any optimiser's step forgets all.
register_optimizer_step_post_hook(lambda *_: _kept.clear())


class RelativeTable:
    """The relative table of an encoder on its way into the layers of one forward pass.

    With gradients, the table is cut to the rows that this batch can reach, normalised once and projected once per
    layer. Without, each layer's projections are kept until a weight, the dtype or the device changes.
    """

    def __init__(self, encoder: Any, relative: RelativePositions, terms: list[str], norm: bool, layout: Layout):
        self.terms = terms
        tracing = torch.compiler.is_compiling()  # lengths are symbols there: no cutting, nothing kept
        keep = not torch.is_grad_enabled() and not encoder.training and not tracing
        self.relative = relative if keep or tracing else relative.cut(layout.max_distance)
        self._encoder, self._norm = encoder, norm
        self._rows = None if keep else self._normalised()

    def _normalised(self) -> Tensor:
        first, count = self.relative.first, self.relative.count
        rows = self._encoder.rel_embeddings.weight
        if count is not None:
            rows = rows[first : first + count]
        return self._encoder.LayerNorm(rows) if self._norm else rows

    def project(self, att: Any) -> tuple[Tensor | None, Tensor | None]:
        if self._rows is not None:
            return project_positions(att, att.pos_dropout(self._rows), self.terms)
        key = self._state(att)
        known = _kept.get(att)
        if known is None or known[0] != key:
            known = (key, project_positions(att, self._normalised(), self.terms))
            if _plain(att):
                _kept[att] = known
        return known[1]

    def _state(self, att: Any) -> tuple:
        """Changes whenever a weight behind Kr or Qr does: work in place raises its version, a move its address."""
        weights = [self._encoder.rel_embeddings.weight, *att.parameters()]
        if self._norm:
            weights += self._encoder.LayerNorm.parameters()
        device = weights[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return autocast, *((w.data_ptr(), 0 if w.is_inference() else w._version, w.dtype) for w in weights)


def _plain(att: Any) -> bool:
    """Nothing but linear layers: an adapter beside one is switched on and off without changing a weight."""
    return all(type(module) is nn.Linear for module in att.children() if any(True for _ in module.parameters()))
