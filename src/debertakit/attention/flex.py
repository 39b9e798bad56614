"""Disentangled attention on CUDA through torch's FlexAttention.

The two position terms are precomputed for all table rows, c2p [heads, queries, rows] and p2c [heads, keys, rows], which
is linear in the length. The score function reads them at row(i - j) inside the fused kernel. Sequence boundaries and
causal and prefix limits are part of the block mask, so that blocks outside a sequence are skipped.

FlexAttention has no dropout on probabilities. With m_ij the dropout mask, two runs compute it exactly:

    sum_j m_ij p_ij v_j = softmax over the kept keys (with v) * exp(logsumexp over kept - logsumexp over all)

We have not run this file on a GPU. On CPU, torch 2.13 refuses gradients ("FlexAttention does not support backward on
CPU"). The tests lift this check: they compare forward and backward of torch's unfused implementation with the
reference, and the forward pass compiled for CPU.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from debertakit.attention.layout import Layout
from debertakit.attention.positions import PositionTables
from debertakit.attention.reference import mix

_masks: WeakKeyDictionary[Layout, BlockMask] = WeakKeyDictionary()


def attend(
    q: Tensor,  # [total queries, heads, d]
    k: Tensor,  # [total keys, heads, d]
    v: Tensor,  # [total keys, heads, d]
    positions: PositionTables | None,
    layout: Layout,
    scale: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """Compute attention outputs [total queries, heads, d]. The equation is at the top of ``reference.py``."""
    score = _score_function(q, k, positions, layout, scale)
    packed = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]  # [1, heads, rows, d]
    run: Any = _compiled() if q.is_cuda else flex_attention
    mask = _block_mask(layout)
    if dropout > 0.0:
        if seed is None:
            raise ValueError("dropout needs a seed")
        kept_only = _keep_function(score, layout, dropout, seed.to(q.device))
        out, kept = run(*packed, kept_only, mask, scale, return_aux=AuxRequest(lse=True))
        _, all_ = run(*packed, score, mask, scale, return_aux=AuxRequest(lse=True))
        out = out * ((kept.lse - all_.lse).exp() / (1.0 - dropout)).unsqueeze(-1).to(out.dtype)
    else:
        out = run(*packed, score, mask, scale)
    return out.squeeze(0).transpose(0, 1)


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


def _score_function(
    q: Tensor, k: Tensor, positions: PositionTables | None, layout: Layout, scale: float
) -> Callable[..., Tensor]:
    if positions is None or not positions.terms:
        return lambda score, b, h, i, j: score
    pos_k = positions.pos_k if "c2p" in positions.terms else None
    pos_q = positions.pos_q if "p2c" in positions.terms else None
    with torch.autocast(q.device.type, enabled=False):  # the products overflow fp16
        c2p = torch.einsum("ihd,rhd->hir", q.float() * scale, pos_k.float()) if pos_k is not None else None
        p2c = torch.einsum("jhd,rhd->hjr", k.float(), pos_q.float() * scale) if pos_q is not None else None
    lookup = positions.relative.lookup(q.device)
    reach = lookup.shape[0] // 2
    q_positions, k_positions = layout.q_positions, layout.k_positions

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = lookup[(q_positions[i] - k_positions[j]).clamp(-reach, reach) + reach]
        if c2p is not None:
            score = score + c2p[h, i, row]
        if p2c is not None:
            score = score + p2c[h, j, row]
        return score

    return score_mod


def _keep_function(score: Callable[..., Tensor], layout: Layout, dropout: float, seed: Tensor) -> Callable[..., Tensor]:
    """Wrap the score function: dropped keys get a score of minus infinity. Same mask as ``reference.keep_mask``."""
    key_start = layout.k_offsets[:-1].repeat_interleave(layout.k_offsets.diff())
    threshold = int(dropout * 2**32)

    def score_mod(x: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        state = mix(seed.long() + i.long() * 0x9E3779B1 + h.long() * 0x85EBCA77)
        key = (j - key_start[j]).long()
        keep = mix(state ^ ((key * 0xC2B2AE3D) & 0xFFFFFFFF)) >= threshold
        return torch.where(keep, score(x, b, h, i, j), -float("inf"))

    return score_mod


def _block_mask(layout: Layout) -> BlockMask:
    """Build the block mask once per layout. All layers share it."""
    if layout not in _masks:
        sequence = torch.arange(layout.sequences, device=layout.q_offsets.device)
        of_query = sequence.repeat_interleave(layout.q_offsets.diff())
        of_key = sequence.repeat_interleave(layout.k_offsets.diff())
        key_start = layout.k_offsets[:-1].repeat_interleave(layout.k_offsets.diff())
        visible = layout.visible

        def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            same = of_query[i] == of_key[j]
            return same if visible is None else same & (j - key_start[j] < visible[i])

        queries, keys = layout.q_positions.shape[0], layout.k_positions.shape[0]
        _masks[layout] = create_block_mask(mask_mod, None, None, queries, keys, device=layout.q_offsets.device)
    return _masks[layout]
