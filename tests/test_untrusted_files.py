"""No file of a user can execute code: no pickle is loaded from files, and no remote code is trusted."""

import ast
import os
from pathlib import Path

import pytest
import torch

import debertakit
from debertakit.checkpoints import read_state

ROOT = Path(debertakit.__file__).parent
CALLS = [
    (path.relative_to(ROOT).as_posix(), node)
    for path in ROOT.rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.Call)
]
PIPES = {"text/encoding.py"}  # exchanges pickles with worker processes that it started itself


def keywords(call: ast.Call) -> dict:
    return {k.arg: k.value.value if isinstance(k.value, ast.Constant) else k.value for k in call.keywords}


def test_torch_load_reads_weights_only():
    calls = [(file, node) for file, node in CALLS if ast.unparse(node.func) == "torch.load"]
    assert calls
    assert not [file for file, node in calls if keywords(node).get("weights_only") is not True]


def test_no_other_pickles_are_loaded():
    loaders = ("load", "loads", "Unpickler", "read_pickle")
    modules = ("pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "pandas", "pd")
    names = {f"{module}.{loader}" for module in modules for loader in loaders}
    assert {file for file, node in CALLS if ast.unparse(node.func) in names} <= PIPES
    assert not [file for file, node in CALLS if keywords(node).get("allow_pickle", False) is not False]


def test_remote_code_is_never_trusted():
    assert not [file for file, node in CALLS if keywords(node).get("trust_remote_code", False) is not False]


class Hostile:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def test_a_hostile_checkpoint_is_not_executed(tmp_path):
    torch.save({"weight": Hostile(tmp_path / "executed")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model"):
        read_state(tmp_path / "pytorch_model.bin")
    assert not (tmp_path / "executed").exists()
