"""Sections of a report, as HTML in one file (two languages, works offline) and as Markdown (English)."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from debertakit.theme import Say, Words, in_html, one_file


@dataclass(frozen=True)
class Styled:
    """A cell with a class of theme.css."""

    words: Words
    style: str


Cell = Words | Styled | float | int
FOLD = 8
"""A table with more rows than this under a chart is folded."""
_NUMBER = re.compile(r"(< )?[+−-]?\d[\d,.e+−-]*( (%|M|± [\d.e−-]+|… [+−-]?\d.*|\(edge\)))?|[–-]?")


@dataclass(frozen=True)
class Section:
    title: Words
    header: Sequence[Cell] = ()
    rows: Sequence[Sequence[Cell]] = ()
    note: Words = ""
    figures: str = ""
    """Charts as HTML, only in report.html."""
    shaded: bool = False
    """Shade the cells by value (confusion matrix)."""
    listed: bool = False
    """Show each row as a list item: its last cell is a long text."""
    folded: bool = False
    wide: bool = False


def as_html(title: str, hero: str, sections: Sequence[Section]) -> str:
    return one_file(title, "\n".join([hero, *map(_html_section, sections)]))


def _html_section(section: Section) -> str:
    parts = [f"<h2>{in_html(section.title)}</h2>"]
    if section.note:
        parts.append(f'<p class="note">{in_html(section.note)}</p>')
    folded = section.folded or (bool(section.figures) and len(section.rows) > FOLD)
    if section.figures and (folded or not section.rows):
        parts.append(f'<div class="charts">{section.figures}</div>')
    if section.rows:
        content = _items(section) if section.listed else table(section.header, section.rows, section.shaded)
        if folded:
            rows = f"{len(section.rows)} row{'' if len(section.rows) == 1 else 's'}"
            summary = in_html(Say(f"Show {rows}", f"显示 {len(section.rows)} 行"))
            content = f"<details><summary>{summary}</summary>{content}</details>"
        elif section.figures:
            content = f'<div class="charts">{section.figures}{content}</div>'
        parts.append(content)
    return f'<section class="card{" wide" if section.wide else ""}">' + "\n".join(parts) + "</section>"


def table(header: Sequence[Cell], rows: Sequence[Sequence[Cell]], shaded: bool = False) -> str:
    """A table that scrolls inside its box. A column of numbers is aligned right, with its header."""
    numbers = [all(map(_is_number, column)) for column in zip(*rows, strict=True)]
    right = ["" if not number else ' class="number"' for number in numbers]
    head = "".join(
        f'<th scope="col"{css}>{in_html(_words(cell))}</th>' if cell != "" else "<td></td>"
        for cell, css in zip(header, right, strict=True)
    )
    body = "\n".join(f"<tr>{_html_cells(row, numbers, shaded)}</tr>" for row in rows)
    css = ' class="grid"' if shaded else ""
    return (
        f'<div class="scroll" tabindex="0" role="group"><table{css}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _is_number(cell: Cell) -> bool:
    """Whether a cell is a number, or a text such as "71.3 ± 0.4", "+1 … +3", "8,192" or "–"."""
    return not isinstance(cell, (Say, Styled)) and (not isinstance(cell, str) or _NUMBER.fullmatch(cell) is not None)


def _html_cells(row: Sequence[Cell], numbers: Sequence[bool], shaded: bool) -> str:
    total = sum(cell for cell in row if not isinstance(cell, (str, Say, Styled))) or 1
    first, *others = row
    cells = [f'<th scope="row">{in_html(_words(first))}</th>']
    for cell, number in zip(others, numbers[1:], strict=True):
        if isinstance(cell, (str, Say)):
            css = ' class="number"' if number else ""
            cells.append(f"<td{css}>{in_html(cell)}</td>")
        elif isinstance(cell, Styled):
            cells.append(f'<td class="{cell.style}">{in_html(cell.words)}</td>')
        else:  # at 0.45, the text keeps its contrast in light and dark
            shade = f' style="background:rgb(var(--high) / {0.45 * cell / total:.2f})"' if shaded else ""
            cells.append(f'<td class="number"{shade}>{short(cell)}</td>')
    return "".join(cells)


def _items(section: Section) -> str:
    *names, _ = section.header
    items = []
    for row in section.rows:
        *facts, text = row
        pairs = "".join(
            f"<div><dt>{in_html(_words(name))}</dt><dd>{in_html(_words(fact))}</dd></div>"
            for name, fact in zip(names, facts, strict=True)
            if fact != ""
        )
        items.append(f"<li><dl>{pairs}</dl><p>{in_html(_words(text))}</p></li>")
    return f'<ol class="mistakes">{"".join(items)}</ol>'


def as_markdown(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    parts = [f"# {plain(title)}", *map(plain, lead)]
    for section in sections:
        parts.append(f"## {english(section.title)}")
        if section.note:
            parts.append(english(section.note))
        if section.rows:
            lines = [section.header, ["---"] * len(section.header), *section.rows]
            parts.append("\n".join("| " + " | ".join(plain(short(cell)) for cell in line) + " |" for line in lines))
        elif section.figures:
            parts.append("(drawn in report.html)")
    return "\n\n".join(parts) + "\n"


def english(words: Words) -> str:
    return words if isinstance(words, str) else words.en


def plain(text: str) -> str:
    """Escape user text for a Markdown table."""
    return " ".join(html.escape(str(text), quote=False).replace("|", "\\|").replace("`", "\\`").split())


def _words(cell: Cell) -> Words:
    if isinstance(cell, Styled):
        return cell.words
    return cell if isinstance(cell, (str, Say)) else short(cell)


def short(value: object) -> str:
    if isinstance(value, Styled):
        return english(value.words)
    if isinstance(value, Say):
        return value.en
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return f"{value:.2f}" if 0.1 <= abs(value) < 1e6 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(short, value))
    return str(value)
