"""The documentation site lists every page, and links between files of the repository lead somewhere.

``make docs`` checks the same and more, but needs the extra [docs]; these tests need nothing.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = ["README.md", "README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"]
FROM_ELSEWHERE = {"index.md", "changelog.md", "contributing.md", "benchmarks.md"}


def test_the_navigation_lists_every_page_once():
    listed = re.findall(r"^ +- .+: ([\w/-]+\.md)$", SITE, re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES if not path.name.endswith(".zh.md")}
    assert sorted(listed) == sorted(pages | FROM_ELSEWHERE)


def test_every_title_of_the_navigation_has_a_chinese_one():
    navigation, translations = SITE.partition("nav_translations:")[::2]
    titles = re.findall(r"^ +- ([^:]+):(?: \S+\.md)?$", navigation.partition("\nnav:")[2].partition("\n\n")[0], re.M)
    translated = re.findall(r"^ {12}([^:]+): ", translations, re.MULTILINE)
    assert set(titles) <= set(translated)


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in OTHERS)], ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))  # without code
    targets = re.findall(r"\]\((?![a-z]+:)([^)\s#]+)", text)
    assert not [target for target in targets if not (page.parent / target).exists()]
