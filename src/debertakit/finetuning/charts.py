"""Charts of the reports as SVG. Their colours are classes of theme.css, so they follow light and dark.

A chart has no words except numbers: its caption and its key are HTML, in both languages.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from debertakit.theme import Words, in_html

WIDTH, HEIGHT = 420.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 12.0, 24.0
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    name: Words
    points: Sequence[Point]
    colour: int = 0
    joined: bool = True
    dashed: bool = False
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high): a shaded band around the line."""


def chart(caption: Words, series: Sequence[Series], bounds: tuple[float, float, float, float] | None = None) -> str:
    """Draw a figure with lines or dots. ``bounds``: x from, x to, y from, y to; default: the range of the points.

    A line of one point is a dot with its value, so that one evaluation is visible too.
    """
    series = [each for each in series if each.points]
    points = [point for each in series for point in each.points if all(map(math.isfinite, point))]
    points += [(x, y) for each in series for x, *edges in each.band for y in edges]
    if not points:
        return ""
    x0, x1, y0, y1 = bounds or _bounds(points)

    def place(point: Point) -> Point:
        return (
            LEFT + (point[0] - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (point[1] - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM),
        )

    parts = []
    for tick in ticks(y0, y1):
        y = place((x0, tick))[1]
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(x0, x1):
        x = place((tick, y0))[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 4}" text-anchor="middle">{tick:,g}</text>')
    for each in series:
        places = [place(point) for point in each.points if all(map(math.isfinite, point))]
        outline = [place((x, low)) for x, low, _ in each.band] + [place((x, high)) for x, _, high in each.band[::-1]]
        edge = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
        band = f'<polygon class="band" points="{edge}"/>' if outline else ""
        parts.append(f'<g class="series-{each.colour}">{band}{_marks(each, places)}</g>')
    keys = [f'<span class="key series-{each.colour}">{in_html(each.name)}</span>' for each in series if each.name]
    label = caption if isinstance(caption, str) else caption.en
    return (
        f"<figure><figcaption><span>{in_html(caption)}</span>{''.join(keys)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
        "</figure>"
    )


def _marks(series: Series, places: Sequence[Point]) -> str:
    dots = "".join(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    if not series.joined:
        return dots
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    curve = f'<polyline class="curve{" dashed" if series.dashed else ""}" points="{line}"/>'
    if len(places) == 1:
        x, y = places[0]
        curve += (
            f'<text class="only" x="{x + 6:.1f}" y="{y - 8:.1f}" text-anchor="end">{series.points[0][1]:.4g}</text>'
        )
    return curve + (dots if len(places) <= 20 and not series.dashed else "")


def _bounds(points: Sequence[Point]) -> tuple[float, float, float, float]:
    low, high = (min(y for _, y in points), max(y for _, y in points))
    room = 0.08 * (high - low) or max(abs(high), 1.0) * 0.1
    return min(0.0, *(x for x, _ in points)), max(1.0, *(x for x, _ in points)), low - room, high + room


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers from ``low`` to ``high``."""
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def interval_bar(
    value: float, low: float, high: float, base: float | None, label: str, scale: tuple[float, float] = (0, 100)
) -> str:
    """A value with its interval on a scale, and a mark at the baseline. As HTML, its text is as large on a phone."""
    marks = (*scale, low, high) if base is None else (*scale, low, high, base)
    from_, to = min(marks), max(marks)

    def at(number: float) -> str:
        return f"left:{100 * (number - from_) / (to - from_):.2f}%"

    width = 100 * (high - low) / (to - from_)
    parts = [f'<i class="range" style="{at(low)};width:{width:.2f}%"></i>']
    sides = ("", "")
    if base is not None:
        near = abs(value - base) < 0.12 * (to - from_)  # the two numbers would overlap: they go to opposite sides
        if near:
            sides = ("before", "after") if base < value else ("after", "before")
        parts.append(f'<i class="base" style="{at(base)}"></i>')
        parts.append(f'<b class="base {sides[0]}" style="{at(base)}">{signed(base, "")}</b>')
    sign = "+" if from_ < 0 else ""
    parts.append(f'<i class="value" style="{at(value)}"></i>')
    parts.append(f'<b class="value {sides[1]}" style="{at(value)}">{signed(value, sign)}</b>')
    parts += [f'<small style="{at(tick)}">{tick:g}</small>'.replace("-", "−") for tick in ticks(from_, to)]
    return f'<div class="interval" role="img" aria-label="{html.escape(label)}">{"".join(parts)}</div>'


def signed(number: float, plus: str = "+") -> str:
    """One decimal, with a typographic minus."""
    return f"{number:{plus}.1f}".replace("-", "−")
