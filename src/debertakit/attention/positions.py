"""Mapping from distances to rows of the relative position table.

The distance between a query at position i and a key at position j is x = i - j. DeBERTa has a table of 2k vectors and
reads row

    row(x) = clamp(bucket(x) + k, 0, 2k - 1)

v1 has no buckets: bucket(x) = x. v2 and v3 keep near distances exact, and far distances share rows on a log scale.
With b buckets, mid = b / 2 and maximum position M:

    |x| <= mid   bucket(x) = x
    |x| >  mid   bucket(x) = sign(x) * (mid + ceil(ln(|x| / mid) / ln((M - 1) / mid) * (mid - 1)))

where x is first clamped to [-(M-1), M-1]. The clamp is Microsoft's rule. transformers does not clamp (``clamp=False``):
distances of -M and beyond then read row 0, which is untrained in all released models. Both rules saturate: the row is
constant past ``reach``, so one lookup vector of 2 * reach + 1 rows is enough for texts of any length.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from debertakit.attention.graphs import constant_in_graphs


@dataclass(frozen=True)
class RelativePositions:
    """The distance-to-row rule of one model. Hashable, so that its lookup vector is cached per device."""

    span: int
    """k: the relative table has 2k rows."""
    buckets: int = 0
    """Number of log buckets (v2, v3: 256). 0: every distance is exact (v1)."""
    max_position: int = 512
    """M: distances of M - 1 and more share the last bucket. Unused without buckets."""
    clamp: bool = True
    """Clamp distances before bucketing, as Microsoft does. False: the rule of transformers."""
    first: int = 0
    """First row of a cut table (see ``cut``)."""
    count: int | None = None
    """Number of rows of a cut table. None: all 2k."""

    def __post_init__(self) -> None:
        if self.span < 1:
            raise ValueError(f"the relative table needs at least one row on each side, got span={self.span}")
        if self.buckets > 0 and not 2 <= self.buckets // 2 < self.max_position - 1:
            raise ValueError(
                f"position_buckets={self.buckets} needs to be at least 4 and less than twice max_position - 1 "
                f"(max_position={self.max_position})"
            )

    @property
    def reach(self) -> int:
        """The distance beyond which the row is constant."""
        if self.buckets <= 0:
            return self.span
        if self.clamp:
            return self.max_position - 1
        # The first distance whose bucket is outside the table, plus a margin for rounding.
        mid = self.buckets // 2
        return int(mid * ((self.max_position - 1) / mid) ** ((self.span - mid - 1) / (mid - 1))) + 2

    def cut(self, max_distance: int) -> "RelativePositions":
        """Return the rule for a cut table, ``table[first : first + count]``, the rows used up to ``max_distance``."""
        middle = self.reach
        reached = min(max_distance, self.reach)
        rows = self.lookup()[[middle - reached, middle + reached]].tolist()
        return replace(self, first=self.first + rows[0], count=rows[1] - rows[0] + 1)

    def lookup(self, device: torch.device | str = "cpu") -> Tensor:
        """int32 [2 * reach + 1]: the row of distance x is at x + reach."""
        # Pass plain numbers: torch.compile accepts no objects as arguments of a constant_in_graphs function.
        return _lookup(self.span, self.buckets, self.max_position, self.clamp, self.first, self.count, str(device))

    def rows(self, distances: Tensor) -> Tensor:
        """Return the table row of each distance i - j, in the shape of ``distances``."""
        return Lookup(self.lookup(distances.device)).rows(distances)


@dataclass(frozen=True, eq=False)
class Lookup:
    """A distance-to-row rule given by its lookup vector."""

    table: Tensor
    """int32 [2 * reach + 1]: the row of distance x is at x + reach."""

    def lookup(self, device: torch.device | str = "cpu") -> Tensor:
        return self.table.to(device)

    def rows(self, distances: Tensor) -> Tensor:
        reach = self.table.shape[0] // 2
        return self.table[(distances.clamp(-reach, reach) + reach).long()]  # ONNX Gather needs int64


TERMS = ("c2p", "p2c", "p2p")
KEY_TERMS, QUERY_TERMS = frozenset({"c2p", "p2p"}), frozenset({"p2c", "p2p"})
"""Terms that read the table projected to keys, and terms that read the table projected to queries."""
FUSED_TERMS = frozenset({"c2p", "p2c"})
"""Terms that the fast backends and the ONNX graph compute. The reference computes all terms."""


@dataclass(frozen=True, eq=False)
class PositionTables:
    """Position terms of one layer's scores and their tables (equations in ``reference.py``)."""

    terms: tuple[str, ...]
    """The members of TERMS that are added to the scores."""
    pos_k: Tensor | None
    """Kr [rows, heads, d], for c2p and p2p. None if unused."""
    pos_q: Tensor | None
    """Qr [rows, heads, d], for p2c and p2p. None if unused."""
    relative: RelativePositions | Lookup
    """Mapping from distances to rows."""

    def __post_init__(self) -> None:
        for term in self.terms:
            if term not in TERMS:
                raise ValueError(f"unknown position term {term!r}; choose from {', '.join(TERMS)}")
            if (term in KEY_TERMS and self.pos_k is None) or (term in QUERY_TERMS and self.pos_q is None):
                raise ValueError(f"the term {term} needs its position table")

    @property
    def reference_only(self) -> tuple[str, ...]:
        """Terms that only the reference computes."""
        return tuple(term for term in self.terms if term not in FUSED_TERMS)

    def fused(
        self, backend: str, device: torch.device | str = "cpu"
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return Kr for c2p, Qr for p2c and the lookup vector. A fused backend adds one score term for each table."""
        if not self.terms:
            return None, None, None
        if self.reference_only:
            raise ValueError(f"{backend} does not compute {', '.join(self.reference_only)}")
        pos_k = self.pos_k if "c2p" in self.terms else None
        pos_q = self.pos_q if "p2c" in self.terms else None
        return pos_k, pos_q, self.relative.lookup(device)


@constant_in_graphs
def _lookup(
    span: int, buckets: int, max_position: int, clamp: bool, first: int, count: int | None, device: str
) -> Tensor:
    """Build the lookup vector as a graph constant.

    If torch.compile traced this function, numpy's float64 logarithms would become float32, which changes the rows of
    some distances. If torch.export traced it, a fake tensor would stay in the cache.
    """
    relative = RelativePositions(span, buckets, max_position, clamp, first, count)
    if torch._C._len_torch_dispatch_stack() == 0:
        return _build(relative, torch.device(device))
    with _disable_current_modes():
        return _build(relative, torch.device(device))


@lru_cache(maxsize=1024)
def _build(relative: RelativePositions, device: torch.device) -> Tensor:
    x = np.arange(-relative.reach, relative.reach + 1)
    if relative.buckets > 0:
        x = log_bucket(x, relative.buckets, relative.max_position, relative.clamp)
    rows = np.clip(x + relative.span, 0, 2 * relative.span - 1)
    if relative.count is not None:
        rows = np.clip(rows - relative.first, 0, relative.count - 1)
    return torch.from_numpy(rows.astype(np.int32)).to(device)


def log_bucket(x: np.ndarray, buckets: int, max_position: int, clamp: bool = True) -> np.ndarray:
    """Return the log bucket of each distance (equation at the top of this file)."""
    mid = buckets // 2
    if clamp:
        x = np.clip(x, 1 - max_position, max_position - 1)
    far = np.maximum(np.abs(x), mid)
    log = mid + np.ceil(np.log(far / mid) / np.log((max_position - 1) / mid) * (mid - 1))
    return np.where(np.abs(x) <= mid, x, np.sign(x) * log).astype(np.int64)
