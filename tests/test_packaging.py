"""The distributions that `python -m build` makes are complete."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import debertakit

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
IGNORED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.so")
pytestmark = pytest.mark.slow


def build(kind, source, out):
    """Build as `python -m build --no-isolation` does. Returns the file."""
    out.mkdir()
    run = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{kind}", out], cwd=source, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return out / run.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The source distribution of a clean copy, unpacked."""
    folder = tmp_path_factory.mktemp("packaging")
    shutil.copytree(ROOT, folder / "copy", ignore=IGNORED)
    archive = build("sdist", folder / "copy", folder / "dist")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


def files_of(folder, *patterns):
    found = (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return {str(path.relative_to(folder)) for path in found if "__pycache__" not in path.parts and path.suffix != ".so"}


def test_the_source_distribution_has_everything_that_a_checkout_has(source):
    whole = (
        "src/**/*.py",
        "src/**/*.cpp",
        "src/**/*.h",
        "src/**/page/**/*",
        "src/**/bundled/**/*",
        "tests/**/*.py",
        "docs/**/*",
        "examples/*",
        "benchmarks/**/*.py",
    )
    top = ("*.md", "*.cff", "*.yml", "LICENSE", "Makefile", "*.txt", "*.lock", "pyproject.toml", "setup.py", "*.in")
    assert not files_of(ROOT, *whole, *top) - files_of(source, *whole, *top)
    assert (source / "src/debertakit/attention/kernel/dispatch.cpp").is_file()
    assert not list(source.rglob("*.so"))


def test_the_wheel_from_the_source_distribution(source, tmp_path, monkeypatch):
    if os.name == "posix":  # a compiler that does not optimise takes 2 seconds instead of 15
        compiler = tmp_path / "c++"
        compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX", "c++")} "$@" -O0\n')
        compiler.chmod(0o700)
        monkeypatch.setenv("CXX", str(compiler))
    wheel = build("wheel", source, tmp_path / "dist")
    assert re.fullmatch(rf"debertakit-{debertakit.__version__}-py3-none-(?!any)\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        metadata = opened.read(f"debertakit-{debertakit.__version__}.dist-info/METADATA").decode()
        scripts = opened.read(f"debertakit-{debertakit.__version__}.dist-info/entry_points.txt").decode()
    code = {
        f"debertakit/{name}"
        for name in files_of(ROOT / "src" / "debertakit", "**/*.py", "**/page/**/*", "bundled/**/*", "py.typed")
    }
    assert not code - names
    assert not [name for name in names if name.startswith(("tests", "docs", "examples", "benchmarks"))]
    if shutil.which("c++") or shutil.which("g++"):
        assert "debertakit/attention/_kernel.so" in names
    assert "deberta = debertakit.cli:main" in scripts
    assert "License-Expression: Apache-2.0" in metadata
    assert "Provides-Extra: xlsx" in metadata


def test_one_version_everywhere():
    stated = {
        "pyproject.toml": re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1],
        "CITATION.cff": re.search(r"^version: (.+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1],
        "CHANGELOG.md": re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1],
    }
    assert set(stated.values()) == {debertakit.__version__}, stated
