"""Imports go one way: each package imports only packages above it in ORDER, lazy imports included, without cycles."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import debertakit

ROOT = Path(debertakit.__file__).parent
ORDER = (
    *(
        "files",
        "protocols",
        "attention",
        "config",
        "checkpoints",
        "padding",
        "model",
        "decoding",
        "heads",
        "acceleration",
        "precision",
    ),
    *("text", "data", "generation", "loading", "tasks", "training", "objectives", "pretraining", "finetuning"),
    *("inference", "explain", "serving", "bench", "parameter_counts", "verification", "demo", "cli"),
)
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, at the top or inside a function: {"text.packing", ...}"""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "debertakit":
            parent = node.module.removeprefix("debertakit").removeprefix(".")
            children = {f"{parent}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= {child if child in MODULES else parent for child in children}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("debertakit.") for alias in node.names if "debertakit." in alias.name}
    return found - {""}


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_module_imports_only_packages_above_its_own(path):
    package = module_name(path).partition(".")[0]
    above = {*ORDER[: ORDER.index(package)], package}
    wrong = sorted(name for name in imports(path) if name.partition(".")[0] not in above)
    assert not wrong, f"{module_name(path)} imports {', '.join(wrong)}"


def test_there_are_no_import_cycles():
    graph = {name: imports(path) - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle
