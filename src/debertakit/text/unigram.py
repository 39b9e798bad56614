"""SentencePiece unigram models in the `tokenizers` library, with exactly the segmentation of sentencepiece."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

NORMAL, UNKNOWN, USER_DEFINED = 1, 2, 4  # SentencePiece.Type; 3 is control, 6 is byte
SQUEEZE_SPACES: list[Normalizer] = [
    normalizers.Replace(Regex(" {2,}"), " "),
    normalizers.Replace(Regex(r"\A | \z"), ""),
]
BREAK, JOIN = "\U0010ffff", "\U0010fffe"  # noncharacters, never in text: see _charsmap_normalizer


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a protobuf message: enough of the wire format to read a SentencePiece model.

    With this function, reading a released `spm.model` needs neither sentencepiece nor protobuf.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        value: Any
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            if key & 7 not in (1, 2, 5) or at + size > len(message):
                raise IndexError("truncated or not a SentencePiece model")
            value, at = message[at : at + size], at + size
            value = struct.unpack("<f", value)[0] if key & 7 == 5 else value
        yield key >> 3, value


def from_sentencepiece(file: Path) -> Tokenizer:
    """Load a unigram `spm.model` as a `tokenizers.Tokenizer` that gives the ids of sentencepiece."""
    model = list(_fields(file.read_bytes()))
    pieces: list[dict[int, Any]] = [{2: 0.0, 3: NORMAL} | dict(_fields(value)) for field, value in model if field == 1]
    trainer = dict(_fields(next((value for field, value in model if field == 2), b"")))
    rules = dict(_fields(next((value for field, value in model if field == 3), b"")))
    if not pieces or trainer.get(3, 1) != 1:
        raise ValueError(f"{file} is not a SentencePiece unigram model, as DeBERTa v2 and v3 use")
    if trainer.get(24) or not rules.get(5, 1) or not rules.get(4, 1):
        raise ValueError(f"{file}: whitespace as a suffix, not escaped, or repeated is not supported")

    kinds = [piece[3] for piece in pieces]
    vocab = [(piece[1].decode(), piece[2]) for piece in pieces]
    in_text = [kind in (NORMAL, USER_DEFINED) for kind in kinds]
    steps = _charsmap_normalizer(rules[2]) if rules.get(2) else []
    byte_fallback, prefix = bool(trainer.get(35)), bool(rules.get(3, 1))
    return unigram(vocab, in_text, kinds.index(UNKNOWN), byte_fallback, steps + SQUEEZE_SPACES, prefix)


def unigram(
    vocab: list[tuple[str, float]],
    in_text: list[bool],
    unk: int,
    byte_fallback: bool,
    steps: list[Normalizer],
    prefix: bool,
) -> Tokenizer:
    """Build a `models.Unigram` that segments text as sentencepiece does; `in_text`: whether a piece may match text."""
    backend = Tokenizer(models.Unigram(vocab, unk, byte_fallback))
    backend.normalizer = normalizers.Sequence(steps)
    pieces = [text for (text, _), usable in zip(vocab, in_text, strict=True) if usable]
    across = any("▁" in text[1:].lstrip("▁") for text in pieces)  # a piece has several words: do not split at spaces
    cuts: list[PreTokenizer] = [pre_tokenizers.Metaspace("▁", "always" if prefix else "never", split=not across)]
    cuts += _literal_guard(pieces, [text for (text, _), usable in zip(vocab, in_text, strict=True) if not usable])
    if byte_fallback:  # split off characters without a piece: same tokens, but bytes get their character's offsets
        cuts.append(pre_tokenizers.Split(Regex(f"[^{_char_class(set('▁'.join(pieces)))}]"), "isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(spaces + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return backend


def _literal_guard(pieces: list[str], reserved: list[str]) -> list[PreTokenizer]:
    """Prevent a literal "<0x41>" in the text from matching the byte piece of that name.

    sentencepiece never matches control, unknown and byte pieces in text; `models.Unigram` matches all pieces. So split
    such a literal in two, at a point that no real piece crosses. Then nothing else changes.
    """
    joined, cuts = "\0".join(pieces), []
    for text in reserved:
        cut = next((i for i in range(1, len(text)) if text[i - 1 : i + 1] not in joined), None)
        if cut:
            cuts.append((text[:cut], text[cut:]))
    heads = {head: [tail for other, tail in cuts if other == head] for head, _ in cuts}
    pattern = "|".join(f"{re.escape(head)}(?={'|'.join(map(re.escape, tails))})" for head, tails in heads.items())
    return [pre_tokenizers.Split(Regex(pattern), "merged_with_previous")] if cuts else []


def _charsmap_normalizer(charsmap: bytes) -> list[Normalizer]:
    """Apply sentencepiece's character map exactly: the longest rule at each position, from left to right.

    `normalizers.Precompiled` has the same rules but processes grapheme clusters and applies the *shortest* rule: it
    drops the accent of a full-width letter and does not compose decomposed Hangul. It is correct on single characters.
    So these steps mark where sentencepiece's rules end (BREAK), split all clusters into characters (JOIN), map the
    characters, let NFC compose the characters of one rule (NFC cannot compose across a BREAK), and remove the marks.
    If a text contains the two noncharacters, they are lost. A composed character has the offsets of its first part.
    """
    keys = _rule_keys(charsmap)
    tails = _char_class({char for key in keys for char in key[1:]})
    joins = rf"[\p{{M}}\x{{200C}}\x{{200D}}\x{{E33}}\x{{EB3}}{tails}]"  # characters that continue a cluster or a rule
    others = joins.replace("[", "[^", 1)
    rule = rf"(?>{_trie_pattern(frozenset(keys))}|(?m:.))" if keys else "(?m:.)"
    return [
        normalizers.Replace(Regex(rf"(?:\G(?={joins})|(?={others}{joins})){rule}(?={joins})\K"), BREAK),
        normalizers.Replace(Regex(rf"(?!\A)(?={joins})"), JOIN),  # a JOIN at the start makes Precompiled panic
        normalizers.Precompiled(charsmap),
        normalizers.Replace(JOIN, ""),
        normalizers.NFC(),
        normalizers.Replace(BREAK, ""),
    ]


def _rule_keys(charsmap: bytes) -> list[str]:
    """Return the rules of more than one character, read from the map's double-array trie one byte level at a time."""
    size = struct.unpack_from("<I", charsmap)[0]
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    children = (units >> 10) << ((units & 512) >> 6)
    nodes, names, found = children[:1], [b""], []
    while len(nodes):
        next_nodes, next_names = [], []
        for byte in range(1, 256):
            slots = nodes ^ byte
            hits = np.flatnonzero((units[np.minimum(slots, len(units) - 1)] & 0x800000FF) == byte)
            slots = slots[hits]
            next_nodes.append(slots ^ children[slots])
            new = [names[i] + bytes([byte]) for i in hits.tolist()]
            found += [new[i] for i in np.flatnonzero(units[slots] & 256).tolist()]
            next_names += new
        nodes, names = np.concatenate(next_nodes), next_names
    return [key for key in (name.decode() for name in found) if len(key) > 1]


def _trie_pattern(keys: frozenset[str]) -> str:
    """Build a regular expression that matches the longest key: a trie, equal branches merged (220,000 keys: 29 kB)."""
    tails: dict[str, set[str]] = {}
    for key in keys:
        if key:
            tails.setdefault(key[0], set()).add(key[1:])
    branches: dict[frozenset[str], set[str]] = {}
    for char in sorted(tails):
        branches.setdefault(frozenset(tails[char]), set()).add(char)
    if not branches:
        return ""
    pattern = "|".join(f"[{_char_class(chars)}]{_trie_pattern(rest)}" for rest, chars in branches.items())
    return f"(?:{pattern})" + ("?" if "" in keys else "")


def _char_class(chars: set[str]) -> str:
    """Return the inside of a [...] for these characters, with runs as ranges."""
    runs: list[list[int]] = []
    for code in sorted(map(ord, chars)):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in runs)
