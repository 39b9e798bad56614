"""The public API: documented, annotated, light to import. tests/test_docs.py runs the examples of docs/api.md."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import debertakit

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_page_lists_the_public_names():
    listed = re.findall(r"^`(\w+)\(", PAGE, re.M)
    listed += re.findall(r"^\| `(\w+)`", PAGE, re.M) + re.findall(r"`(Deberta\w*Config)`", PAGE)
    assert sorted(listed) == sorted(debertakit.__all__)


def test_every_public_name_has_a_docstring_and_annotations():
    for name in debertakit.__all__:
        found = getattr(debertakit, name)
        assert vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__, name
        if inspect.isfunction(found):
            signature = inspect.signature(found)
            missing = [each.name for each in signature.parameters.values() if each.annotation is each.empty]
            assert not missing, (name, missing)
            assert signature.return_annotation is not signature.empty, name


def test_signatures_on_the_page_are_those_of_the_functions():
    for name, shown in re.findall(r"^`(\w+)\((.*?)\) -> ", PAGE, re.M | re.S):
        parameters = inspect.signature(getattr(debertakit, name)).parameters.values()
        names = [each.split("=")[0].strip() for each in shown.split(",") if each.strip() not in ("", "*")]
        stars = {inspect.Parameter.VAR_KEYWORD: "**"}
        assert names == [stars.get(each.kind, "") + each.name for each in parameters], name
        for each, default in re.findall(r"(\w+)=([^,]+)", shown.replace("\n", " ")):
            if default != "()":
                assert repr(inspect.signature(getattr(debertakit, name)).parameters[each].default) == default.replace(
                    '"', "'"
                )


def test_importing_is_light_and_unknown_names_are_refused():
    code = "import sys, debertakit; print('torch' in sys.modules, hasattr(debertakit, 'no_such_name'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"] * 2
    assert set(debertakit.__all__) <= set(dir(debertakit))
