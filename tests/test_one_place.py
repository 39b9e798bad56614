"""Some things may be defined in one place only. ``ALLOWED`` says where; it should shrink, not grow."""

import ast
import re
from pathlib import Path

import pytest

import debertakit

ROOT = Path(debertakit.__file__).parent
NODES = {
    path.relative_to(ROOT).as_posix(): list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    for path in ROOT.rglob("*.py")
}
IGNORED_LABEL = ast.dump(ast.parse("-100", mode="eval").body)
TEMPORARY = re.compile(r"[\w.]*\.(part|partial|tmp)")
HAN_RANGE = re.compile(r"(\\u3400|\\u4e00|[\u3400\u4e00])-")

RULES = {
    "label that the loss ignores": lambda node: isinstance(node, ast.UnaryOp) and ast.dump(node) == IGNORED_LABEL,
    "atomic write": lambda node: (
        (isinstance(node, ast.Attribute) and node.attr == "fsync")
        or (is_text(node) and TEMPORARY.fullmatch(node.value))
    ),
    "hash": lambda node: isinstance(node, ast.Import) and node.names[0].name == "hashlib",
    "Chinese characters": lambda node: is_text(node) and HAN_RANGE.search(node.value),
}
ALLOWED = {
    "label that the loss ignores": {"padding.py"},
    "atomic write": {"files.py"},
    "hash": {
        "files.py",
        "text/corpus.py",  # of texts, not of files
    },
    "Chinese characters": {
        "text/characters.py",
        "tasks/metrics.py",  # the range of CMRC's official script
    },
}


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("name", RULES)
def test_it_is_defined_in_one_place(name):
    found = {file for file, nodes in NODES.items() if any(map(RULES[name], nodes))}
    assert not found - ALLOWED[name], f"{name}: use the definition that exists"
    assert not ALLOWED[name] - found, f"{name}: remove what is not there any more from ALLOWED"
