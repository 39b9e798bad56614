"""Figures of attention: the patterns of the paper's appendix A.9, and a map of content and position shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from debertakit.explain.parts import Anatomy, Shares, patterns
from debertakit.files import replacing
from debertakit.installation import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTENT_TO_POSITION = ("#1658b0", "#ffffff", "#d66014")  # same colours as the HTML page


def pattern_figure(anatomies: Sequence[Anatomy], file: str | Path, layer: int = -1) -> None:
    """Draw one layer, one row per model: the mean of its heads, and the strongest head for each pattern."""
    plot = _matplotlib()
    columns = ["mean", *patterns(anatomies[0])]
    figure, axes = plot.subplots(
        len(anatomies),
        len(columns),
        figsize=(3.0 * len(columns), 3.2 * len(anatomies)),
        squeeze=False,
        layout="constrained",
    )
    for row, anatomy in zip(axes, anatomies, strict=True):
        matrices = anatomy.attention[layer]
        strength = {name: values[layer] for name, values in patterns(anatomy).items()}
        for panel, column in zip(row, columns, strict=True):
            if column == "mean":
                shown, title = matrices.mean(0), f"{anatomy.model}, layer {layer % len(anatomy.attention)}: mean"
            else:
                head = int(strength[column].argmax())
                shown, title = matrices[head], f"{column}: head {head} ({strength[column][head]:.0%})"
            # Square root: rows sum to 1, so stripes would be faint next to the diagonal.
            panel.imshow(np.sqrt(shown), cmap="Blues", vmin=0.0, vmax=1.0)
            panel.set_title(title, fontsize=9)
            _label(panel, anatomy.tokens if len(anatomy.tokens) <= 24 else [])
    _save(figure, Path(file))
    plot.close(figure)


def shares_figure(shares: Shares, file: str | Path, title: str = "") -> None:
    """Draw position's share of the score variation, layers x heads."""
    plot = _matplotlib()
    from matplotlib.colors import LinearSegmentedColormap

    layers, heads = shares.position.shape
    figure, axis = plot.subplots(figsize=(1.5 + 0.45 * heads, 1.2 + 0.36 * layers), layout="constrained")
    colours = LinearSegmentedColormap.from_list("shares", CONTENT_TO_POSITION)
    image = axis.imshow(shares.position, cmap=colours, vmin=0.0, vmax=1.0, aspect="auto")
    for layer, head in np.ndindex(layers, heads):
        value = shares.position[layer, head]
        colour = "black" if 0.2 < value < 0.8 else "white"
        axis.text(head, layer, f"{100 * value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    axis.set(xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers))
    axis.set_title(title or "share of position in the variation of the scores, %", fontsize=10)
    figure.colorbar(image, ax=axis, ticks=[0, 0.5, 1]).ax.set_yticklabels(["content", "half", "position"])
    _save(figure, Path(file))
    plot.close(figure)


def _save(figure: Figure, file: Path) -> None:
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format=file.suffix[1:] or "png")


def _label(panel: Axes, tokens: Sequence[str]) -> None:
    shown = [token.strip().replace("$", r"\$") for token in tokens]  # matplotlib would parse $...$ as math
    panel.set_xticks(range(len(shown)), shown, rotation=90, fontsize=6)
    panel.set_yticks(range(len(shown)), shown, fontsize=6)


def _matplotlib() -> ModuleType:
    try:
        import matplotlib
    except ImportError:
        raise ImportError(f"drawing needs matplotlib: {install('explain')}") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plot

    # Use the installed Chinese fonts, if any.
    plot.rcParams["font.family"] = ["DejaVu Sans", *_chinese_fonts()]
    return plot


def _chinese_fonts() -> list[str]:
    from matplotlib import font_manager

    known = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei", "Microsoft YaHei")
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in (*known, "PingFang SC", "Heiti TC", "SimHei") if name in installed]
