"""Attention patterns averaged over a corpus, several models side by side (the paper's appendix A.9).

For every head and n texts, each truncated to LONGEST tokens:

    by distance    mean attention of a token to the one at distance i - j, over the n texts that have such a pair
    patterns       strength of the diagonal, the stripe and [CLS] (parts.patterns), mean over texts

and the mean attention matrix over the texts, in SIDE x SIDE cells: texts differ in length, so a matrix of N x N tokens
is resampled so that cell (a, b) holds the attention of the a-th to the b-th part of the text. Each row still sums to 1.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from debertakit.explain.parts import Subject, patterns, profile, take_apart
from debertakit.files import write_text
from debertakit.theme import Say, Words, in_html, one_file

LONGEST = 64
SIDE = 16
REACH = 12
"""Distances shown on each side."""
CELL, WIDE = 10, 120


@dataclass(frozen=True)
class CorpusPatterns:
    model: str
    texts: int
    matrices: np.ndarray
    """[layers, SIDE, SIDE]: mean over heads and texts."""
    strength: dict[str, np.ndarray]
    """Pattern -> [layers, heads]."""
    by_distance: np.ndarray
    """[layers, 2 REACH + 1]: mean over heads; distance i - j from -REACH to REACH."""


def corpus_patterns(subject: Subject, texts: Sequence[str]) -> CorpusPatterns:
    matrices, strengths, sums = [], [], np.zeros(0)
    counts = np.zeros(2 * REACH + 1)
    for text in texts:
        anatomy = take_apart(subject, text, longest=LONGEST)
        matrices.append(resampled(anatomy.attention.mean(1)))
        strengths.append(patterns(anatomy))
        found = profile(anatomy)
        kept = np.abs(found.distances) <= REACH
        sums = sums if sums.size else np.zeros((len(anatomy.attention), 2 * REACH + 1))
        sums[:, found.distances[kept] + REACH] += found.attention.mean(1)[:, kept]
        counts[found.distances[kept] + REACH] += 1
    if not matrices:
        raise ValueError("the corpus has no text")
    strength = {name: np.mean([each[name] for each in strengths], axis=0) for name in strengths[0]}
    return CorpusPatterns(
        subject.name, len(matrices), np.mean(matrices, axis=0), strength, sums / np.maximum(counts, 1)
    )


def resampled(attention: np.ndarray) -> np.ndarray:
    """[..., N, N] -> [..., SIDE, SIDE]. Queries are averaged and keys added up, so rows keep their sum."""
    share = overlap(attention.shape[-1])  # [SIDE, N]
    rows = share / share.sum(-1, keepdims=True)
    return rows @ attention @ (share / share.sum(0)).T


def overlap(length: int) -> np.ndarray:
    """[SIDE, N]: length of the overlap of each cell [a, a + 1] / SIDE with each token [i, i + 1] / N."""
    cells, tokens = np.arange(SIDE + 1) / SIDE, np.arange(length + 1) / length
    low = np.maximum(cells[:-1, None], tokens[None, :-1])
    high = np.minimum(cells[1:, None], tokens[None, 1:])
    return np.clip(high - low, 0.0, None)


# ---------------------------------------------------------------------------------------------------------------- page


def write_corpus_page(found: Sequence[CorpusPatterns], file: Path) -> None:
    """One column per model: the patterns of its layers. Works offline, in English and Chinese."""
    title = " / ".join(each.model for each in found)
    columns = "".join(_column(each) for each in found)
    note = Say(
        f"Mean attention over {found[0].texts} texts, at most {LONGEST} tokens each. Squares: from each part of the "
        "text (top to bottom) to each part (left to right). Curves: by the distance of the other token, from "
        f"{REACH} before to {REACH} after. Numbers: the head of the layer with the strongest pattern.",
        f"{found[0].texts} 个文本的平均注意力，每个最多 {LONGEST} 个词元。"
        "方块：文本各部分（从上到下）对各部分（从左到右）的注意力。"
        f"曲线：按距离，从前 {REACH} 个到后 {REACH} 个词元。数字：该层中模式最强的头。",
    )
    style = "<style>.models{display:flex;flex-wrap:wrap;gap:2rem}.models svg{display:block}</style>"
    card = f'<p class="note">{in_html(note)}</p><div class="models">{columns}</div>'
    write_text(file, one_file(title, f'{style}<section class="card wide">{card}</section>'))


def _column(found: CorpusPatterns) -> str:
    names: dict[str, Words] = {"diagonal": Say("diagonal", "对角线"), "stripe": Say("stripe", "竖条"), "[CLS]": "[CLS]"}
    header = "".join(f"<th>{in_html(names[name])}</th>" for name in found.strength)
    head = f"<thead><tr><th>{in_html(Say('layer', '层'))}</th><th></th><th></th>{header}</tr></thead>"
    rows = []
    for layer, matrix in enumerate(found.matrices):
        strongest = "".join(
            f'<td class="number">{values[layer].max():.0%} <small>({int(values[layer].argmax())})</small></td>'
            for values in found.strength.values()
        )
        rows.append(
            f'<tr><th scope="row">{layer}</th><td>{matrix_svg(matrix, f"{found.model}, layer {layer}")}</td>'
            f"<td>{distance_svg(found.by_distance[layer])}</td>{strongest}</tr>"
        )
    return f"<div><h2>{in_html(found.model)}</h2><table>{head}<tbody>{''.join(rows)}</tbody></table></div>"


def matrix_svg(matrix: np.ndarray, label: str) -> str:
    """Darkness is the square root of the attention: rows sum to 1, so stripes would be faint next to the diagonal."""
    shade = np.sqrt(matrix / max(float(matrix.max()), 1e-12))
    cells = "".join(
        f'<rect x="{key}" y="{query}" width="1" height="1" opacity="{value:.2f}"/>'
        for (query, key), value in np.ndenumerate(shade)
    )
    size = CELL * SIDE // 2
    return (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" width="{size}" height="{size}" role="img" aria-label="{html.escape(label)}" '
        f'fill="currentColor" shape-rendering="crispEdges">{cells}</svg>'
    )


def distance_svg(values: np.ndarray) -> str:
    height = CELL * SIDE // 2
    scaled = values / max(float(values.max()), 1e-12)
    step = WIDE / (len(values) - 1)
    points = " ".join(f"{i * step:.1f},{(height - 2) * (1 - y) + 1:.1f}" for i, y in enumerate(scaled[::-1]))
    middle = WIDE / 2
    return (
        f'<svg viewBox="0 0 {WIDE} {height}" width="{WIDE}" height="{height}" fill="none" stroke="currentColor">'
        f'<path d="M{middle} 0V{height}" opacity=".25"/><polyline points="{points}"/></svg>'
    )
