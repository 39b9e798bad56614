"""Damage to files, and a disk of limited size."""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Damaged:
    path: Path
    backup: Path
    what: str

    def repair(self) -> None:
        """Put the original file back, if its folder still exists."""
        _clear(self.path)
        if self.path.parent.is_dir():
            shutil.copy2(self.backup, self.path)


def damage(path: Path, kind: str, draw: random.Random, backups: Path) -> Damaged:
    """Damage a file. Size and modification time stay as they were where the kind allows it, as with a failing disk."""
    backups.mkdir(parents=True, exist_ok=True)
    backup = backups / f"{len(list(backups.iterdir()))}-{path.name}"
    shutil.copy2(path, backup)
    before = path.stat()
    if kind == "flipped bit":
        content = bytearray(path.read_bytes())
        bit = draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        what = f"bit {bit} of {path.name} flipped"
    elif kind == "truncation":
        size = draw.randrange(before.st_size)
        os.truncate(path, size)
        what = f"{path.name} cut from {before.st_size} to {size} bytes"
    else:
        assert kind == "read error"
        path.unlink()
        if draw.random() < 0.5:
            path.symlink_to("/proc/self/mem")  # opens, but read() fails with EIO
            what = f"{path.name} gives EIO"
        else:
            path.mkdir()
            what = f"{path.name} is a directory"
        return Damaged(path, backup, what)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return Damaged(path, backup, what)


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------------- a small disk


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a tmpfs of ``size`` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def enlarge(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=256m", folder], check=True)
