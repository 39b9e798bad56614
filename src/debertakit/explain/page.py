"""Attention explorer as one HTML file, with script, style and data inlined. It fetches nothing.

``page_data`` is the input of ``draw(container, data)`` in page/explorer.js. Matrices are stored in base64 with one byte
per cell, scaled between the minimum and maximum of their head: 1.2 MB for 12 x 12 heads and 40 tokens.
"""

import base64
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

import numpy as np

from debertakit.explain.parts import Anatomy, centred, profile, shares, striking
from debertakit.files import write_text
from debertakit.theme import theme

SCRIPTS = ("explorer-words.js", "explorer-drawing.js", "explorer.js")
"""In the order in which they are loaded."""
LARGEST = 40_000_000  # cells: larger pages are slow in a browser


class CompactArray(TypedDict):
    """[layers, heads, ...] in one byte per cell: value = low[head] + step[head] * byte."""

    bytes: str
    low: list[float]
    step: list[float]


class TextData(TypedDict, total=False):
    text: str
    tokens: list[str]
    dropped: int
    """Truncated tokens."""
    opening: tuple[int, int, int, int]
    """Layer, head, query and key to show first."""
    matrices: dict[str, CompactArray]
    profile: dict[str, CompactArray]
    shares: dict[str, list[list[float]]]
    """Only for models with position parts."""


class ModelData(TypedDict):
    name: str
    layers: int
    heads: int
    parts: list[str]
    texts: list[TextData]


class PageData(TypedDict):
    models: list[ModelData]


def page_data(models: Sequence[Sequence[Anatomy]]) -> PageData:
    """Build the data of the page. ``models``: the anatomies of each model, for the same texts in the same order."""
    cells = sum(anatomy.attention.size * (1 + len(anatomy.parts)) for texts in models for anatomy in texts)
    check_size(cells, max(len(anatomy.tokens) for texts in models for anatomy in texts))
    return {"models": [_model_data(texts) for texts in models]}


def check_size(cells: int, longest: int) -> None:
    if cells > LARGEST:
        raise ValueError(
            f"{cells:,} cells are too many for a page (up to {LARGEST:,}); the longest text has {longest} tokens: "
            "give shorter or fewer texts"
        )


def _model_data(texts: Sequence[Anatomy]) -> ModelData:
    layers, heads = texts[0].attention.shape[:2]
    return {
        "name": texts[0].model,
        "layers": layers,
        "heads": heads,
        "parts": list(texts[0].parts),
        "texts": [_text_data(text) for text in texts],
    }


def _text_data(anatomy: Anatomy) -> TextData:
    by_distance = profile(anatomy)
    data: TextData = {
        "text": anatomy.text,
        "tokens": anatomy.tokens,
        "dropped": anatomy.dropped,
        "opening": striking(anatomy),
        "matrices": {"attention": _compact(anatomy.attention)},
        "profile": {"attention": _compact(by_distance.attention)},
    }
    # Subtract the row means: the softmax ignores them.
    data["matrices"] |= {name: _compact(centred(part)) for name, part in anatomy.parts.items()}
    if by_distance.position is not None:
        data["profile"]["position"] = _compact(by_distance.position)
        data["shares"] = {name: np.round(share, 4).tolist() for name, share in shares([anatomy]).parts.items()}
    return data


def _compact(values: np.ndarray) -> CompactArray:
    """Quantise [layers, heads, ...] to bytes, with the minimum and the step of each head."""
    flat = values.reshape(values.shape[0] * values.shape[1], -1).astype(np.float64)
    low, high = flat.min(1), flat.max(1)
    step = (high - low) / 255
    steps = np.rint((flat - low[:, None]) / np.where(step > 0, step, 1)[:, None]).astype(np.uint8)
    return {
        "bytes": base64.b64encode(steps.tobytes()).decode("ascii"),
        "low": [float(f"{x:.6g}") for x in low],
        "step": [float(f"{x:.6g}") for x in step],
    }


def write_page(models: Sequence[Sequence[Anatomy]], file: str | Path) -> None:
    write_text(Path(file), page_html(page_data(models)))


def page_html(data: PageData) -> str:
    folder = files("debertakit.explain") / "page"
    html = (folder / "page.html").read_text(encoding="utf-8")
    style = [theme(), (folder / "explorer.css").read_text(encoding="utf-8")]
    script = [(folder / name).read_text(encoding="utf-8") for name in SCRIPTS]
    # ASCII without "<", so that the data cannot close its script element.
    inlined = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    for mark, content in (
        ("/*style*/", "\n".join(style)),
        ("/*script*/", "\n".join(script)),
        ("/*data*/", inlined),  # last, so that markers inside user text are not replaced
    ):
        html = html.replace(mark, content, 1)
    return html
