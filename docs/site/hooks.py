"""Collect the pages of the site in build/docs: docs/, and the pages and files from elsewhere in the repository.

Equations become MathML when the site is built, so the reader needs no script and no font for them.
"""

import html
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority

ROOT = Path(__file__).parents[2]
COLLECTED = ROOT / "build" / "docs"
MOVED = {
    "README.md": "index.md",
    "README.zh.md": "index.zh.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Path in the repository -> page of the site. A page of docs/ keeps its path, without docs/."""
COPIED = ("LICENSE", "examples/*.py", "examples/*.ipynb")
ICON = ROOT / "src" / "debertakit" / "serving" / "page" / "icon.svg"
SCRIPTS = ROOT / "build" / "npm"
"""From npm (see the Makefile): mermaid draws diagrams, iframe-worker makes the search work without a server."""


@event_priority(100)  # before the plugins look for pages
def on_config(config: Any) -> Any:
    collect()
    config["docs_dir"] = str(COLLECTED)
    return config


def collect() -> None:
    shutil.rmtree(COLLECTED, ignore_errors=True)
    shutil.copytree(ROOT / "docs", COLLECTED, ignore=shutil.ignore_patterns("*.md", "*.py", "__pycache__"))
    pages = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    for path in (*pages, *MOVED):
        text = (ROOT / path).read_text(encoding="utf-8")
        text = re.sub(r"\s*[^.。\n]*\[[^]]*\]\(README(\.zh)?\.md\)。?", "", text)  # the site has a switch of language
        (COLLECTED / place(path)).write_text(relink(text, path), encoding="utf-8")
    for path in (found for pattern in COPIED for found in ROOT.glob(pattern)):
        target = COLLECTED / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copyfile(ICON, COLLECTED / "site" / "icon.svg")
    for name in ("mermaid.min.js", "iframe-worker.js"):
        if not (SCRIPTS / name).is_file():
            raise PluginError(f"{SCRIPTS / name} is missing: run make docs, which gets it from npm")
        shutil.copyfile(SCRIPTS / name, COLLECTED / "site" / name)


def place(path: str) -> str:
    """Where a file of the repository is in the site."""
    return MOVED.get(path, path.removeprefix("docs/"))


def relink(text: str, path: str) -> str:
    """Turn the links of a page between files of the repository into links between pages of the site.

    A link to a Chinese page becomes one to the page: the site shows it in the reader's language.
    """

    def rewrite(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        there = place(target).replace(".zh.md", ".md")
        return f"]({posixpath.relpath(there, posixpath.dirname(place(path)) or '.')}{match[2]})"

    return re.sub(r"\]\((?![a-z]+:)([^)\s#]+)(#[^)\s]*|)\)", rewrite, text)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the equations that arithmatex marked with MathML."""

    def convert(match: re.Match[str]) -> str:
        display = "block" if match[1] == "[" else "inline"
        return latex2mathml.converter.convert(html.unescape(match[2]), display=display)

    marked = r'<(?:span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>'
    return re.sub(marked, convert, content, flags=re.S)
