"""Statistics of text, or of a prepared corpus: documents, lengths, duplicates, scripts (``deberta corpus stats``)."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from debertakit.protocols import Tokenizer
from debertakit.text.documents import open_documents
from debertakit.text.duplicates import Duplicates
from debertakit.text.options import ReadingOptions
from debertakit.text.progress import ProgressBar
from debertakit.text.shards import Corpus

Statistics = dict[str, Any]
BATCH_CHARACTERS = 1 << 20


def text_statistics(
    sources: Sequence[str | Path],
    options: ReadingOptions,
    tokenizer: Tokenizer | None = None,
    near: float | None = None,
) -> Statistics:
    """Read text once. Lengths are in characters; with a tokenizer, also in tokens.

    ``near``: also count near duplicates, from this similarity. A duplicate counts in all other statistics too.
    """
    reader = open_documents(sources, text_field=options.text_field, txt_document=options.txt_document)
    exact, similar = Duplicates(), None if near is None else Duplicates(near)
    copies = near_copies = 0
    characters: Counter[str] = Counter()
    lengths: list[int] = []
    tokens: Counter[int] = Counter()  # document -> tokens
    held: list[tuple[int, str]] = []  # (document, piece) to tokenise
    waiting = read = 0

    def count_tokens() -> None:
        assert tokenizer is not None
        rows = tokenizer.backend_tokenizer.encode_batch_fast([piece for _, piece in held], add_special_tokens=False)
        for (document, _), row in zip(held, rows, strict=True):
            tokens[document] += len(row)
        held.clear()

    with ProgressBar("reading", "characters", reader.bytes_total) as progress:
        for begins, piece in reader.pieces():
            if begins:
                lengths.append(0)
                repeated = exact.seen(piece)
                copies += repeated
                near_copies += similar is not None and not repeated and similar.seen(piece)
            lengths[-1] += len(piece)
            characters.update(piece)
            if tokenizer is not None:
                held.append((len(lengths) - 1, piece))
                waiting += len(piece)
                if waiting >= BATCH_CHARACTERS:
                    count_tokens()
                    waiting = 0
            read += len(piece)
            progress.show(read, reader.bytes_read)
    if not lengths:
        raise ValueError(f"{reader} is empty: no text in it")
    if held:
        count_tokens()
    found: Statistics = {
        "documents": len(lengths),
        "empty documents": reader.counts.empty,
        "characters": read,
        "characters per document": spread(lengths),
        "duplicates": copies,
    }
    if near is not None:
        found[f"near duplicates ({near:g})"] = near_copies
    if tokenizer is not None:
        of_documents = [tokens[document] for document in range(len(lengths))]
        found |= {"tokens": tokens.total(), "tokens per document": spread(of_documents)}
        found["characters per token"] = round(read / max(tokens.total(), 1), 2)
    return found | {"scripts": scripts(characters)}


def corpus_statistics(folder: str | Path) -> Statistics:
    """Statistics of a prepared corpus. Its text is not stored, so scripts and near duplicates are unknown."""
    corpus = Corpus.open(folder)
    manifest = corpus.manifest
    hashes = np.concatenate([np.load(corpus.folder / shard["name"] / "hashes.npy") for shard in manifest["shards"]])
    pieces = manifest["counts"]["pieces"] - manifest["counts"]["documents"]  # of long documents, after the first
    lengths = np.concatenate([np.diff(half.ends) for half in (corpus.train, corpus.validation)]).tolist()
    sources = manifest.get("sources", [])
    return {
        "documents": manifest["counts"]["documents"],
        "empty documents": manifest["counts"]["empty"],
        "duplicates": len(hashes) - len(np.unique(hashes)) - pieces,
        "duplicates left out": manifest["counts"].get("duplicates", 0),
        "tokens": sum(lengths),
        "tokens for validation": corpus.validation.tokens,
        "tokens per document": spread(lengths),
        "language": manifest["language"],
        "sources": {source["name"]: share for source, share in zip(sources, _shares(corpus), strict=False)},
        "tokenizers": manifest.get("tokenizers", "not recorded"),
    }


def _shares(corpus: Corpus) -> list[float]:
    """Share of each source in the tokens."""
    halves = (corpus.train, corpus.validation)
    counts = np.sum([np.bincount(half.sources, np.diff(half.ends), half.source_count) for half in halves], axis=0)
    return [round(share, 4) for share in (counts / counts.sum()).tolist()]


def spread(lengths: Sequence[int]) -> dict[str, float]:
    low, quarter, median, three, high = np.percentile(np.array(lengths), [0, 25, 50, 75, 100]).tolist()
    mean = round(float(np.mean(lengths)), 1)
    return {"mean": mean, "min": low, "25%": quarter, "median": median, "75%": three, "max": high}


def scripts(characters: Counter[str]) -> dict[str, float]:
    """Share of each script among the letters, largest first. A letter's Unicode name begins with its script."""
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            letters[unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0].capitalize()] += count
    total = max(sum(letters.values()), 1)
    return {"CJK" if name == "Cjk" else name: round(count / total, 4) for name, count in letters.most_common()}


def table(found: Statistics) -> str:
    """One line per statistic."""
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            share = name in ("scripts", "sources")
            value = ", ".join(f"{key} {each:.1%}" if share else f"{key} {each:,.10g}" for key, each in value.items())
        elif not isinstance(value, str) and value is not None:
            value = f"{value:,}"
        lines.append(f"{name:<26}{value}")
    return "\n".join(lines)
