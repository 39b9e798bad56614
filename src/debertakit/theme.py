"""Shared design of the web page, the attention explorer and the reports: theme.css, and a page in two languages."""

import html
from importlib.resources import files
from typing import NamedTuple

THEME = files("debertakit") / "theme.css"


class Say(NamedTuple):
    """A text in both languages of the pages."""

    en: str
    zh: str


Words = str | Say
"""A plain str is the same in both languages: a name, a number, the user's text."""


def theme() -> str:
    """The stylesheet, for a page that is one file."""
    return THEME.read_text(encoding="utf-8")


def in_html(words: Words) -> str:
    """Escaped text. Of two languages, the stylesheet hides one."""
    if isinstance(words, str):
        return html.escape(words)
    return "".join(
        f'<span class="say" lang="{tag}">{html.escape(text)}</span>'
        for tag, text in zip(("en", "zh"), words, strict=True)
    )


def one_file(title: str, body: str) -> str:
    """An HTML page in one file. A switch changes the language; the browser's language is set first."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{theme()}</style></head><body>
<header class="top"><h1>{html.escape(title)}</h1>
<label class="switch"><input type="checkbox" id="zh">{in_html(Say("中文", "English"))}</label></header>
<main class="report">
{body}
</main>
<script>if (/^zh/.test(navigator.language)) document.getElementById("zh").checked = true;</script>
</body></html>
"""
