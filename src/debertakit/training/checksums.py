"""Checksums of a checkpoint folder, shared by pretraining and fine-tuning: a folder that does not match is not loaded.

manifest.json lists bytes and sha256 of every other file. It is written last, so an incomplete folder has none.
"""

import json
from pathlib import Path

from safetensors import SafetensorError

from debertakit.files import file_hash, write_json

CHECKSUMS = "manifest.json"
WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)
"""Errors of Python, torch.save and safetensors if they cannot write, for example on a full disk."""


def write_checksums(folder: Path) -> None:
    """Record the size and checksum of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / CHECKSUMS)
    entries = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_hash(path, "sha256")}
        for path in files
    }
    write_json(folder / CHECKSUMS, entries)


def damage(folder: Path, *, checksums: bool = True) -> str | None:
    """Describe what is wrong with a checkpoint, or return None. ``checksums`` reads all its files."""
    try:
        files = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        if not files:
            return f"{CHECKSUMS} lists no files"
        for name, expected in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"]:
                return f"{name} has {path.stat().st_size} bytes, {expected['bytes']} were written"
            if checksums and file_hash(path, "sha256") != expected["sha256"]:
                return f"the content of {name} has changed"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"unreadable {CHECKSUMS}: {error}"
    return None
