"""Prepare a corpus: clean raw text, tokenise it on all cores, write memory-mapped shards.

    corpus = prepare("wiki.txt.xz", tokenizer, "corpus/")
    ids, word_starts = corpus.train.document(0)

Memory use is bounded by one shard. A complete shard is listed in the manifest, with the number of pieces read up to
its end. After an interruption, the next run skips these pieces (without tokenising) and continues. A finished corpus
is reused if inputs, tokenizer and options are the same. Inputs are compared by a hash of their full content. A file
with the same size and modification time as in the last run is not read again (as in git and rsync), so the check is
instant for unchanged files and takes one pass at disk speed for copied files. A hub dataset is identified only by its
name and ``@revision``. The shards of an existing corpus are verified with their checksums; a damaged shard, and those
after it, are built again.
"""

import hashlib
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from debertakit.files import TEMPORARY, file_hash, remove
from debertakit.protocols import Tokenizer
from debertakit.text import boundaries
from debertakit.text.characters import looks_chinese
from debertakit.text.documents import DocumentReader, ReadingCounts, TxtDocument, open_documents
from debertakit.text.duplicates import Duplicates
from debertakit.text.encoding import EncoderOptions, MarkedTokens, encode_all
from debertakit.text.manifest import FORMAT, MANIFEST, InputFile, Manifest, Options, read_manifest, write_manifest
from debertakit.text.progress import ProgressBar, working
from debertakit.text.shards import ARRAY_FILES, Corpus, locked, shard_damage, write_shard

__all__ = ["Corpus", "prepare"]

BATCH_CHARACTERS = 1 << 20  # per tokenizer call: enough to keep its threads busy
SHARD_NAME = re.compile(rf"shard-\d{{5,}}(\.old)?({re.escape(TEMPORARY)}|\.partial)?")  # .partial: of version 1


def prepare(
    corpus: str | Path | Sequence[str | Path],
    tokenizer: Tokenizer,
    out_dir: str | Path,
    *,
    validation: float = 0.05,
    language: Literal["auto", "en", "zh"] = "auto",
    text_field: str = "text",
    txt_document: TxtDocument = "blank-line",
    entities: boundaries.EntitySource | None = None,
    max_shard_tokens: int = 1 << 25,
    drop_duplicates: Literal["exact"] | float | None = None,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    overwrite: bool = False,
) -> Corpus:
    """Tokenise a corpus into ``out_dir``. Resume an interrupted run; reuse a finished corpus.

    corpus: a .txt, .jsonl or .parquet file (the first two also .gz, .xz, .zst), a folder of them, or
        ``hf:name[:config[:split]][@revision]``; or a list of these sources, for a weighted mixture.
    validation: a share (0.05) or a number of documents (500) to hold out.
    language: ``zh`` finds words with jieba; ``auto`` does so if the text is Chinese and jieba is installed.
    txt_document: how a .txt file is split into documents.
    entities: a gazetteer file, ``spacy:MODEL`` or a function text -> [(start, end)], for entity masking.
    drop_duplicates: leave out documents that occurred before: ``exact`` copies, or with a number such as 0.8 also near
        copies (the Jaccard similarity of their word 5-grams, see duplicates.py).
    workers: number of processes for jieba and entities (default: one per core; a function runs in this process).
        Plain tokenisation uses the tokenizer's own threads (RAYON_NUM_THREADS).
    engine: ``ray`` tokenises on a Ray cluster; the shards are the same, byte by byte.
    overwrite: replace a corpus in ``out_dir`` that was made from other inputs or with other options.
    """
    _check_options(tokenizer, validation, language, max_shard_tokens)
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    duplicates = (
        None if drop_duplicates is None else Duplicates(None if drop_duplicates == "exact" else drop_duplicates)
    )
    reader = open_documents(corpus, text_field=text_field, txt_document=txt_document, duplicates=duplicates)
    with locked(folder):
        options = _options(reader, language, entities, max_shard_tokens, drop_duplicates)
        manifest = _plan(folder, reader, tokenizer, options, overwrite)
        manifest["validation"] = validation
        if not manifest["complete"]:
            _tokenise(folder, manifest, reader, tokenizer, entities, workers, engine)
        write_manifest(folder, manifest)
    return Corpus.open(folder)


def _check_options(tokenizer: Tokenizer, validation: float, language: str, max_shard_tokens: int) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} is not a fast tokenizer; load it with debertakit's load_tokenizer"
        )
    if validation < 0 or (isinstance(validation, float) and validation >= 1):
        raise ValueError(f"validation={validation} must be a share below 1 (0.05) or a number of documents (500)")
    if language not in ("auto", "en", "zh"):
        raise ValueError(f"language must be auto, en or zh, not {language!r}")
    if language == "zh":
        boundaries.need_jieba()
    if max_shard_tokens < 1:
        raise ValueError(f"max_shard_tokens must be at least 1, not {max_shard_tokens}")


# ----------------------------------------------------------------------------------------------------- planning


def _options(
    reader: DocumentReader,
    language: str,
    entities: boundaries.EntitySource | None,
    max_shard_tokens: int,
    drop_duplicates: Literal["exact"] | float | None,
) -> Options:
    """Everything apart from inputs and tokenizer that the shards depend on."""
    named = None if entities is None else getattr(entities, "__qualname__", str(entities))
    if isinstance(entities, (str, Path)):
        boundaries.entity_detector(entities)  # fail now, not in a worker
        named = named if str(entities).startswith("spacy:") else file_hash(Path(entities), "blake2b")
    options: Options = {
        "language": language,
        "text_field": reader.text_field,
        "txt_document": reader.txt_document,
        "entities": named,
        "max_shard_tokens": max_shard_tokens,
    }
    if drop_duplicates is not None:
        options["duplicates"] = str(drop_duplicates)
    return options


def _plan(folder: Path, reader: DocumentReader, tokenizer: Tokenizer, options: Options, overwrite: bool) -> Manifest:
    """Return the manifest to continue from: the existing one if inputs and options are the same, else a new one."""
    old = None
    if (folder / MANIFEST).exists():
        try:
            old = read_manifest(folder)
        except ValueError:
            if not overwrite:
                raise
    manifest: Manifest = {
        "format": FORMAT,
        "complete": False,
        "inputs": _fingerprints(reader, old),
        "tokenizer": tokenizer_hash(tokenizer),
        "tokenizers": tokenizers.__version__,
        "options": options,
        "language": None,
        "vocabulary": {
            "size": len(tokenizer),
            "cls": tokenizer.cls_token_id,
            "sep": tokenizer.sep_token_id,
            "mask": tokenizer.mask_token_id,
            "unk": tokenizer.unk_token_id,
            "special": sorted(set(tokenizer.all_special_ids)),
        },
        "counts": asdict(ReadingCounts()),
        "shards": [],
        "validation": 0.0,
    }
    compared: tuple[Literal["tokenizer", "options", "vocabulary"], ...] = ("tokenizer", "options", "vocabulary")
    changed: list[str] = [key for key in compared if old and old[key] != manifest[key]]
    if old and _contents(old) != _contents(manifest):
        changed.insert(0, "inputs")
    if old is None or not old["shards"] or (changed and overwrite):
        strays = _strays(folder, [])
        write_manifest(folder, manifest)
        for path in strays:
            remove(path)
        return manifest
    if changed:
        raise ValueError(
            f"{folder} contains a corpus made from other {' and '.join(changed)}; choose another folder, delete this "
            "one, or pass overwrite=True"
        )
    old["inputs"] = manifest["inputs"]  # with the current modification times
    for number, shard in enumerate(old["shards"]):
        if damage := shard_damage(folder, shard, checksums=True):
            print(f"{damage}; rebuilding from here", file=sys.stderr)
            del old["shards"][number:]
            old["complete"] = False
            break
    strays = _strays(folder, [shard["name"] for shard in old["shards"]])
    if not old["complete"]:
        write_manifest(folder, old)
    for path in strays:
        remove(path)
    return old


def _strays(folder: Path, listed: Sequence[str]) -> list[Path]:
    """Shards that no manifest lists: an interrupted run left them, or they are about to be rebuilt.

    Raise if a folder has the name of a shard but is not ours: it would be deleted.
    """
    ours = (folder / MANIFEST).exists()  # it is written before the first shard
    found = [path for path in folder.glob("shard-*") if SHARD_NAME.fullmatch(path.name) and path.name not in listed]
    for path in found:
        files = {file.name for file in path.rglob("*")} if path.is_dir() else {""}
        if not ours or not files <= ARRAY_FILES:
            raise ValueError(f"{path} is not part of a corpus that was prepared here; choose another folder")
    return found


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    return hashlib.blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16).hexdigest()


def document_hash(first_piece: str) -> int:
    """Hash of a document's first piece. It decides whether the document is held out (shards.py)."""
    return int.from_bytes(hashlib.blake2b(first_piece.encode(), digest_size=8).digest(), "little")


def _contents(manifest: Manifest) -> list[tuple[str, str | None]]:
    return [(entry["name"], entry.get("blake2b")) for entry in manifest["inputs"]]


def _fingerprints(reader: DocumentReader, old: Manifest | None) -> list[InputFile]:
    before = old["inputs"] if old else []
    known = {(e["name"], e["bytes"], e["mtime_ns"]): e["blake2b"] for e in before if "blake2b" in e}
    entries: list[InputFile] = []
    for number, source in enumerate(reader.sources, 1):
        prefix = f"{number}/" if len(reader.sources) > 1 else ""  # two sources may have files of the same name
        if source.hub:
            entries.append({"name": f"{prefix}hf:{source.hub}"})
        for path in source.files:
            status = path.stat()
            key = (prefix + source.name(path), status.st_size, status.st_mtime_ns)
            with working(f"reading {path}"):
                content = known.get(key) or file_hash(path, "blake2b")
            entries.append({"name": key[0], "bytes": key[1], "mtime_ns": key[2], "blake2b": content})
    return entries


# ----------------------------------------------------------------------------------------------------- tokenising


class _Batch(NamedTuple):
    texts: list[str]
    hashes: list[int]
    counts: ReadingCounts  # cumulative, up to the end of this batch
    bytes_read: int


def _tokenise(
    folder: Path,
    manifest: Manifest,
    reader: DocumentReader,
    tokenizer: Tokenizer,
    entities: boundaries.EntitySource | None,
    workers: int | None,
    engine: Literal["local", "ray"],
) -> None:
    options, shards = manifest["options"], manifest["shards"]
    done = shards[-1]["counts"]["pieces"] if shards else 0
    batches = _batches(reader, min(BATCH_CHARACTERS, options["max_shard_tokens"]), done)
    first = list(itertools.islice(batches, 1))
    if not first and not shards:
        raise ValueError(f"the corpus {reader} is empty: no text in it")
    language = manifest["language"] = manifest["language"] or _language(options["language"], first[0].texts)
    vocabulary = manifest["vocabulary"]
    dtype = np.dtype(np.uint16 if vocabulary["size"] <= 1 << 16 else np.uint32)
    specials = [i for i in vocabulary["special"] if i != vocabulary["unk"]]
    encoder = EncoderOptions(tokenizer.backend_tokenizer.to_str(), specials, dtype, language, entities)
    writer = _ShardWriter(folder, manifest)
    before = reader.bytes_read if shards else 0
    with ProgressBar("tokenising", "tokens", reader.bytes_total, before, writer.tokens) as progress:
        for batch, tokens in encode_all(
            itertools.chain(first, batches), lambda batch: batch.texts, workers, encoder, engine
        ):
            writer.add(batch, tokens)
            progress.show(writer.tokens, batch.bytes_read)
        writer.flush()
    if not writer.tokens:
        raise ValueError(f"the corpus {reader} gave no tokens")
    for source, before, end in zip(reader.sources, [0, *reader.ends], reader.ends, strict=False):
        if before == end:
            raise ValueError(f"{source} has no text{' that is not a duplicate' if reader.duplicates else ''}")
    manifest["counts"] = asdict(reader.counts)
    names = zip(reader.sources, reader.ends, strict=True)
    manifest["sources"] = [{"name": str(source), "pieces": end} for source, end in names]
    manifest["complete"] = True


def _batches(reader: DocumentReader, size: int, skip: int) -> Iterator[_Batch]:
    """Yield batches of about ``size`` characters, skipping the first ``skip`` pieces."""
    texts: list[str] = []
    hashes: list[int] = []
    characters = content = 0
    for number, (begins, text) in enumerate(reader.pieces()):
        if begins:
            content = document_hash(text)
        if number < skip:
            continue
        texts.append(text)
        hashes.append(content)
        characters += len(text)
        if characters >= size:
            yield _Batch(texts, hashes, replace(reader.counts), reader.bytes_read)
            texts, hashes, characters = [], [], 0
    if texts:
        yield _Batch(texts, hashes, replace(reader.counts), reader.bytes_read)


def _language(requested: str, texts: list[str]) -> str:
    if requested != "auto":
        return requested
    if not looks_chinese("".join(texts)[:BATCH_CHARACTERS]):
        return "en"
    try:
        boundaries.need_jieba()
    except ValueError as error:
        print(f"{error} (without it, each character counts as a word)", file=sys.stderr)
        return "en"
    return "zh"


class _ShardWriter:
    """Collect batches; write a shard and update the manifest before the shard would exceed its limit."""

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder, self.manifest = folder, manifest
        self.held: list[tuple[_Batch, MarkedTokens]] = []
        self.held_tokens = 0
        self.tokens = sum(shard["tokens"] for shard in manifest["shards"])

    def add(self, batch: _Batch, encoded: MarkedTokens) -> None:
        if self.held and self.held_tokens + len(encoded.tokens) > self.manifest["options"]["max_shard_tokens"]:
            self.flush()
        self.held.append((batch, encoded))
        self.held_tokens += len(encoded.tokens)
        self.tokens += len(encoded.tokens)

    def flush(self) -> None:
        if not self.held:
            return
        parts = [encoded for _, encoded in self.held]
        arrays: dict[str, NDArray] = {
            "tokens": np.concatenate([part.tokens for part in parts]),
            "words": np.packbits(np.concatenate([part.words for part in parts])),
            "offsets": np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in parts]))]),
            "hashes": np.array([content for batch, _ in self.held for content in batch.hashes], np.uint64),
        }
        if parts[0].inside is not None:
            arrays["inside"] = np.packbits(np.concatenate([part.inside for part in parts if part.inside is not None]))
        shards = self.manifest["shards"]
        shards.append(write_shard(self.folder, len(shards), arrays, asdict(self.held[-1][0].counts)))
        write_manifest(self.folder, self.manifest)
        self.held, self.held_tokens = [], 0
