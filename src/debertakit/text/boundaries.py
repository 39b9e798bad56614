"""Word and entity boundaries, in characters and in tokens.

Whole-word and entity masking need to know, for each token, whether it begins a word and whether it continues the
entity of the previous token. For languages written with spaces, the vocabulary gives the answer with two table
look-ups per token. Chinese has no spaces: jieba segments the text, and the tokenizer's offsets map the boundaries to
tokens. Entities are mapped in the same way. They come from a gazetteer, from spaCy or from the user's own function.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from debertakit.installation import install
from debertakit.text.characters import UNIT, is_han

Bools = NDArray[np.bool_]
Detector = Callable[[str], Iterable[tuple[int, int]]]
"""Function from a text to the (start, end) of each entity, in characters."""
EntitySource = str | Path | Detector
"""A gazetteer file, ``spacy:MODEL`` or a function."""

_BYTE = re.compile("<0x[0-9A-F]{2}>")
_HAN_LEAD = 0xE3  # in UTF-8, Chinese characters begin with this byte or a higher one


def word_tables(backend: Tokenizer) -> tuple[Bools, Bools]:
    """Build two bool [vocab] tables: pieces that begin a word, and pieces after which a new word begins.

    A word is a run of letters and digits, a punctuation mark, or one Chinese
    character.
    """
    prefix = getattr(backend.model, "continuing_subword_prefix", None)
    alphabet = _byte_level_alphabet() if _is_byte_level(backend) else None
    size = backend.get_vocab_size(with_added_tokens=True)
    opens, closes = np.zeros(size, bool), np.zeros(size, bool)
    for piece, index in backend.get_vocab(with_added_tokens=True).items():
        if prefix:  # WordPiece: "##" continues a word, all other pieces begin one
            opens[index] = not piece.startswith(prefix)
            continue
        if _BYTE.fullmatch(piece):  # byte fallback: part of a character
            opens[index] = int(piece[3:5], 16) >= _HAN_LEAD
            continue
        raw = bytes(alphabet[c] for c in piece if c in alphabet) if alphabet else b""
        text = raw.decode("utf-8", "replace") if alphabet else piece.replace("▁", " ")
        opens[index] = bool(text) and (not _continues(text[0]) or (text[0] == "\ufffd" and raw[0] >= _HAN_LEAD))
        closes[index] = bool(text.strip(" ")) and not _continues(text[-1])
    return opens, closes


def word_starts(ids: NDArray, tables: tuple[Bools, Bools]) -> Bools:
    """Return bool [tokens] for one document: whether each token begins a word."""
    opens, closes = tables
    starts = opens[ids]
    starts[1:] |= closes[ids[:-1]]
    starts[:1] = True
    return starts


class PieceBytes(NamedTuple):
    """Two tables [vocab] of a byte-level vocabulary."""

    length: NDArray[np.int64]
    blanks: NDArray[np.int64]
    """Spaces at the beginning, unless the piece is only spaces. A word does not begin there."""


def piece_bytes(backend: Tokenizer) -> PieceBytes | None:
    """Return the bytes of each piece, or None if pieces do not give back the text byte by byte."""
    if not _is_byte_level(backend) or backend.normalizer is not None:
        return None
    alphabet = _byte_level_alphabet()
    length, blanks = np.zeros((2, backend.get_vocab_size(with_added_tokens=True)), np.int64)
    for piece, index in backend.get_vocab(with_added_tokens=True).items():
        raw = bytes(alphabet.get(c, 0) for c in piece)
        length[index] = len(raw)
        blanks[index] = len(raw) - len(raw.lstrip()) if raw.strip() else 0
    return PieceBytes(length, blanks)


def first_characters(text: str, ids: NDArray, pieces: PieceBytes) -> NDArray[np.int64] | None:
    """Return the character at which each token begins, without offsets. None if the pieces are not exactly the text."""
    raw = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    ends = np.cumsum(pieces.length[ids])
    if not len(ids) or ends[-1] != len(raw):
        return None
    characters = np.cumsum((raw & 0xC0) != 0x80) - 1  # all other bytes continue a character
    return characters[ends - pieces.length[ids] + pieces.blanks[ids]]


def chinese_words(text: str) -> Bools:
    """Return bool [characters]: whether jieba begins a word at each character."""
    import rjieba

    starts = np.zeros(len(text) + 1, bool)
    starts[np.cumsum([0, *map(len, rjieba.cut(text))])] = True
    return starts[:-1]


def need_jieba() -> None:
    """Load jieba's dictionary; raise if rjieba is not installed.

    rjieba is jieba in Rust, with the same dictionary, 29 times as fast on zhwiki. It finds the same words, except for
    2 k of 847 k word starts, all inside Latin abbreviations such as J.G.
    """
    try:
        import rjieba
    except ImportError as error:
        raise ValueError(f"Chinese word boundaries need rjieba: {install('zh')}") from error
    rjieba.cut("")


def starts_on_tokens(characters: Bools, first: NDArray) -> Bools:
    """Map word starts from characters to tokens; first: int [tokens], the character at which each token begins.

    Several tokens can share one character (byte-level BPE). Only the first of them begins the word.
    """
    first = np.minimum(first, len(characters) - 1)
    starts = characters[first]
    starts[1:] &= first[1:] != first[:-1]
    starts[:1] = True
    return starts


def inside_on_tokens(entities: Iterable[tuple[int, int]], offsets: NDArray) -> Bools:
    """Return bool [tokens]: whether each token continues the entity of the previous token."""
    inside = np.zeros(len(offsets), bool)
    for start, end in entities:
        first = np.searchsorted(offsets[:, 1], start, side="right")  # the first token that ends after the start
        last = np.searchsorted(offsets[:, 0], end, side="left")  # one past the last token that begins before the end
        inside[first + 1 : last] = True
    return inside


class Gazetteer:
    """Find the phrases of a file (one per line). Case-sensitive; the longest phrase wins; matches end at a word end."""

    def __init__(self, path: str | Path):
        self.phrases: dict[str, list[tuple[str, int]]] = {}
        """First match of UNIT -> [(phrase, offset of that match)]; for 《红楼梦》 the key is 红 and the offset 1."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not a readable gazetteer (UTF-8, one phrase per line): {error}") from error
        for phrase in {line.strip() for line in lines}:
            if atom := UNIT.search(phrase):
                self.phrases.setdefault(atom.group(), []).append((phrase, atom.start()))
        if not self.phrases:
            raise ValueError(f"{path}: the gazetteer has no phrases")
        for same_start in self.phrases.values():
            same_start.sort(key=lambda entry: len(entry[0]), reverse=True)

    def __call__(self, text: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        free_from = 0
        for atom in UNIT.finditer(text):
            for phrase, place in self.phrases.get(atom.group(), ()):
                start = atom.start() - place
                end = start + len(phrase)
                if start < free_from:
                    continue
                if text.startswith(phrase, start) and not (text[end - 1 : end + 1].isalnum() and _joined(text, end)):
                    found.append((start, end))
                    free_from = end
                    break
        return found


def entity_detector(spec: EntitySource) -> Detector:
    """Create a detector from a gazetteer file or ``spacy:MODEL``. A function is returned unchanged."""
    if callable(spec):
        return spec
    if not str(spec).startswith("spacy:"):
        return Gazetteer(spec)
    model = str(spec)[len("spacy:") :]
    try:
        import spacy

        nlp = spacy.load(model)
    except (ImportError, OSError) as error:
        raise ValueError(
            f"entities={spec!r} needs spaCy and its model: pip install spacy && python -m spacy download {model}"
        ) from error
    return lambda text: [(entity.start_char, entity.end_char) for entity in nlp(text).ents]


def _joined(text: str, end: int) -> bool:
    """Whether the characters on both sides of ``end`` are not Chinese. The caller checks that they are letters."""
    return end < len(text) and not is_han(text[end - 1]) and not is_han(text[end])


def _continues(character: str) -> bool:
    return character == "\ufffd" or (character.isalnum() and not is_han(character))


def _is_byte_level(backend: Tokenizer) -> bool:
    return any("ByteLevel" in repr(part) for part in (backend.pre_tokenizer, backend.decoder))


def _byte_level_alphabet() -> dict[str, int]:
    """Map GPT-2's 256 byte-level characters back to their bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
