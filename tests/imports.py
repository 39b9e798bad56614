"""Which module of the package imports which, read from the source. Lazy imports count.

python -m tests.imports     rewrite the graph in docs/architecture.md
"""

import ast
from pathlib import Path

import debertakit

ROOT = Path(debertakit.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
START, END = "<!-- import graph: python -m tests.imports -->\n", "<!-- end of import graph -->"
ORDER = (
    *(
        "files",
        "theme",
        "installation",
        "model_names",
        "protocols",
        "attention",
        "config",
        "checkpoints",
        "padding",
        "model",
        "decoding",
        "heads",
        "acceleration",
    ),
    *(
        "precision",
        "text",
        "data",
        "ensembles",
        "generation",
        "loading",
        "tasks",
        "training",
        "objectives",
        "pretraining",
    ),
    *(
        "finetuning",
        "inference",
        "explain",
        "serving",
        "lab",
        "bench",
        "complexity",
        "verification",
        "demo",
        "doctor",
        "cli",
    ),
)
"""A package imports only packages that stand before it."""


def module_name(path: Path) -> str:
    """src/debertakit/text/packing.py -> "text.packing"."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
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


def package_graph() -> dict[str, set[str]]:
    """Packages that each package imports."""
    graph: dict[str, set[str]] = {package: set() for package in ORDER}
    for name, path in MODULES.items():
        package = name.partition(".")[0]
        graph[package] |= {other.partition(".")[0] for other in imports(path)} - {package}
    return graph


def drawn_graph() -> str:
    """The package graph for Mermaid, without edges that follow from others."""
    graph = package_graph()

    def reachable(package: str) -> set[str]:
        return graph[package].union(*(reachable(other) for other in graph[package]))

    lines = ["```mermaid", "graph BT"]
    for package in ORDER:
        implied = set().union(*(reachable(other) for other in graph[package]))
        lines += [f"    {package} --> {other}" for other in ORDER if other in graph[package] - implied]
    return "\n".join([*lines, "```", ""])


def page_with_graph(text: str) -> str:
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    return f"{before}{start}{drawn_graph()}{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_graph(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
