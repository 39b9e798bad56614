"""A prepared corpus on disk, with its training and validation parts.

    corpus/manifest.json            inputs, tokenizer, options, counts, and the shards with sizes and checksums
    corpus/shard-00000/tokens.npy   uint16 or uint32 [tokens]: all documents concatenated, no special tokens
                       words.npy    one bit per token: whether it begins a word
                       inside.npy   one bit per token: whether it continues the previous token's entity (optional)
                       offsets.npy  int64 [documents + 1]: start of each document
                       hashes.npy   uint64 [documents]: content hash; pieces of one long document share one hash

Shards store the documents in corpus order. Training and validation are lists of documents over the same shards,
selected by content hash. This needs no shuffle, does not depend on the order of the files, and puts copies of a
document in the same part. Arrays are memory-mapped; about 20 bytes per document stay in memory.
"""

import hashlib
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = 1
OPEN_SHARDS = 200  # each uses up to three file descriptors; the usual limit is 1024
MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder}: no prepared corpus here (no {MANIFEST})") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: unreadable ({error}); delete the folder and prepare the corpus again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{path}: not a corpus of format {FORMAT}; delete the folder and prepare it again")
    return manifest


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    aside = folder / (MANIFEST + ".partial")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / MANIFEST)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Allow one writer per folder. A second writer waits, then finds the work done. The lock ends with its process."""
    with (folder / ".lock").open("w") as file:
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_shard(folder: Path, number: int, arrays: dict[str, NDArray]) -> dict[str, Any]:
    """Write a temporary folder and rename it, so a shard is complete or absent. Returns its manifest entry."""
    name = f"shard-{number:05d}"
    aside = folder / (name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(folder / name, ignore_errors=True)  # left by a run that stopped before the manifest listed it
    aside.mkdir()
    files = {}
    for key, array in arrays.items():
        path = aside / f"{key}.npy"
        with path.open("wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
        files[path.name] = {"bytes": path.stat().st_size, "blake2b": file_hash(path)}
    aside.rename(folder / name)
    return {"name": name, "documents": len(arrays["hashes"]), "tokens": len(arrays["tokens"]), "files": files}


def shard_damage(folder: Path, shard: dict[str, Any], *, checksums: bool = False) -> str | None:
    """Describe the damage to a shard, or return None. ``checksums`` reads all its files."""
    for name, expected in shard["files"].items():
        path = folder / shard["name"] / name
        if not path.is_file():
            return f"{path}: missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{path}: {path.stat().st_size} bytes, {expected['bytes']} were written"
        if checksums and file_hash(path) != expected["blake2b"]:
            return f"{path}: its content has changed since it was written"
    return None


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _blake).hexdigest() if hasattr(hashlib, "file_digest") else _hash_blocks(file)


def _blake() -> Any:
    return hashlib.blake2b(digest_size=16)


def _hash_blocks(file: Any) -> str:  # Python 3.10
    digest = _blake()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus. Open it with ``Corpus.open(folder)``."""

    folder: Path
    manifest: dict[str, Any]
    train: "Shards"
    validation: "Shards"

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Open a corpus and check the size of every file. ``verify`` also checks the contents."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if not manifest["complete"]:
            raise ValueError(f"{folder}: its preparation was interrupted; run it again and it will go on")
        for shard in manifest["shards"]:
            if damage := shard_damage(folder, shard):
                raise ValueError(f"{damage}; prepare the corpus again to rebuild this shard")
        hashes = [_load(folder / shard["name"] / "hashes.npy") for shard in manifest["shards"]]
        held_out = _held_out(np.concatenate(hashes), manifest["validation"])
        files = _Files(folder, manifest)
        return cls(folder, manifest, Shards(files, np.flatnonzero(~held_out)), Shards(files, np.flatnonzero(held_out)))

    def verify(self) -> None:
        """Read every file and compare checksums."""
        for shard in self.manifest["shards"]:
            if damage := shard_damage(self.folder, shard, checksums=True):
                raise ValueError(f"{damage}; prepare the corpus again to rebuild this shard")


class Shards:
    """A subset of the documents of a corpus, in order: ``len()``, ``document(i)``, and ``take`` for packing."""

    def __init__(self, files: "_Files", documents: NDArray[np.int64]):
        self._files = files
        self._address = files.offsets[:-1][documents]  # start of each document in the concatenated shards
        lengths = (files.offsets[1:] - files.offsets[:-1])[documents]
        self.ends: NDArray[np.int64] = np.concatenate([[0], np.cumsum(lengths)])
        """int64 [documents + 1]: document i is tokens ends[i] to ends[i + 1] of this subset."""

    def __len__(self) -> int:
        return len(self._address)

    @property
    def tokens(self) -> int:
        return int(self.ends[-1])

    @property
    def vocabulary(self) -> dict[str, Any]:
        """size; the ids cls, sep, mask and unk; special: the list of all special ids."""
        return self._files.manifest["vocabulary"]

    def document(self, index: int) -> tuple[NDArray, NDArray[np.bool_]]:
        """Return token ids and word starts."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        ids, words, _ = self.take(self.ends[index : index + 1], self.ends[index + 1 : index + 2])
        return ids, words

    def take(self, starts: NDArray, stops: NDArray) -> tuple[NDArray, NDArray[np.bool_], NDArray[np.bool_] | None]:
        """Return ids, word starts and entity continuations of the ranges [starts, stops), concatenated."""
        # a range may cross documents: split it into runs within one document
        first = np.searchsorted(self.ends, starts, side="right") - 1
        last = np.searchsorted(self.ends, stops, side="left")
        counts = np.maximum(last - first, 0)  # a document may be empty
        document = np.repeat(first, counts) + _count_up(counts)
        begin = np.maximum(np.repeat(starts, counts), self.ends[document])
        length = np.minimum(np.repeat(stops, counts), self.ends[document + 1]) - begin
        address = np.repeat(self._address[document] + begin - self.ends[document], length) + _count_up(length)
        ids, words, inside = self._files.read(address)
        opens = np.zeros(len(ids), bool)
        opens[(np.cumsum(length) - length)[length > 0]] = True  # the first token of a run always begins a word
        return ids, words | opens, None if inside is None else inside & ~opens


class _Files:
    """Read the shards of a corpus as one long array, with a limited number of shards open at a time."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder, self.manifest = folder, manifest
        self.names = [shard["name"] for shard in manifest["shards"]]
        self.bases = np.concatenate([[0], np.cumsum([shard["tokens"] for shard in manifest["shards"]])])
        parts = [_load(folder / n / "offsets.npy")[:-1] + b for n, b in zip(self.names, self.bases, strict=False)]
        self.offsets: NDArray[np.int64] = np.concatenate([*parts, self.bases[-1:]])
        self._open: OrderedDict[int, tuple] = OrderedDict()

    def read(self, address: NDArray) -> tuple[NDArray, NDArray[np.bool_], NDArray[np.bool_] | None]:
        ids = np.empty(len(address), np.int64)
        words = np.empty(len(address), bool)
        # in Chinese without an entity detector, each word found by jieba is an entity
        marked = self.manifest["options"]["entities"] is not None
        inside = np.zeros(len(address), bool) if marked or self.manifest["language"] == "zh" else None
        shard_of = np.searchsorted(self.bases, address, side="right") - 1
        for shard in np.unique(shard_of):
            rows = (
                slice(None) if shard_of[0] == shard_of[-1] == shard and (shard_of == shard).all() else shard_of == shard
            )
            at = address[rows] - self.bases[shard]
            tokens, word_bits, inside_bits = self._shard(int(shard))
            ids[rows] = tokens[at]
            words[rows] = word_bits[at >> 3] >> (7 - (at & 7)) & 1
            if marked and inside is not None:
                inside[rows] = inside_bits[at >> 3] >> (7 - (at & 7)) & 1
        return ids, words, inside

    def _shard(self, index: int) -> tuple:
        if index not in self._open:
            folder = self.folder / self.names[index]
            names = ["tokens", "words", *(["inside"] if self.manifest["options"]["entities"] is not None else [])]
            arrays = [_load(folder / f"{name}.npy", mapped=True) for name in names]
            self._open[index] = (*arrays, None)[:3]
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
        self._open.move_to_end(index)
        return self._open[index]


def _held_out(hashes: NDArray[np.uint64], validation: float) -> NDArray[np.bool_]:
    """Select a share or a number of distinct documents, by smallest content hash. Returns bool [documents]."""
    distinct = np.unique(hashes)
    if not validation:
        return np.zeros(len(hashes), bool)
    count = max(1, round(validation * len(distinct))) if isinstance(validation, float) else validation
    if count >= len(distinct):
        raise ValueError(
            f"cannot hold out {count} of {len(distinct)} different documents for validation: documents are separated "
            "by blank lines in .txt (or txt_document='line' / 'file'); validation=0 holds out none"
        )
    return hashes <= distinct[count - 1]


def _load(path: Path, mapped: bool = False) -> NDArray:
    try:
        return np.load(path, mmap_mode="r" if mapped else None)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: unreadable shard ({error}); prepare the corpus again to rebuild it") from error


def _count_up(lengths: NDArray) -> NDArray[np.int64]:
    """[2, 3] -> [0, 1, 0, 1, 2]."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
