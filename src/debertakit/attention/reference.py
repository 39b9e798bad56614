"""Reference implementation of disentangled attention. All fast backends are tested against it.

With content queries, keys and values Qc, Kc, V and the projected relative table Qr, Kr, and r = row(i - j):

    c2c(i, j) = Qc_i . Kc_j           content to content
    c2p(i, j) = Qc_i . Kr[r]          content to position
    p2c(i, j) = Qr[r] . Kc_j          position to content
    p2p(i, j) = Qr[r] . Kr[r]         position to position (paper eq. 2; off in every released model)

    score = (c2c + c2p + p2c + p2p) * scale,  scale = 1 / sqrt(d * number of terms in use)
    out_i = sum_j dropout(softmax_j(score))(i, j) V_j

Two notes for readers of the paper. Its equation 4 reads Qr at delta(j, i). All implementations that trained a released
model read Qr at delta(i, j), the row r above, and so do we. Some articles multiply a content attention with a position
attention and renormalise. This is the same mechanism, because softmax(a) * softmax(b) / sum = softmax(a + b).

Half-precision inputs are converted to fp32, because the score products overflow fp16 in the multilingual models.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from debertakit.attention.layout import Layout, lengths_between
from debertakit.attention.positions import PositionTables


@dataclass(frozen=True)
class ScoreParts:
    """The four terms of the scores, each [n, heads, max_q, max_k] and scaled. None if the model does not use it."""

    c2c: Tensor
    c2p: Tensor | None = None
    p2c: Tensor | None = None
    p2p: Tensor | None = None

    def total(self) -> Tensor:
        total = self.c2c
        for part in (self.c2p, self.p2c, self.p2p):
            if part is not None:
                total = total + part
        return total

    def named(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


def score_parts(
    q: Tensor,  # [total queries, heads, d]
    k: Tensor,  # [total keys, heads, d]
    positions: PositionTables | None,
    layout: Layout,
    scale: float,
) -> ScoreParts:
    q, k = (layout.pad_queries(_full(q)) * scale, layout.pad_keys(_full(k)))
    parts = {"c2c": torch.einsum("nihd,njhd->nhij", q, k)}
    if positions is None or not positions.terms:
        return ScoreParts(**parts)

    distance = layout.pad_queries(layout.q_positions)[:, :, None] - layout.pad_keys(layout.k_positions)[:, None, :]
    row = positions.relative.rows(distance)[:, None].long()  # [n, 1, max_q, max_k]
    row = row.expand(-1, q.shape[2], -1, -1)
    pos_k, pos_q = positions.pos_k, positions.pos_q
    if "c2p" in positions.terms:
        assert pos_k is not None
        by_row = torch.einsum("nihd,rhd->nhir", q, _full(pos_k))
        parts["c2p"] = by_row.gather(-1, row)
    if "p2c" in positions.terms:
        assert pos_q is not None
        by_row = torch.einsum("njhd,rhd->nhjr", k, _full(pos_q) * scale)
        parts["p2c"] = by_row.gather(-1, row.transpose(-1, -2)).transpose(-1, -2)
    if "p2p" in positions.terms:
        assert pos_k is not None
        assert pos_q is not None
        by_row = torch.einsum("rhd,rhd->hr", _full(pos_q) * scale, _full(pos_k))
        parts["p2p"] = by_row[None, :, None].expand(len(row), -1, row.shape[2], -1).gather(-1, row)
    return ScoreParts(**parts)


def seen(layout: Layout) -> Tensor:
    """Return bool [n, 1, max_q, max_k]: the keys that each query sees. Padding rows see no key."""
    keys = torch.arange(layout.max_k, device=layout.k_offsets.device)
    mask = (keys < lengths_between(layout.k_offsets)[:, None])[:, None, :]
    if layout.visible is not None:
        mask = mask & (keys < layout.pad_queries(layout.visible)[:, :, None])
    real = torch.arange(layout.max_q, device=mask.device) < lengths_between(layout.q_offsets)[:, None]
    return (mask & real[:, :, None])[:, None]


def probabilities(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the visible keys. A query that sees no key gets all zeros (Microsoft's rule)."""
    return scores.masked_fill(~mask, float("-inf")).softmax(-1).masked_fill(~mask, 0.0)


def attend(
    q: Tensor,  # [total queries, heads, d]
    k: Tensor,  # [total keys, heads, d]
    v: Tensor,  # [total keys, heads, d]
    positions: PositionTables | None,
    layout: Layout,
    scale: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    observe: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention outputs [total queries, heads, d] and probabilities [n, heads, max_q, max_k].

    ``observe`` receives the probabilities before dropout. Its return value replaces them.
    """
    with torch.autocast(q.device.type, enabled=False):
        scores = score_parts(q, k, positions, layout, scale).total()
        probs = probabilities(scores, seen(layout))
        if observe is not None:
            probs = observe(probs)
        mixed = probs
        if dropout > 0.0:
            if seed is None:
                raise ValueError("dropout needs a seed")
            mixed = probs * keep_mask(layout, q.shape[1], dropout, seed) / (1.0 - dropout)
        out = torch.einsum("nhij,njhd->nihd", mixed, layout.pad_keys(_full(v)))
    return layout.unpad_queries(out).to(v.dtype), probs


def keep_mask(layout: Layout, heads: int, dropout: float, seed: Tensor) -> Tensor:
    """Return bool [n, heads, max_q, max_k]: True where dropout keeps a weight.

    The mask is a pure function of (seed, head, query row, key), so the backward pass and all backends compute the same
    mask without storing it. The query index is the row in the packed tensor; the key index is relative to its sequence.
    """
    device = layout.q_positions.device
    query = layout.pad_queries(torch.arange(layout.q_positions.shape[0], device=device))[:, None, :, None]
    head = torch.arange(heads, device=device)[None, :, None, None]
    key = torch.arange(layout.max_k, device=device)
    row_state = mix(seed.to(device).long() + query * 0x9E3779B1 + head * 0x85EBCA77)
    return mix(row_state ^ ((key * 0xC2B2AE3D) & 0xFFFFFFFF)) >= int(dropout * 2**32)


def mix(x: Tensor) -> Tensor:
    """32-bit integer hash (two multiply-xorshift rounds), in int64 because torch has no unsigned arithmetic."""
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
