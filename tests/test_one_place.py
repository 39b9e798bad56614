"""Some things may be written down in one place only. ``ALLOWED`` says where; it should shrink, not grow."""

import re
from pathlib import Path

import pytest

import debertakit

ROOT = Path(debertakit.__file__).parent
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}

RULES = {
    "label that the loss ignores": r"^(?!\s*#)[^#\"\n]*[^\w.]-100\b",
    "atomic write": r"\"[\w.]*\.(part|partial|tmp)\"|os\.fsync",
    "hash": r"^import hashlib",
    "Chinese characters": r"\\u3400|\\u4e00|\\u9fff",
}
ALLOWED = {
    "label that the loss ignores": {"model.py", "bench/suites.py"},
    "atomic write": {
        "files.py",
        "checkpoints.py",
        "cli/using.py",
        "finetuning/command.py",
        "finetuning/seq2seq.py",
        "finetuning/train.py",
        "inference/files.py",
        "inference/ray.py",
        "pretraining/command.py",
        "pretraining/loop.py",
        "pretraining/report.py",
        "pretraining/state.py",
    },
    "hash": {
        "files.py",
        "text/corpus.py",  # of texts, not of files
        "pretraining/state.py",
    },
    "Chinese characters": {
        "text/characters.py",
        "tasks/metrics.py",  # the range of CMRC's official script
        "inference/tasks.py",
    },
}


@pytest.mark.parametrize("name", RULES)
def test_it_is_defined_in_one_place(name):
    found = {file for file, text in SOURCES.items() if re.search(RULES[name], text, re.MULTILINE)}
    assert found <= ALLOWED[name], f"{name}: use the definition that exists"
