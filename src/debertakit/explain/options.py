"""Options of ``deberta explain``. Light to import."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from debertakit.files import require_new


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


def check_outputs(models: Sequence[str], texts: Sequence[str], inputs: Inputs, outputs: Outputs) -> None:
    """Raise if there is nothing to do, a text is missing, or a given option would be ignored."""
    requested = {name for name, value in vars(outputs).items() if value}
    if not requested:
        raise ValueError("choose an output: --out page.html, --png figure.png, --shares map.png or --attribution")
    for file in (outputs.out, outputs.png, outputs.shares):
        if file is not None:
            require_new(file)
    for name, used_by in USES.items():
        if vars(inputs)[name] is not None and not requested.intersection(used_by):
            raise ValueError(f"--{name} is only for {', '.join(f'--{each}' for each in used_by)}")
    if inputs.corpus is not None and requested == {"out"}:
        if texts or inputs.against:
            raise ValueError("--corpus with --out takes no texts and no --against: pass --model once per model")
        return
    if inputs.corpus is not None and "shares" not in requested:
        raise ValueError("--corpus is only for --shares, or for --out alone")
    if len(models) > 1:
        raise ValueError("several --model need --corpus FILE --out page.html; to compare two on a text, use --against")
    if requested != {"shares"}:
        if not texts:
            raise ValueError("pass a text to explain")
    elif bool(texts) == (inputs.corpus is not None):
        raise ValueError("--shares needs either texts or --corpus FILE")
    if requested <= {"png", "shares"} and "png" in requested and len(texts) > 1:
        raise ValueError(f"--png draws one text, not {len(texts)}; use --out page.html to show them all")
