"""The result of a run in words."""

import pytest
from scipy.stats import binomtest

from debertakit.data.examples import Tagged, TextExample, gold
from debertakit.finetuning.evaluation import Evaluation
from debertakit.finetuning.significance import Comparison
from debertakit.finetuning.verdict import bootstrap, verdict, vocabulary_warning, wilson
from debertakit.tasks.decisions import Prediction
from debertakit.tasks.features import ExampleEncoder
from debertakit.tasks.own import SCORES, scoring
from debertakit.tasks.task import Task
from debertakit.text.tokenizer_training import train_tokenizer
from tests import tiny


def own(kind):
    return Task("own", kind, lambda _: {}, *SCORES[kind])


def evaluation(task, examples, values):
    return Evaluation(examples, [Prediction(value) for value in values], task.score(examples, values), 0.0)


def judged(gold_labels, predicted):
    task = own("single-label")
    examples = [TextExample(str(i), "a", None, label) for i, label in enumerate(gold_labels)]
    return verdict(task, evaluation(task, examples, predicted))


def test_the_line_of_the_issue():
    labels = ["yes"] * 164 + ["no"] * 136
    found = judged(labels, ["yes"] * 144 + ["no"] * 20 + ["no"] * 116 + ["yes"] * 20)
    assert str(found) == "86.7 % accuracy (majority class: 54.7 %), 95 % interval 82-90 (300 examples)"


def test_parts_of_speech():
    """The baseline is each word's most frequent tag in training; a new word gets the most frequent tag of all."""
    task = Task("own", "tagging", lambda _: {}, *scoring("tagging", ("N", "V")))
    train = [Tagged("0", ("dogs", "bark", "bark", "bark", "cats"), ("N", "V", "V", "N", "N"))]
    dev = [Tagged("0", ("dogs", "bark"), ("N", "V")), Tagged("1", ("new", "bark"), ("V", "N"))] * 10
    found = verdict(task, evaluation(task, dev, [("N", "V"), ("V", "N")] * 10), train)
    assert (found.score, found.baseline, found.low, found.high) == (100, 50, 100, 100)
    assert found.baseline_name == "each word's most frequent tag"
    same = verdict(task, evaluation(task, dev, [("N", "N"), ("N", "N")] * 10), train)
    assert same.warnings == ["the model predicts 'N' for every word; train longer, or with another --lr"]
    assert verdict(task, evaluation(task, dev, [("N", "V"), ("V", "N")] * 10)).baseline is None


@pytest.mark.parametrize(("right", "count"), [(0, 5), (5, 5), (260, 300), (1, 2000)])
def test_wilson_agrees_with_scipy(right, count):
    reference = binomtest(right, count).proportion_ci(method="wilson")
    assert wilson(right / count, count) == pytest.approx((100 * reference.low, 100 * reference.high), abs=1e-4)


def test_warnings():
    labels = ["yes"] * 30 + ["no"] * 20
    assert judged(labels, ["yes"] * 50).warnings == [
        "the model predicts 'yes' for every example; train longer, or with another --lr"
    ]
    assert "no better than always answering the majority class" in judged(labels, ["no", "yes"] * 25).warnings[0]
    assert "may be no better" in judged(labels, ["yes"] * 46 + ["no"] * 4).warnings[0]
    assert not judged(labels, labels).warnings
    assert not judged(["yes"] * 9, ["yes"] * 9).warnings[1:]
    task = own("tagging")
    examples = tiny.examples("tagging")
    nothing = evaluation(task, examples, [("O",) * len(example.words) for example in examples])
    assert "finds no entity" in verdict(task, nothing).warnings[0]


@pytest.mark.parametrize("kind", ["multi-label", "regression", "tagging", "qa", "choice"])
def test_every_kind_has_an_interval_around_its_score(kind):
    task, examples = own(kind), tiny.examples(kind, 60)
    values = [gold(example) for example in examples]
    if kind == "qa":
        values = [answers[0] if answers else "" for answers in values]
    if kind == "regression":
        values = [value + i % 3 for i, value in enumerate(values)]
    else:
        values[:20] = values[20:40] if kind != "tagging" else [("O",) * len(value) for value in values[:20]]
    found = verdict(task, evaluation(task, examples, values))
    assert found.low < found.score < found.high
    assert (found.low, found.high) == (verdict(task, evaluation(task, examples, values)).low, found.high)


def test_entities_are_resampled_with_seqevals_f1(monkeypatch):
    """The quick way from counts gives the interval of the slow way."""
    task, examples = own("tagging"), tiny.examples("tagging", 30)
    values = [example.tags if i % 3 else ("O",) * len(example.words) for i, example in enumerate(examples)]
    quick = bootstrap(task, evaluation(task, examples, values))
    monkeypatch.setattr("debertakit.finetuning.verdict._entity_f1", lambda _: lambda chosen: -1.0)
    assert bootstrap(task, evaluation(task, examples, values)) == pytest.approx(quick)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
def test_a_vocabulary_that_does_not_cover_the_script(kind):
    english = ["the film was good and the day was long", "we saw a sad film that day", "who lives here and where"] * 20
    tokenizer = train_tokenizer(english, kind=kind, vocab_size=400, progress=False)
    chinese = [TextExample(str(i), "这部电影非常好看，我们都喜欢", None, "y") for i in range(4)]
    latin = [TextExample(str(i), text, None, "y") for i, text in enumerate(english)]
    encoder = ExampleEncoder("single-label", tokenizer, ("y",), 64)
    warning = vocabulary_warning(tokenizer, encoder.encode(chinese).rows, chinese)
    assert "of the tokens are unknown to the vocabulary (mostly CJK); choose a --model" in warning
    assert not vocabulary_warning(tokenizer, encoder.encode(latin).rows, latin)


def test_compare_in_words():
    better = Comparison(90.0, 80.0, 5.0, 15.0, 0.01, 0.0123)
    assert better.verdict("run-a", "run-b") == "run-a is better (p = 0.012)"
    assert Comparison(80.0, 90.0, -15.0, -5.0, 0.01, 0.01).verdict("run-a", "run-b") == "run-b is better (p = 0.01)"
    same = Comparison(90.0, 89.0, -5.0, 6.0, 0.6, 0.64)
    assert same.verdict("run-a", "run-b") == "no significant difference (p = 0.64)"
