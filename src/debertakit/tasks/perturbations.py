"""Small changes of texts that should not change a prediction, or that should. ``deberta evaluate --robustness``.

    typos       two letters swapped, one left out or one doubled, in one word of ten (at least one) with four letters
                or more. Chinese: two neighbouring characters swapped
    case        lower case; upper case if the text has no capital letters
    word order  every word changes places with its neighbour: 1 2 3 4 5 -> 2 1 4 3 5. Chinese: characters
    negation    "not" after the first auxiliary verb, or removed from it. Chinese: 是, 很 and 有. The meaning changes,
                so the prediction should change too, except where the label does not depend on it
    groups      words for one group of people replaced by words for another: he and she, Christian and Muslim,
                他 and 她. The prediction should not change

Every change is a function of a text and a random generator. A text to which it does not apply stays the same. The lists
of words are short: they show a dependence, and they cannot show that there is none.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from debertakit.data.examples import Choice, Example, Kind, Question, Tagged, TextExample
from debertakit.text.characters import HAN

Change = Callable[[str, Random], str]
TYPO_RATE = 0.1
"""Share of the words that get a typo."""

GROUPS = (
    # women and men
    *(("he", "she"), ("his", "her"), ("him", "her"), ("himself", "herself"), ("man", "woman"), ("men", "women")),
    *(("boy", "girl"), ("boys", "girls"), ("father", "mother"), ("son", "daughter"), ("brother", "sister")),
    *(("husband", "wife"), ("uncle", "aunt"), ("mr", "mrs"), ("sir", "madam"), ("actor", "actress")),
    # religions and origins
    *(("christian", "muslim"), ("christians", "muslims"), ("church", "mosque"), ("priest", "imam")),
    *(("american", "mexican"), ("americans", "mexicans"), ("european", "african"), ("europeans", "africans")),
)
"""Pairs of English words. "her" is read as "his"; him and her change one way only."""
CHINESE_GROUPS = tuple(
    (pair[0], pair[1])
    for pair in map(
        str.split,
        (
            *("他 她", "男 女", "先生 女士", "父亲 母亲", "爸爸 妈妈", "儿子 女儿", "丈夫 妻子", "哥哥 姐姐"),
            *("弟弟 妹妹", "叔叔 阿姨", "爷爷 奶奶", "基督教 伊斯兰教", "本地人 外地人", "城里人 乡下人"),
        ),
    )
)
AUXILIARIES = (
    "am is are was were do does did has have had can could will would should must may might shall need".split()
)

_CAN_ERR = re.compile(rf"[{HAN}]{{2}}|[^\W\d_{HAN}]{{4,}}")
_UNIT = re.compile(rf"[{HAN}]|[^\s{HAN}]+")
_NEGATED = re.compile(
    rf"\b(?:(?P<verb>{'|'.join(AUXILIARIES)})(?:n['’]t|\s+not)|(?P<can>can)(?:not|['’]t)|(?P<will>wo)n['’]t)\b", re.I
)
_AUXILIARY = re.compile(rf"\b(?:{'|'.join(AUXILIARIES)})\b", re.I)
_NEGATED_ZH = re.compile("不是|不很|没有")
_POSITIVE_ZH = re.compile("(?<![不但还可于总只也就凡要若])是|(?<!不)很|(?<![没所具拥只还])有")
_SWAPS = {**{b: a for a, b in GROUPS}, **dict(GROUPS), "her": "his"}
_SWAPS_ZH = {a: b for pair in CHINESE_GROUPS for a, b in (pair, pair[::-1])}
_GROUP = re.compile(rf"\b(?:{'|'.join(_SWAPS)})\b", re.I)
_GROUP_ZH = re.compile("|".join(sorted(_SWAPS_ZH, key=len, reverse=True)))


def typos(text: str, draw: Random) -> str:
    words = list(_CAN_ERR.finditer(text))
    chosen = draw.sample(words, max(1, round(TYPO_RATE * len(words)))) if words else []
    for match in sorted(chosen, key=lambda match: -match.start()):
        text = text[: match.start()] + _mistyped(match.group(), draw) + text[match.end() :]
    return text


def _mistyped(word: str, draw: Random) -> str:
    if len(word) == 2:  # Chinese
        return word[::-1]
    at = draw.randrange(1, len(word) - 2)  # the first and the last letter stay: readers recognise a word by them
    kind = draw.choice(("swap", "drop", "double"))
    if kind == "swap" and word[at] != word[at + 1]:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + word[at + 1 :] if kind == "drop" else word[:at] + word[at] + word[at:]


def case(text: str, draw: Random) -> str:
    return text.lower() if text != text.lower() else text.upper()


def word_order(text: str, draw: Random) -> str:
    spans = [match.span() for match in _UNIT.finditer(text)]
    for (a, b), (c, d) in zip(spans[::2], spans[1::2], strict=False):
        text = text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]
    return text


def negation(text: str, draw: Random) -> str:
    if found := _NEGATED.search(text):
        verb = found["verb"] or found["can"] or ("Will" if found["will"][0].isupper() else "will")
        return text[: found.start()] + verb + text[found.end() :]
    if found := _AUXILIARY.search(text):
        return f"{text[: found.end()]} not{text[found.end() :]}"
    if found := _NEGATED_ZH.search(text):
        return text[: found.start()] + text[found.start() + 1 :]
    if found := _POSITIVE_ZH.search(text):
        word = {"是": "不是", "很": "不", "有": "没有"}[found.group()]
        return text[: found.start()] + word + text[found.end() :]
    return text


def groups(text: str, draw: Random) -> str:
    def swapped(match: re.Match[str]) -> str:
        word = match.group()
        other = _SWAPS[word.lower()]
        if word.isupper() and len(word) > 1:
            return other.upper()
        return other.capitalize() if word[0].isupper() else other

    text = _GROUP.sub(swapped, text)
    return _GROUP_ZH.sub(lambda match: _SWAPS_ZH[match.group()], text)


CHANGES: Mapping[str, Change] = {
    "typos": typos,
    "case": case,
    "word order": word_order,
    "negation": negation,
    "groups": groups,
}
PER_WORD = ("typos", "case", "groups")
"""Changes that keep the number of words, for tagging."""


def changes_for(kind: Kind) -> tuple[str, ...]:
    return PER_WORD if kind == "tagging" else tuple(CHANGES)


def perturb(example: Example, name: str, draw: Random) -> Example:
    """Change the texts of an example, and never its label. Returns an equal example if the change does not apply.

    Only the question of a question-answering example changes, because its answers are places in the context. Only the
    second text of a pair is negated, because two negations may cancel each other.
    """
    change = CHANGES[name]
    match example:
        case TextExample(pair=None):
            return replace(example, text=change(example.text, draw))
        case TextExample(pair=str() as pair):
            text = example.text if name == "negation" else change(example.text, draw)
            return replace(example, text=text, pair=change(pair, draw))
        case Question():
            return replace(example, question=change(example.question, draw))
        case Choice():
            if name == "negation" and example.pair:
                return replace(example, pair=change(example.pair, draw))
            if name == "negation":
                return replace(example, text=change(example.text, draw))
            options = tuple(change(option, draw) for option in example.options)
            return replace(example, text=change(example.text, draw), pair=change(example.pair, draw), options=options)
        case Tagged():
            if name == "typos":
                return replace(example, words=_with_typos(example.words, draw))
            return replace(example, words=tuple(change(word, draw) for word in example.words))
    raise AssertionError(example)


def _with_typos(words: Sequence[str], draw: Random) -> tuple[str, ...]:
    able = [i for i, word in enumerate(words) if _CAN_ERR.search(word)]
    chosen = set(draw.sample(able, max(1, round(TYPO_RATE * len(able))))) if able else set()
    return tuple(typos(word, draw) if i in chosen else word for i, word in enumerate(words))
