"""Text to words, and the tags of words to entities."""

import re
from collections.abc import Sequence

from debertakit.data.conll import has_entities
from debertakit.text.characters import HAN

WORD = re.compile(rf"[{HAN}]|[^\W{HAN}]+|[^\w\s]")
"""A word for tagging: one Chinese character, a run of letters, digits and underscores, or one other symbol."""


def split_words(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Words of a text, and their character offsets."""
    return [(match.group(), match.span()) for match in WORD.finditer(text)]


def marks_entities(labels: Sequence[str]) -> bool:
    """Whether these are the tags of entities. Otherwise every word has its own tag, such as its part of speech."""
    return "O" in labels or has_entities(labels)


def merge_tags(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Merge tagged words B-X I-X ... into entities: (type, first word, one past the last word).

    An I-X without a preceding X starts a new entity. Tags without a prefix (X X ...) are merged like I-X.
    """
    found: list[tuple[str, int, int]] = []
    before = "O"
    for word, tag in enumerate(tags):
        kind = tag[2:] if tag[1:2] == "-" else tag
        if tag != "O":
            if tag.startswith("B-") or before != kind:
                found.append((kind, word, word + 1))
            else:
                found[-1] = (kind, found[-1][1], word + 1)
        before = kind
    return found
