"""The demo's data: the documentation that ships with Python, as a corpus and as a classification task."""

import ast
import csv
import sysconfig
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "unittest", "xml")
"""Labels of the task. Every Python from 3.10 to 3.13 has these packages."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LEFT_OUT = {"test", "tests", "site-packages", "idlelib", "lib2to3"}


def docstrings() -> Iterator[tuple[str, list[str]]]:
    """Yield the package of each file of the standard library, and the docstrings of the file."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(library.rglob("*.py")):
        parts = file.relative_to(library).parts
        if LEFT_OUT & set(parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, DOCUMENTED))
        yield parts[0], [doc for doc in found if doc]


def python_documentation() -> Iterator[str]:
    """Yield one document per topic of the language reference and one per module of the standard library."""
    from pydoc_data.topics import topics

    yield from topics.values()
    for _, docs in docstrings():
        text = "\n".join(docs)
        if len(text) > 200:
            yield text


def write_corpus(path: Path) -> int:
    """Write one paragraph per line, with a blank line between documents. Returns the number of characters."""
    documents = []
    for text in python_documentation():
        paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
        documents.append("\n".join(part for part in paragraphs if part))
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return sum(map(len, documents))


def write_task(path: Path) -> list[str]:
    """Write a table with the first paragraph of each docstring and its package. Returns the texts.

    The name of the package is left out of the text: it would give the answer away.
    """
    rows = dict[str, str]()
    for package, docs in docstrings():
        for doc in docs if package in PACKAGES else ():
            text = " ".join(doc.split("\n\n")[0].split())
            if 30 <= len(text) <= 300 and package not in text.casefold():
                rows[text] = package
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "package"])
        table.writerows(rows.items())
    return list(rows)
