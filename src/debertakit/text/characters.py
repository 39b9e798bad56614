"""Chinese characters: the Unicode blocks of Han ideographs, as the inside of a regular expression's brackets."""

import re

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
UNIT = re.compile(f"[{HAN}]|[^\\W{HAN}]+")
"""One Chinese character, or a run of other letters and digits."""
_HAN = re.compile(f"[{HAN}]")


def is_han(character: str) -> bool:
    return bool(_HAN.match(character))


def looks_chinese(text: str) -> bool:
    """Whether more than a fifth of the characters are Chinese."""
    return len(_HAN.findall(text)) > 0.2 * len(text)
