"""Small files in the layouts that users have."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def lines(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(row + "\n" for row in rows).encode())
    return path


def tsv(path: Path, *rows: Sequence[Any]) -> Path:
    return lines(path, *("\t".join(map(str, row)) for row in rows))


def jsonl(path: Path, rows: Iterable[Any]) -> Path:
    return lines(path, *(json.dumps(row, ensure_ascii=False) for row in rows))
