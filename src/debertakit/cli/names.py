"""Check the names of recipes and tasks before the imports of torch and transformers, which take seconds."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from debertakit import pretraining
from debertakit.tasks.listing import PUBLISHED

_ROW = re.compile(r'^    "([\w.-]+)": [a-z_]\w*,$', re.MULTILINE)


def check_recipe(name: str) -> None:
    if not name.endswith(".json"):
        _check("recipe", name, recipe_names(), "deberta recipes")


def check_task(name: str) -> None:
    _check("task", name, list(PUBLISHED), "deberta tasks")


def recipe_names() -> list[str]:
    """Names in the tables of pretraining/recipes/, read from the source files."""
    folder = Path(pretraining.__path__[0]) / "recipes"
    return [name for file in sorted(folder.glob("*.py")) for name in _ROW.findall(file.read_text(encoding="utf-8"))]


def _check(kind: str, name: str, known: Sequence[str], listing: str) -> None:
    if name not in known:
        close = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=2)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ValueError(f"unknown {kind} {name!r}; {hint}({listing} lists all)")
