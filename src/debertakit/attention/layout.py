"""Layout of the sequences in packed tensors.

The encoder concatenates the tokens of all sequences, [total_tokens, hidden], without padding. A ``Layout`` records
which rows belong to which sequence, the position of each row, and the keys that each query may attend to. Queries and
keys have separate offsets: the mask decoder has queries only for masked rows, a cached decoding step only for the new
rows, and cross-attention has the keys of another text.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    q_offsets: Tensor
    """int32 [n + 1]: the queries of sequence s are rows q_offsets[s] to q_offsets[s + 1]."""
    k_offsets: Tensor
    """int32 [n + 1]: the same for keys and values."""
    q_positions: Tensor
    """int32 [total queries]: position of each query in its sequence."""
    k_positions: Tensor
    """int32 [total keys]: position of each key in its sequence, ascending."""
    max_q: int
    """Largest number of queries in a sequence."""
    max_k: int
    """Largest number of keys in a sequence."""
    max_distance: int
    """Upper bound of the distance between a query and a key."""
    visible: Tensor | None = None
    """int32 [total queries]: each query sees this many leading keys of its sequence. None: all (bidirectional). Causal:
    the keys up to the query's position. Prefix: the larger of the prefix length and the causal number."""

    @property
    def sequences(self) -> int:
        return self.q_offsets.shape[0] - 1

    @classmethod
    def from_lengths(cls, lengths: Tensor) -> "Layout":
        """Layout of sequences of these lengths, with bidirectional attention."""
        offsets = _offsets(lengths)
        total = int(offsets[-1])
        within = torch.arange(total, device=lengths.device, dtype=torch.int32)
        positions = within - offsets[:-1].repeat_interleave(lengths.long(), output_size=total)
        longest = int(lengths.max()) if lengths.numel() else 0
        return cls(offsets, offsets, positions, positions, longest, longest, max(longest - 1, 0))

    @classmethod
    def rectangular(cls, batch: int, length: int, device: torch.device | str) -> "Layout":
        """Layout of ``batch`` sequences of the same length, without padding."""
        offsets = torch.arange(batch + 1, device=device, dtype=torch.int32) * length
        positions = torch.arange(length, device=device, dtype=torch.int32).repeat(batch)
        return cls(offsets, offsets, positions, positions, length, length, length - 1)

    @classmethod
    def from_mask_in_place(cls, mask: Tensor) -> tuple["Layout", Tensor, Tensor]:
        """``from_mask`` for traced graphs, whose shapes cannot depend on the mask.

        Padding moves to the end of its sequence, where no query sees it. Also returns the source column of each row
        and the row of each column, both [batch, length].
        """
        batch, length = mask.shape
        real = mask.long()
        lengths = real.sum(-1, keepdim=True)
        rows = torch.where(mask.bool(), real.cumsum(-1), lengths + (1 - real).cumsum(-1)) - 1
        every = torch.arange(length, device=mask.device).expand(batch, -1)
        columns = torch.zeros_like(rows).scatter(1, rows, every)
        positions = columns.flatten().int()
        visible = lengths.expand(-1, length).flatten().int()
        layout = cls.rectangular(batch, length, mask.device)
        return replace(layout, q_positions=positions, k_positions=positions, visible=visible), columns, rows

    @classmethod
    def from_mask(cls, mask: Tensor) -> tuple["Layout", Tensor]:
        """Return the layout of a padded [batch, length] batch and the flat indices of the rows to keep.

        Padding may be anywhere. A token's position is its column, as in Microsoft's code and transformers.
        """
        mask = mask.bool()
        kept = mask.flatten().nonzero().squeeze(-1)
        lengths = mask.sum(-1, dtype=torch.int32)
        offsets = _offsets(lengths)
        positions = (kept % mask.shape[1]).int()
        longest = int(lengths.max()) if lengths.numel() else 0
        return cls(offsets, offsets, positions, positions, longest, longest, mask.shape[1] - 1), kept

    @classmethod
    def tail(cls, batch: int, queries: int, keys: int, device: torch.device | str) -> "Layout":
        """Causal layout for cached decoding: the last ``queries`` of ``keys`` tokens in each sequence are queries."""
        steps = torch.arange(batch + 1, device=device, dtype=torch.int32)
        positions = torch.arange(keys, device=device, dtype=torch.int32)
        q_positions, k_positions = positions[keys - queries :].repeat(batch), positions.repeat(batch)
        visible = q_positions + 1
        return cls(steps * queries, steps * keys, q_positions, k_positions, queries, keys, keys - 1, visible)

    @classmethod
    def tail_of_mask(cls, mask: Tensor, queries: int) -> tuple["Layout", Tensor, Tensor]:
        """``tail`` for a padded batch [batch, keys]. Also returns the flat indices of query rows and key rows to keep.

        Padding may be anywhere. A token's position is the number of real tokens before it.
        """
        mask = mask.bool()
        first = mask.shape[1] - queries
        q_mask = mask[:, first:]
        positions = mask.cumsum(-1, dtype=torch.int32) - 1
        q_positions = positions[:, first:][q_mask]
        q_lengths, k_lengths = (x.sum(-1, dtype=torch.int32) for x in (q_mask, mask))
        longest = int(k_lengths.max())
        layout = cls(
            _offsets(q_lengths),
            _offsets(k_lengths),
            q_positions,
            positions[mask],
            int(q_lengths.max()),
            longest,
            max(longest - 1, 0),
            visible=q_positions + 1,
        )
        return layout, q_mask.flatten().nonzero().squeeze(-1), mask.flatten().nonzero().squeeze(-1)

    def at_rows(self, rows: Tensor) -> "Layout":
        """Keep only these query rows (ascending), and all keys and values."""
        q_offsets = torch.searchsorted(rows.contiguous(), self.q_offsets.long()).int()
        counts = q_offsets.diff()
        return replace(
            self,
            q_offsets=q_offsets,
            q_positions=self.q_positions[rows],
            max_q=int(counts.max()) if counts.numel() else 0,
            visible=None if self.visible is None else self.visible[rows],
        )

    def causal(self) -> "Layout":
        """Let every query see the keys up to its own position."""
        return self.prefix(None)

    def prefix(self, lengths: Tensor | None) -> "Layout":
        """Let all queries of sequence s see its first ``lengths[s]`` keys, and later keys causally.

        The causal part compares positions, which have gaps if padding was removed inside a sequence.
        """
        visible = []
        for s in range(self.sequences):
            keys = self.k_positions[int(self.k_offsets[s]) : int(self.k_offsets[s + 1])]
            queries = self.q_positions[int(self.q_offsets[s]) : int(self.q_offsets[s + 1])]
            seen = torch.searchsorted(keys, queries, right=True)
            visible.append(seen if lengths is None else seen.clamp(min=int(lengths[s])))
        return replace(self, visible=torch.cat(visible).int())

    def pad_queries(self, x: Tensor) -> Tensor:
        """[total queries, ...] -> [n, max_q, ...], zeros at padding."""
        return _pad(x, self.q_offsets, self.max_q)

    def pad_keys(self, x: Tensor) -> Tensor:
        """[total keys, ...] -> [n, max_k, ...], zeros at padding."""
        return _pad(x, self.k_offsets, self.max_k)

    def unpad_queries(self, x: Tensor) -> Tensor:
        """[n, max_q, ...] -> [total queries, ...]."""
        if x.shape[0] * x.shape[1] == self.q_positions.shape[0]:
            return x.flatten(0, 1)
        return x[_inside(self.q_offsets, self.max_q)]


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()


def lengths_between(offsets: Tensor) -> Tensor:
    return offsets[1:] - offsets[:-1]  # not diff(): TorchScript's ONNX exporter does not support it


def _inside(offsets: Tensor, longest: int) -> Tensor:
    """Return bool [n, longest]: True at real rows, False at padding."""
    return torch.arange(longest, device=offsets.device) < lengths_between(offsets)[:, None]


def _pad(x: Tensor, offsets: Tensor, longest: int) -> Tensor:
    sequences = offsets.shape[0] - 1
    if sequences * longest == x.shape[0]:  # no padding: return a view; exported graphs always take this path
        return x.unflatten(0, (sequences, longest))
    padded = x.new_zeros(sequences, longest, *x.shape[1:])
    padded[_inside(offsets, longest)] = x
    return padded
