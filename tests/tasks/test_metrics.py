"""Each metric against its definition, computed independently, and its value where it is undefined."""

import math
import random
import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debertakit.data.examples import Choice, Question, Tagged, TextExample
from debertakit.tasks import metrics


def classes(*labels) -> list[TextExample]:
    return [TextExample(str(i), "t", label=label) for i, label in enumerate(labels)]


def by_hand(gold, predictions) -> tuple[int, int, int, int]:
    pairs = list(zip(gold, predictions, strict=True))
    return tuple(pairs.count(pair) for pair in (("1", "1"), ("0", "1"), ("1", "0"), ("0", "0")))


def draw(n: int, seed: int) -> tuple[list[str], list[str]]:
    rng = random.Random(seed)
    gold = [rng.choice("01") for _ in range(n)]
    return gold, [label if rng.random() < 0.7 else rng.choice("01") for label in gold]


@pytest.mark.parametrize("seed", range(5))
def test_binary_scores_follow_from_the_confusion_matrix(seed):
    gold, predictions = draw(50, seed)
    tp, fp, fn, tn = by_hand(gold, predictions)
    examples = classes(*gold)
    mcc = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    f1, accuracy = 2 * tp / (2 * tp + fp + fn), (tp + tn) / 50
    scores = metrics.accuracy_and_f1(examples, predictions)
    assert metrics.matthews(examples, predictions)["mcc"] == pytest.approx(100 * mcc)
    assert scores == pytest.approx({"accuracy": 100 * accuracy, "f1": 100 * f1, "average": 50 * (f1 + accuracy)})


def test_one_class_only():
    assert metrics.matthews(classes("1", "1"), ["1", "1"]) == {"mcc": 0.0, "accuracy": 100.0}
    assert metrics.matthews(classes("1", "0"), ["1", "1"])["mcc"] == 0.0
    assert metrics.accuracy_and_f1(classes("0", "0"), ["0", "0"])["f1"] == 0.0


def test_macro_f1_counts_classes_alike():
    # entailment: P 2/3 R 1; contradiction: P 1 R 1/2; neutral: never predicted
    gold = ["entailment", "entailment", "contradiction", "contradiction", "neutral"]
    scores = metrics.accuracy_and_macro_f1(
        classes(*gold), ["entailment", "entailment", "contradiction", "entailment", "contradiction"]
    )
    assert scores["f1"] == pytest.approx(100 * (4 / 5 + 2 / 4 + 0) / 3)
    assert scores["accuracy"] == 60
    assert set(metrics.classification(classes("a", "b"), ["a", "b"])) == {"accuracy", "macro_f1", "mcc"}


def test_correlations_against_numpy():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 5, 40).astype(float)  # ties
    predictions = gold + rng.normal(0, 1.5, 40)

    def pearson(x, y):
        x, y = x - x.mean(), y - y.mean()
        return 100 * (x @ y) / np.sqrt((x @ x) * (y @ y))

    def ranks(x):
        return np.array([(x < value).sum() + ((x == value).sum() + 1) / 2 for value in x])

    scores = metrics.correlation([TextExample("", "t", label=float(g)) for g in gold], predictions.tolist())
    assert scores["pearson"] == pytest.approx(pearson(gold, predictions))
    assert scores["spearman"] == pytest.approx(pearson(ranks(gold), ranks(predictions)))
    assert scores["average"] == pytest.approx((scores["pearson"] + scores["spearman"]) / 2)


def test_correlation_of_a_constant_is_0_and_not_nan():
    examples = [TextExample("", "t", label=float(g)) for g in range(3)]
    assert metrics.correlation(examples, [1.0, 1.0, 1.0])["average"] == 0.0
    assert metrics.correlation(examples[:1], [1.0])["pearson"] == 0.0


def test_multi_label_from_the_counts():
    gold = [("a", "b"), ("b",), (), ("c",)]
    predictions = [("a",), ("b", "c"), (), ("b",)]
    scores = metrics.multi_label(classes(*gold), predictions)
    # a: 1 right of 1 and 1; b: 1 right of 2 and 2; c: 0 right of 1 and 1
    assert scores["micro_f1"] == pytest.approx(100 * 2 * 2 / (4 + 4))
    assert scores["macro_f1"] == pytest.approx(100 * (1 + 1 / 2 + 0) / 3)
    assert scores["exact"] == 25
    assert metrics.multi_label(classes((), ("a",)), [(), ()]) == {"micro_f1": 0, "macro_f1": 0, "exact": 50}
    assert metrics.multi_label(classes((), ()), [(), ()]) == {"micro_f1": 0, "macro_f1": 0, "exact": 100}


def test_multi_label_is_scikit_learns_where_that_has_two_labels():
    from sklearn.metrics import f1_score
    from sklearn.preprocessing import MultiLabelBinarizer

    rng = random.Random(0)
    gold, predictions = ([tuple(c for c in "abcd" if rng.random() < 0.4) for _ in range(30)] for _ in range(2))
    binarizer = MultiLabelBinarizer().fit(gold)
    scores = metrics.multi_label(classes(*gold), predictions)
    for average in ("micro", "macro"):
        expected = f1_score(binarizer.transform(gold), binarizer.transform(predictions), average=average)
        assert scores[f"{average}_f1"] == pytest.approx(100 * expected)


def test_multirc_groups_the_answers_of_a_question():
    examples = [
        TextExample(str(i), "p", "q", label, group)
        for i, (label, group) in enumerate([("1", "0-0"), ("0", "0-0"), ("1", "0-1"), ("1", "0-1"), ("0", "1-0")])
    ]
    scores = metrics.multirc(examples, ["1", "0", "1", "0", "1"])
    assert scores["f1a"] == pytest.approx(100 * 2 * 2 / (3 + 3))
    assert scores["exact"] == pytest.approx(100 / 3)


def test_record_takes_the_best_of_the_answers():
    example = Choice(
        "0", "p", "", ("..", "..", ".."), 0, ("Donald Trump", "Trump Tower", "Obama"), ("Trump", "Mr. Trump")
    )
    assert metrics.record([example], [0]) == pytest.approx({"f1": 100 * 2 / 3, "exact": 0, "average": 100 / 3})
    assert metrics.record([example], [2])["f1"] == 0
    with pytest.raises(ValueError, match="no answers"):
        metrics.record([Choice("7", "p", "", ("a", "b"))], [0])


# ------------------------------------------------------------------------------------------------------------- answers


def asked(*answers: str, id: str = "q") -> Question:
    return Question(id, "?", "c", answers, (0,) * len(answers))


@pytest.mark.parametrize(
    ("text", "normal"),
    [("The  Cat!", "cat"), ("an apple, a day", "apple day"), ("theatre", "theatre"), ("the", ""), ("U.S.A.", "usa")],
)
def test_squad_normalises(text, normal):
    assert metrics.normalise(text) == normal


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("the cat", ("Cat.", "dog"), 100, 100),
        ("black cat", ("the cat",), 0, 100 * 2 / 3),
        ("cat cat dog", ("cat cat",), 0, 100 * 4 / 5),  # a word counts as often as both have it
        ("", ("cat",), 0, 0),
        ("", (), 100, 100),
        ("cat", (), 0, 0),
        ("cat", ("the", "cat"), 100, 100),
        ("", ("the",), 100, 100),  # an answer that normalises to nothing does not count
    ],
)
def test_squad_scores(prediction, answers, exact, f1):
    assert metrics.squad([asked(*answers)], [prediction]) == pytest.approx({"exact": exact, "f1": f1})


def test_squad_splits_answerable_and_not():
    examples = [asked("a b"), asked("c"), asked(), asked()]
    scores = metrics.squad(examples, ["b", "", "", "x"])
    assert scores["HasAns_f1"] == pytest.approx(100 * 1 / 2)  # "a" is an article
    assert scores["HasAns_exact"] == 50
    assert scores["NoAns_exact"] == scores["NoAns_f1"] == 50
    assert scores["exact"] == 50
    assert "NoAns_f1" not in metrics.squad(examples[:2], ["b", "c"])


def test_the_same_answers_are_measured_once(monkeypatch):
    """A comparison of two runs scores the same answers thousands of times."""
    measured = []
    monkeypatch.setattr(metrics, "Counter", lambda given: measured.append(given) or Counter(given))
    examples, predictions = [asked("measured once", "or twice"), asked()], ["measured", "never"]
    assert len({tuple(metrics.squad(examples, predictions).items()) for _ in range(5)}) == 1
    assert len(measured) == 4  # two answers, a bag of words on either side


words = st.text("ab .,theTHE-日", max_size=12)


@given(words, words)
@settings(max_examples=200)
def test_word_f1_is_symmetric_bounded_and_1_exactly_for_equal_bags(left, right):
    value = metrics.word_f1(left, right)
    assert value == metrics.word_f1(right, left)
    assert 0 <= value <= 1
    same = sorted(metrics.normalise(left).split()) == sorted(metrics.normalise(right).split())
    assert (value == 1) == same
    assert metrics.exact_match(left, right) <= value


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(["x", "x y", "z", ""]), st.integers(-3, 3)), min_size=1, max_size=8
    )
)
@settings(max_examples=100)
def test_best_threshold_is_the_best_of_all(rows):
    examples = [asked("x") if has else asked() for has, _, _ in rows]
    answers, scores = [answer for _, answer, _ in rows], [float(score) for _, _, score in rows]

    def at(threshold: float) -> float:
        given_ = [a if s <= threshold else "" for a, s in zip(answers, scores, strict=True)]
        return metrics.squad(examples, given_)["f1"]

    best, threshold = metrics.find_best_threshold(examples, answers, scores)
    assert best == pytest.approx(max(at(t) for t in (-9.0, *scores)))
    assert at(threshold) == pytest.approx(best)


def test_best_threshold_for_exact_match():
    examples = [asked("x y"), asked()]
    assert metrics.find_best_threshold(examples, ["x", "z"], [0.1, 0.2], "exact")[0] == 50
    assert metrics.find_best_threshold(examples, ["x", "z"], [0.1, 0.2], "f1") == (
        pytest.approx(100 * (2 / 3 + 1) / 2),
        0.1,
    )


def longest_common_run(left: str, right: str) -> int:
    runs = {left[i:j] for i, j in combinations(range(len(left) + 1), 2)}
    return max((len(run) for run in runs if run in right), default=0)


@given(st.text("北京大学，。", max_size=8), st.text("北京大学，。", max_size=8))
@settings(max_examples=150)
def test_cmrc_is_the_longest_common_run_of_characters(prediction, answer):
    plain = [re.sub("[，。]", "", text) for text in (prediction, answer)]
    run = longest_common_run(*plain)
    expected = 2 * run / sum(map(len, plain)) if run else 0
    scores = metrics.cmrc([asked(answer)], [prediction])
    assert scores["f1"] == pytest.approx(100 * expected)
    assert scores["exact"] == 100 * (plain[0] == plain[1])


def test_cmrc_takes_latin_words_whole_and_the_best_answer():
    # pieces: 光 荣 和 omega force | 光 荣 和 force; the run 光荣和
    assert metrics.cmrc([asked("光荣和Omega-force")], ["光荣和force"])["f1"] == pytest.approx(100 * 2 * 3 / (4 + 4))
    assert metrics.cmrc([asked("光荣和Omega force")], ["光荣和force"])["f1"] == pytest.approx(100 * 2 * 3 / (5 + 4))
    assert metrics.cmrc([asked("不", "第二艘")], ["第二艘"])["average"] == 100
    assert metrics.cmrc([asked("不")], [""]) == {"exact": 0, "f1": 0, "average": 0}


# ------------------------------------------------------------------------------------------------------------ entities


def spans(tags) -> set[tuple[str, int, int]]:
    """Entities by conlleval's rule: one begins at B-, or at an I- of another type than the tag before it."""
    found, begin = set(), None
    for i, tag in enumerate([*tags, "O"]):
        before = tags[i - 1] if i else "O"
        new = tag[0] == "B" or (tag[0] == "I" and before[1:] != tag[1:])
        if begin is not None and (tag == "O" or new):
            found.add((tags[begin][2:], begin, i - 1))
            begin = None
        if new:
            begin = i
    return found


tag_lists = st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"]), min_size=1, max_size=8)


@given(st.lists(tag_lists.flatmap(lambda g: st.tuples(st.just(g), st.permutations(g))), min_size=1, max_size=4))
@settings(max_examples=100)
def test_entities_are_conllevals(sentences):
    examples = [Tagged(str(i), ("w",) * len(gold), tuple(gold)) for i, (gold, _) in enumerate(sentences)]
    truth = {(i, *span) for i, (gold, _) in enumerate(sentences) for span in spans(gold)}
    guess = {(i, *span) for i, (_, tags) in enumerate(sentences) for span in spans(tags)}
    precision = len(truth & guess) / len(guess) if guess else 0
    recall = len(truth & guess) / len(truth) if truth else 0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0
    scores = metrics.entities(examples, [tags for _, tags in sentences])
    assert scores == pytest.approx({"f1": 100 * f1, "precision": 100 * precision, "recall": 100 * recall})


def test_entities_need_one_tag_per_word():
    with pytest.raises(ValueError, match="example 3: 1 predicted tags for 2 words"):
        metrics.entities([Tagged("3", ("a", "b"), ("O", "O"))], [["O"]])


def test_cluener_is_the_mean_over_types_of_the_texts():
    example = Tagged(
        "0", tuple("叶老桂在浙商银行"), ("B-name", "I-name", "I-name", "O", *["B-company"] + ["I-company"] * 3)
    )
    guess = ["B-name", "I-name", "I-name", "O", "O", "O", "B-company", "I-company"]
    scores = metrics.cluener([example], [guess])
    assert scores["f1"] == 50  # name 1, company 0
    assert scores["entity_f1"] == 50
    assert metrics.cluener([example], [list(example.tags)])["f1"] == 100
    assert metrics.entity_texts(example.words, example.tags) == {("name", "叶老桂"), ("company", "浙商银行")}


def test_only_labelled_data_is_scored():
    with pytest.raises(ValueError, match="example 1 has no label"):
        metrics.accuracy([TextExample("0", "t", label="a"), TextExample("1", "t")], ["a", "a"])
    with pytest.raises(ValueError, match="1 predictions for 2 examples"):
        metrics.accuracy(classes("a", "b"), ["a"])
    with pytest.raises(ValueError, match="no examples"):
        metrics.accuracy([], [])
