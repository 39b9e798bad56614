"""manifest.json of a prepared corpus: what the corpus was made from, and which shards are complete.

The file also stores its own checksum. Manifests of version 1 have none and are accepted without the check.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from debertakit.files import bytes_hash, write_json

FORMAT = 1
MANIFEST = "manifest.json"
CHECKSUM = "blake2b"


class HubInput(TypedDict):
    name: str


class InputFile(HubInput, total=False):
    """A dataset of the hub has only its name."""

    bytes: int
    mtime_ns: int
    blake2b: str


class OptionsOfVersion1(TypedDict):
    language: str
    text_field: str
    txt_document: str
    entities: str | None
    """Hash of the gazetteer, ``spacy:MODEL``, or the name of a function."""
    max_shard_tokens: int


class Options(OptionsOfVersion1, total=False):
    duplicates: str
    """``exact``, or the similarity from which documents are near duplicates. Absent: every document is kept."""


class Vocabulary(TypedDict):
    size: int
    cls: int
    sep: int
    mask: int
    unk: int
    """An id is None if the tokenizer lacks that token."""
    special: list[int]
    """All special ids, including those four."""


class ArrayFile(TypedDict):
    bytes: int
    blake2b: str


class Shard(TypedDict):
    name: str
    documents: int
    tokens: int
    files: dict[str, ArrayFile]
    counts: dict[str, int]
    """Documents, pieces etc. read up to the end of this shard."""


class PreparedSource(TypedDict):
    name: str
    pieces: int
    """Number of pieces up to the end of this source, including all sources before it."""


class Version1(TypedDict):
    format: int
    complete: bool
    inputs: list[InputFile]
    tokenizer: str
    """Hash of the tokenizer."""
    options: Options
    language: str | None
    """``en`` or ``zh``; None until the first text has been read."""
    vocabulary: Vocabulary
    counts: dict[str, int]
    shards: list[Shard]
    validation: float
    """Share or number of held-out documents."""


class Manifest(Version1, total=False):
    """Corpora of version 1 lack these."""

    tokenizers: str
    """Version of the tokenizers library that made the tokens."""
    sources: list[PreparedSource]
    """In corpus order. Absent until all of them have been read."""


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a prepared corpus: it has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: unreadable ({error}); delete the folder and prepare the corpus again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{path}: not a corpus of format {FORMAT}; delete the folder and prepare the corpus again")
    written = manifest.pop(CHECKSUM, None)
    if written is not None and written != _checksum(manifest):
        raise ValueError(f"{path}: its content has changed; delete the folder and prepare the corpus again")
    return manifest  # type: ignore[return-value]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / MANIFEST, {**manifest, CHECKSUM: _checksum(manifest)})


def _checksum(manifest: Mapping[str, object]) -> str:
    return bytes_hash([json.dumps(manifest, sort_keys=True).encode()])
