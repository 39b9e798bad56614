"""Files and folders that are complete or absent: write under a temporary name, flush to disk, rename."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
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
    with naming(temporary):
        yield temporary
        flush_all(temporary)
    if temporary.is_dir() and path.is_dir():
        # A folder cannot replace one that has files in it. The old folder is deleted only after the new one is there.
        old = temporary_path(path.with_name(path.name + ".old"))
        remove(old)
        path.rename(old)
        temporary.rename(path)
        flush(path.parent)
        remove(old)
    else:
        temporary.replace(path)
        flush(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add ``path`` to an OSError without a file name: read() and write() raise such errors (disk full, I/O error)."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder. Raise if another process holds it. No lock on Windows and on file systems without locks.

    The lock ends with the process, however the process ends.
    """
    busy = f"another command is writing {folder}; wait until it ends, or choose another output"
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        except OSError:
            pass
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise ValueError(busy)  # the other command has just removed the folder
        yield
    finally:
        os.close(descriptor)


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


def flush_all(path: Path) -> None:
    """Wait until a file, or a folder with everything in it, is on disk."""
    for inside in path.rglob("*") if path.is_dir() else ():
        flush(inside)
    flush(path)


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
    with naming(path), path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def bytes_hash(parts: Iterable[bytes | memoryview]) -> str:
    """Hash bytes in memory (anything with the buffer interface): blake2b of 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def require_new(path: Path) -> None:
    """Raise if ``path`` is a file, or a folder that is not empty.

    Commands call this before their work starts: no command replaces what exists.
    """
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} already exists; choose another name or remove it")
