"""Tests share helpers through plain modules and fixtures: no module imports a test module or a conftest.py."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Absolute names of the modules, and of the names in them, that a file of this folder imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT.parent).parts[: -node.level] if node.level else ()
            parent = ".".join([*package, *([node.module] if node.module else [])])
            found |= {parent, *(f"{parent}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_a_test_or_a_conftest(path):
    parts = {name: name.split(".") for name in imports(path) if name.partition(".")[0] in ("tests", "conftest")}
    wrong = sorted(name for name, p in parts.items() if "conftest" in p or any(x.startswith("test_") for x in p))
    assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(wrong)}; move what it needs to a helper module"
