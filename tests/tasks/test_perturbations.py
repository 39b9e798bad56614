from random import Random

import pytest

from debertakit.data.examples import Choice, Question, Tagged, TextExample
from debertakit.tasks.perturbations import AUXILIARIES, CHANGES, CHINESE_GROUPS, GROUPS, changes_for, perturb
from tests import tiny

KINDS = ("single-label", "multi-label", "regression", "tagging", "qa", "choice")


def change(name, text, seed=0):
    return CHANGES[name](text, Random(seed))


@pytest.mark.parametrize(
    ("text", "negated"),
    [
        ("It is a good film.", "It is not a good film."),
        ("It is not good.", "It is good."),
        ("We can't go", "We can go"),
        ("I cannot see", "I can see"),
        ("It won’t rain", "It will rain"),
        ("Won't it rain?", "Will it rain?"),
        ("They DON'T know", "They DO know"),
        ("这是好电影", "这不是好电影"),
        ("这不是好电影", "这是好电影"),
        ("但是电影很好", "但是电影不好"),
        ("没有意思", "有意思"),
        ("所有人都来", "所有人都来"),
        ("A lovely film", "A lovely film"),
        ("This issue", "This issue"),
    ],
)
def test_negation(text, negated):
    assert change("negation", text) == negated


def test_negating_twice_gives_the_text_again():
    for verb in AUXILIARIES:
        text = f"They {verb} here"
        assert change("negation", change("negation", text)) == text != change("negation", text)


@pytest.mark.parametrize(
    ("text", "swapped"),
    [
        ("He said that his son is a CHRISTIAN.", "She said that her daughter is a MUSLIM."),
        ("Her mother saw the manager", "His father saw the manager"),
        ("他的爸爸是本地人", "她的妈妈是外地人"),
        ("Nothing to change, 没有", "Nothing to change, 没有"),
    ],
)
def test_groups(text, swapped):
    assert change("groups", text) == swapped


def test_the_lists_name_every_word_once():
    chinese = [word for pair in CHINESE_GROUPS for word in pair]
    english = [word for pair in GROUPS for word in pair if word not in ("her", "his", "him")]
    assert len(chinese) == len(set(chinese))
    assert len(english) == len(set(english))
    for a, b in GROUPS:
        if "her" not in (a, b):
            assert change("groups", change("groups", f"the {a}, the {b}")) == f"the {a}, the {b}"


def test_word_order_and_case():
    assert change("word order", "one two,  three four five") == "two, one  four three five"
    assert change("word order", "我喜欢 you") == "喜我you 欢"
    assert change("case", "Rome") == "rome"
    assert change("case", "rome") == "ROME"


def test_typos_are_few_and_keep_the_ends_of_a_word():
    text = " ".join(["wonderful"] * 20)
    changed = change("typos", text).split()
    wrong = [word for word in changed if word != "wonderful"]
    assert 1 <= len(wrong) <= 2
    assert len(changed) == 20
    assert all(word[0] == "w" and word[-1] == "l" and abs(len(word) - 9) <= 1 for word in wrong)
    assert change("typos", "a bad day") == "a bad day"  # words with fewer than four letters
    assert change("typos", "电影") == "影电"
    assert change("typos", text, seed=1) != change("typos", text, seed=2)
    assert change("typos", text, seed=1) == change("typos", text, seed=1)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_places_stay(kind):
    for example in tiny.examples(kind):
        for name in changes_for(kind):
            changed = perturb(example, name, Random(0))
            match example:
                case TextExample():
                    assert changed.label == example.label
                case Tagged():
                    assert (changed.tags, len(changed.words)) == (example.tags, len(example.words))
                case Question():
                    assert (changed.context, changed.answers) == (example.context, example.answers)
                case Choice():
                    assert (changed.label, len(changed.options)) == (example.label, len(example.options))


def test_only_the_second_text_of_a_pair_is_negated():
    pair = TextExample("0", "He is here", "He is at home", "yes")
    assert perturb(pair, "negation", Random(0)) == TextExample("0", "He is here", "He is not at home", "yes")
    assert perturb(pair, "groups", Random(0)) == TextExample("0", "She is here", "She is at home", "yes")
