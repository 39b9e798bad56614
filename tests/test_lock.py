"""requirements.lock has what README's two install commands need, at the versions of constraints.txt, with hashes."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.licences import locked

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
ENTRY = re.compile(r"^([\w.-]+==[^\\\n]+?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)
PINS = [Requirement(entry) for entry, _ in ENTRY.findall(LOCK)]


def test_every_line_belongs_to_a_package_with_hashes():
    assert ENTRY.sub("", LOCK) == ""
    assert {canonicalize_name(pin.name) for pin in PINS} == set(locked())


def test_it_follows_pyproject_and_constraints():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [Requirement(each) for each in [*project["dependencies"], *extras["finetune"], *extras["serve"]]]
    versions = {name: {pin.specifier for pin in PINS if canonicalize_name(pin.name) == name} for name in locked()}
    for requirement in needed:
        for specifier in versions[canonicalize_name(requirement.name)]:
            (version,) = specifier
            assert requirement.specifier.contains(version.version), requirement
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    constraints = [Requirement(line) for line in lines if line]
    for name in versions:
        allowed = {each.specifier for each in constraints if canonicalize_name(each.name) == name}
        assert not allowed or versions[name] <= allowed, f"{name}: run make lock"
