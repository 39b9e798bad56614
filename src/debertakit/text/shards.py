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

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from debertakit.files import file_hash, replacing
from debertakit.text.manifest import ArrayFile, Manifest, Shard, Vocabulary, read_manifest

Bits = NDArray[np.uint8]  # eight tokens per byte, the first token in the highest bit
ARRAY_FILES = {f"{name}.npy" for name in ("tokens", "words", "inside", "offsets", "hashes")}
OPEN_SHARDS = 200  # each uses up to three file descriptors; the usual limit is 1024


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


def write_shard(folder: Path, number: int, arrays: dict[str, NDArray], counts: dict[str, int]) -> Shard:
    """Write a shard, complete or not at all. Returns its manifest entry."""
    name = f"shard-{number:05d}"
    files: dict[str, ArrayFile] = {}
    with replacing(folder / name) as temporary:
        temporary.mkdir()
        for key, array in arrays.items():
            path = temporary / f"{key}.npy"
            np.save(path, array)
            files[path.name] = {"bytes": path.stat().st_size, "blake2b": file_hash(path, "blake2b")}
    documents, tokens = len(arrays["hashes"]), len(arrays["tokens"])
    return {"name": name, "documents": documents, "tokens": tokens, "files": files, "counts": counts}


def shard_damage(folder: Path, shard: Shard, *, checksums: bool = False) -> str | None:
    """Describe the damage to a shard, or return None. ``checksums`` reads all its files."""
    for name, expected in shard["files"].items():
        path = folder / shard["name"] / name
        if not path.is_file():
            return f"{path}: missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{path}: {path.stat().st_size} bytes, {expected['bytes']} were written"
        if checksums and file_hash(path, "blake2b") != expected["blake2b"]:
            return f"{path}: its content has changed since it was written"
    return None


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus. Open it with ``Corpus.open(folder)``."""

    folder: Path
    manifest: Manifest
    train: "Shards"
    validation: "Shards"

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Open a corpus and check the size of every file. ``verify`` also checks the contents."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if not manifest["complete"]:
            raise ValueError(f"{folder}: its preparation was interrupted; prepare the corpus again to resume")
        for shard in manifest["shards"]:
            if damage := shard_damage(folder, shard):
                raise ValueError(f"{damage}; prepare the corpus again to rebuild this shard")
        held_out = _held_out(_hashes(folder, manifest), manifest["validation"])
        files = _Files(folder, manifest)
        ends = [source["pieces"] for source in manifest.get("sources", [])][:-1]  # version 1: one source
        train, validation = (Shards(files, np.flatnonzero(half), ends) for half in (~held_out, held_out))
        return cls(folder, manifest, train, validation)

    def held_out_hashes(self) -> set[int]:
        """Hashes of the documents that are held out (corpus.document_hash): the same for every tokenizer."""
        hashes = _hashes(self.folder, self.manifest)
        return set(hashes[_held_out(hashes, self.manifest["validation"])].tolist())

    def verify(self) -> None:
        """Read every file and compare checksums."""
        for shard in self.manifest["shards"]:
            if damage := shard_damage(self.folder, shard, checksums=True):
                raise ValueError(f"{damage}; prepare the corpus again to rebuild this shard")


class Shards:
    """A subset of the documents of a corpus, in order: ``len()``, ``document(i)``, and ``take`` for packing."""

    def __init__(self, files: "_Files", documents: NDArray[np.int64], source_ends: Sequence[int] = ()):
        self._files = files
        self.source_count = len(source_ends) + 1
        self.sources: NDArray[np.int64] = np.searchsorted(np.array(source_ends, np.int64), documents, side="right")
        """int64 [documents]: number of the source of each document."""
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
    def vocabulary(self) -> Vocabulary:
        return self._files.manifest["vocabulary"]

    def token_counts(self) -> NDArray[np.int64]:
        """Count each token of the vocabulary in these documents. [vocabulary]"""
        counts = np.zeros(self.vocabulary["size"], np.int64)
        for start in range(0, self.tokens, 1 << 22):  # 4 M tokens at a time: memory stays bounded
            stop = min(start + (1 << 22), self.tokens)
            counts += np.bincount(self.take(np.array([start]), np.array([stop]))[0], minlength=len(counts))
        return counts

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

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder, self.manifest = folder, manifest
        self.names = [shard["name"] for shard in manifest["shards"]]
        self.bases = np.concatenate([[0], np.cumsum([shard["tokens"] for shard in manifest["shards"]])])
        parts = [_load(folder / n / "offsets.npy")[:-1] + b for n, b in zip(self.names, self.bases, strict=False)]
        self.offsets: NDArray[np.int64] = np.concatenate([*parts, self.bases[-1:]])
        self._open: OrderedDict[int, tuple[NDArray, Bits, Bits | None]] = OrderedDict()

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
            if inside is not None:
                inside[rows] = ~words[rows] if inside_bits is None else inside_bits[at >> 3] >> (7 - (at & 7)) & 1
        return ids, words, inside

    def _shard(self, index: int) -> tuple[NDArray, Bits, Bits | None]:
        if index not in self._open:
            folder = self.folder / self.names[index]
            tokens, words = (_load(folder / name, mapped=True) for name in ("tokens.npy", "words.npy"))
            marked = self.manifest["options"]["entities"] is not None
            self._open[index] = tokens, words, _load(folder / "inside.npy", mapped=True) if marked else None
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
        self._open.move_to_end(index)
        return self._open[index]


def _hashes(folder: Path, manifest: Manifest) -> NDArray[np.uint64]:
    return np.concatenate([_load(folder / shard["name"] / "hashes.npy") for shard in manifest["shards"]])


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
