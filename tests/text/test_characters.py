import pytest

from debertakit.data.examples import Tagged
from debertakit.tasks.features import word_pieces
from debertakit.tasks.text_scores import Words
from debertakit.text.characters import is_han, looks_chinese
from tests.text.material import byte_level

HAN = ["㐀", "一", "龥", "鿿", "豈", "𠀀", "𰀀"]
"""Extension A; first character, CMRC's last and Unicode's last of the main block; compatibility; planes 2 and 3."""
OTHERS = ["", "a", "。", "あ", "한", "〇", "䷀"]
"""The last one, U+4DC0, is a hexagram of the I Ching: a symbol between two blocks of Han characters."""


@pytest.mark.parametrize(("character", "expected"), [(c, True) for c in HAN] + [(c, False) for c in OTHERS])
def test_which_characters_are_chinese(character, expected):
    assert is_han(character) == expected
    assert looks_chinese(character) == expected


@pytest.mark.parametrize("character", HAN)
def test_a_chinese_character_is_a_word_everywhere(character):
    assert Words().tokenize(f"a{character}{character}b") == ["a", character, character, "b"]
    tokenizer = byte_level()
    [_, second] = next(word_pieces([Tagged("", ("a", character))], tokenizer))
    assert tokenizer.decode(second) == character  # a word of other letters gets the space before it
