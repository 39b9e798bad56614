"""Incremental decoding with a KV cache: queries of the new rows, keys and values of all rows so far.

The keys and values of earlier tokens are stored in a transformers ``Cache``, so ``generate()`` can grow it, reorder it
for beams and crop it for assisted decoding with its own code. We store [batch, 1, length, heads * d], one head as wide
as all heads together. Rows are then contiguous, as the packed layers need them, and reading them without padding is
a view.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from debertakit.attention.layout import Layout
from debertakit.config import DebertaConfig
from debertakit.model import UpdateCache
from debertakit.padding import PackedInput, Recorder, pack_input


@dataclass
class Chunk:
    """The new tokens of a batch, packed for a causal pass after ``past`` cached tokens."""

    packed: PackedInput
    past: int
    kept_keys: Tensor | None
    """Flat indices of the real tokens in [batch, past + new]; None: all are real."""

    def cache_updates(self, cache: Cache | None, layers: int) -> list[UpdateCache] | None:
        """Return one ``UpdateCache`` per layer, or None without a cache."""
        return None if cache is None else [partial(self._extend, cache, index) for index in range(layers)]

    def _extend(self, cache: Cache, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        heads = k.shape[1]
        new = (self.packed.pad(x.flatten(1)).unsqueeze(1) for x in (k, v))  # [batch, 1, new, heads * d]
        rows = (x.flatten(0, 2) for x in cache.update(*new, index))
        if self.kept_keys is not None:
            rows = (x[self.kept_keys] for x in rows)
        keys, values = (x.unflatten(-1, (heads, -1)) for x in rows)  # [total keys, heads, d]
        return keys, values

    def cells(self, columns: int = 0) -> Tensor:
        """[batch, columns]: packed row for each of the last ``columns`` columns of the padded batch (0: all).

        A padding cell gets the row of the last real token before it, because that row predicts the continuation. So
        ``generate()``, which reads the last column, handles right-padded prompts like left-padded ones.
        """
        kept, shape = self.packed.kept, self.packed.shape
        if kept is None:
            rows = torch.arange(shape[0] * shape[1], device=self.packed.words.device).view(shape)
        else:
            real = torch.zeros(shape[0] * shape[1], dtype=torch.long, device=kept.device)
            real[kept] = 1
            rows = (real.cumsum(0) - 1).clamp(min=0).view(shape)
        return rows[:, -columns:] if columns else rows

    def recorder(self, hidden_states: bool, attentions: bool) -> Recorder:
        """Create a recorder. Attention is recorded as [batch, heads, new, past + new]."""
        recorder = Recorder(self.packed, hidden_states, attentions)
        recorder.key_length = self.past + self.packed.shape[1]
        if self.kept_keys is not None:
            offsets = self.packed.layout.k_offsets[1:-1].long().cpu()
            recorder.keys = torch.tensor_split(self.kept_keys % recorder.key_length, offsets)
        return recorder


def pack_chunk(
    config: DebertaConfig,
    input_ids: Tensor | None,  # [batch, new]
    mask: Tensor | None,  # [batch, past + new]; 0 at padding
    past: int,
    inputs_embeds: Tensor | None = None,
    prefix_lengths: Tensor | None = None,  # [batch], in real tokens
) -> Chunk:
    """Pack the new tokens. Each token sees the tokens up to itself and, if there is a prefix, the whole prefix."""
    packed = pack_input(config, input_ids, None, inputs_embeds=inputs_embeds)
    batch, new = packed.shape
    keys = past + new
    if config.position_biased_input and keys > config.max_position_embeddings:
        raise ValueError(f"{keys} tokens do not fit the {config.max_position_embeddings} positions of this model")
    if mask is not None and tuple(mask.shape) != (batch, keys):
        raise ValueError(
            f"attention_mask should be [batch, tokens so far] = {[batch, keys]}, got {list(mask.shape)}"
            + (f"; it covers the {past} tokens in the cache too" if past else "")
        )
    kept_keys = None
    if mask is None or bool(mask.all()):
        layout = Layout.tail(batch, new, keys, packed.words.device)
    else:
        layout, kept, kept_keys = Layout.tail_of_mask(mask, new)
        packed = replace(packed, kept=kept)
        packed.words = packed.pack(packed.words.unflatten(0, (batch, new)))
    if prefix_lengths is not None:
        read = torch.full((batch,), keys, device=prefix_lengths.device) if mask is None else mask.sum(-1)
        read = read - layout.q_offsets.diff() if past else read
        if bool((prefix_lengths > read).any()):
            raise ValueError(
                f"the first chunk must contain the whole prefix: prefix_lengths is {prefix_lengths.tolist()}, but the "
                f"first chunk has {read.tolist()} tokens"
            )
        if not past:
            layout = layout.prefix(prefix_lengths)
    return Chunk(replace(packed, layout=layout, positions=layout.q_positions), past, kept_keys)
