"""Imports go one way: each package imports only packages before it in ORDER, lazy imports included, without cycles."""

from graphlib import TopologicalSorter

import pytest

from tests.imports import FILES, MODULES, ORDER, PAGE, imports, module_name, page_with_graph


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_module_imports_only_packages_before_its_own(path):
    package = module_name(path).partition(".")[0]
    allowed = {*ORDER[: ORDER.index(package)], package}
    wrong = sorted(name for name in imports(path) if name.partition(".")[0] not in allowed)
    assert not wrong, f"{module_name(path)} imports {', '.join(wrong)}"


def test_there_are_no_import_cycles():
    graph = {name: imports(path) - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_the_graph_in_the_docs_is_current():
    text = PAGE.read_text(encoding="utf-8")
    assert page_with_graph(text) == text, "run: python -m tests.imports"
