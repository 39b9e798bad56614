"""Options of ``deberta explain``. Light to import."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outputs:
    """Requested outputs; there may be several."""

    out: Path | None = None
    """Write the attention explorer to this HTML file."""
    png: Path | None = None
    """Plot the last layer's attention patterns to this PNG file."""
    shares: Path | None = None
    """Plot content and position shares to this PNG file."""
    attribution: bool = False
    """Print each token's contribution to a classifier's prediction (integrated gradients)."""


@dataclass(frozen=True)
class Inputs:
    pair: str | None = None
    """Second segment of each text."""
    against: str | None = None
    """Second model to compare: DeBERTa, BERT, RoBERTa, ..."""
    corpus: str | None = None
    """Texts for --shares, or for --out (mean patterns of several models): .txt (one text per line), JSONL, ..."""


USES = {"pair": ("out", "png", "attribution"), "against": ("out", "png"), "corpus": ("shares", "out")}
"""Outputs that read each input."""
