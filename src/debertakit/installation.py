"""How debertakit is installed: the command that adds an extra, from PyPI or in a checkout. Light to import."""

import json
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import unquote, urlparse

from packaging.requirements import Requirement

EXTRAS = {
    "finetune": "fine-tuning, evaluation and their reports",
    "pretrain": "pretraining on datasets of the hub, loss curves",
    "generate": "BLEU and ROUGE for translation and summarisation",
    "serve": "the HTTP server and its web page",
    "explain": "attribution and attention figures",
    "onnx": "export to ONNX and prediction with ONNX Runtime",
    "parquet": "reading and writing Parquet",
    "xlsx": "reading Excel files",
    "zh": "Chinese word boundaries",
    "dedup": "near duplicates in a corpus",
    "ray": "prediction and corpora on a cluster",
    "bench": "benchmarks against other libraries",
}
"""Extras for users, most useful first, and what each adds. Those for developers (dev, docs, clients) are not listed."""


def install(extra: str) -> str:
    """Return the command that installs an extra: ``pip install 'debertakit[serve]'``, or with a checkout's folder.

    An environment without pip was made by uv.
    """
    pip = "pip" if find_spec("pip") else "uv pip"
    folder, editable = checkout()
    if not folder:
        return f"{pip} install 'debertakit[{extra}]'"
    return f"{pip} install {'--editable ' if editable else ''}'{folder}[{extra}]'"


@cache
def checkout() -> tuple[str, bool]:
    """Return the folder that debertakit was installed from, and whether that was --editable. ("", False): an index."""
    try:
        recorded = metadata.distribution("debertakit").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "", False
    source = json.loads(recorded) if recorded else {}
    if "dir_info" not in source:
        return "", False
    return unquote(urlparse(source["url"]).path), bool(source["dir_info"].get("editable"))


def missing(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed, in the order of pyproject.toml."""
    try:
        requirements = metadata.requires("debertakit") or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate() and requirement.marker.evaluate({"extra": extra}):
            try:
                metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                found.append(requirement.name)
    return found
