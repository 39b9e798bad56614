"""Chinese characters: the Unicode blocks of Han ideographs, as the inside of a regular expression's brackets."""

import re

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HAN = re.compile(f"[{HAN}]")


def is_han(character: str) -> bool:
    return bool(_HAN.match(character))
