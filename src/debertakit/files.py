"""Files and folders that are complete or absent: write under a temporary name, flush to disk, rename."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

TEMPORARY = ".part"
"""Suffix of what is being written. A file or folder with this suffix is never read."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``. At the end of the block, flush what was written there and rename it.

    If the block raises, ``path`` stays as it was.
    """
    temporary = temporary_path(path)
    remove(temporary)
    yield temporary
    for file in temporary.rglob("*") if temporary.is_dir() else (temporary,):
        flush(file)
    if temporary.is_dir():
        flush(temporary)
        remove(path)  # a folder cannot replace one that has files in it
    temporary.replace(path)
    flush(path.parent)


def temporary_path(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file or a folder is on disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_hash(path: Path, algorithm: Literal["sha256", "blake2b"]) -> str:
    """Hash a file's content: sha256 in checkpoints, blake2b of 16 bytes in corpora."""
    digest = hashlib.sha256() if algorithm == "sha256" else hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
