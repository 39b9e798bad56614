import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from debertakit.data.examples import Question, Tagged, TextExample
from debertakit.loading import load_for_training
from debertakit.tasks.batches import Collator
from debertakit.tasks.decisions import MAX_ANSWER_TOKENS, best_spans, decide, row_logits
from debertakit.tasks.features import ExampleEncoder, TokenRow, find_labels
from debertakit.tasks.losses import cells, task_loss
from tests import tiny


def test_classes_options_values_and_sets():
    texts = [TextExample("0", "a"), TextExample("1", "b")]
    rows = [TokenRow(0, [[1]]), TokenRow(1, [[1]])]
    logits = [np.array([0.0, 2.0, 1.0]), np.array([3.0, -1.0, 0.5])]
    found = decide("single-label", texts, rows, logits, ("x", "y", "z"))
    assert [p.value for p in found] == ["y", "x"]
    assert sum(found[0].probabilities) == pytest.approx(1)
    assert [p.value for p in decide("multi-label", texts, rows, logits, ("x", "y", "z"))] == [
        ("x", "y", "z"),
        ("x", "z"),
    ]
    assert [p.value for p in decide("choice", texts, rows, [logits[0], logits[1][:2]], ())] == [1, 0]
    assert [p.value for p in decide("regression", texts, rows, [np.float32(1.5), np.float32(-2)], ())] == [1.5, -2.0]


def test_tags_are_stitched_from_windows():
    example = Tagged("0", ("a", "b", "c"))
    first, second = np.zeros((4, 2)), np.zeros((4, 2))
    first[1, 1] = first[2, 0] = second[3, 1] = 1.0
    rows = [
        TokenRow(0, [[1, 5, 6, 2]], places=np.array([[0, 1], [1, 2]])),
        TokenRow(0, [[1, 6, 6, 7]], places=np.array([[2, 3]])),
    ]
    (found,) = decide("tagging", [example], rows, [first, second], ("O", "B"))
    assert found.value == ("B", "O", "B")
    assert found.probabilities[0] == pytest.approx(np.e / (1 + np.e))


@given(values=st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50), st.booleans()), min_size=1, max_size=15))
def test_the_best_span_is_the_best_of_all(values):
    starts, ends, inside = (np.array(column) for column in zip(*values, strict=True))
    n = len(values)
    every = [
        starts[i] + ends[j]
        for i in range(n)
        for j in range(i, min(n, i + MAX_ANSWER_TOKENS))
        if inside[i] and inside[j]
    ]
    found = best_spans(starts, ends, inside)
    assert bool(found) == bool(every)
    if every:
        assert found[0][2] == max(every)
        assert [score for *_, score in found] == sorted((score for *_, score in found), reverse=True)


def question(threshold=0.0, none=(0.0, 0.0)):
    """Two windows over one context; the answer is better in the second."""
    example = Question("0", "who ?", "anna saw bob")
    places = np.array([[-1, -1], [-1, -1], [0, 4], [5, 8], [9, 12]])
    rows = [
        TokenRow(0, [[1] * 4], places=places[:4]),
        TokenRow(0, [[1] * 4], places=np.vstack([places[:2], places[3:]])),
    ]
    first = np.array([[none[0], 9.0, 1.0, 0.0], [none[0], 9.0, 1.0, 0.0]])
    second = np.array([[none[1], 9.0, 0.0, 2.0], [none[1], 9.0, 0.0, 3.0]])
    (found,) = decide("qa", [example], rows, [first, second], (), threshold)
    return found


def test_the_answer_is_the_best_of_all_windows():
    found = question()
    assert found.value == "bob"
    assert found.answers[0] == ("bob", 5.0, 9)
    assert ("anna", 2.0, 0) in found.answers
    assert found.no_answer == -5.0


def test_no_answer_has_to_win_in_every_window_and_by_the_threshold():
    assert question(none=(4.0, 0.0)).value == "bob"  # the second window does hold it
    assert question(none=(4.0, 4.0)).value == ""
    assert question(threshold=3.0, none=(4.0, 4.0)).value == "bob"
    assert question(threshold=2.9, none=(4.0, 4.0)).value == ""
    assert question(threshold=float("inf"), none=(99.0, 99.0)).value == "bob"


@pytest.mark.parametrize("kind", ["single-label", "multi-label", "regression", "tagging", "qa", "choice"])
def test_rows_come_back_in_their_order_with_their_loss(kind, tmp_path):
    tokenizer, examples = tiny.tokenizer(), tiny.examples(kind, 9)
    labels = find_labels(kind, examples)
    model = load_for_training(tiny.deberta(tmp_path), kind, labels).eval()
    rows = ExampleEncoder(kind, tokenizer, labels, 64).encode(examples).rows
    collate = Collator(tokenizer, kind)
    together, loss = row_logits(model, rows, kind, collate)
    losses, count = 0.0, 0
    for row, logits in zip(rows, together, strict=True):
        alone, _ = row_logits(model, [row], kind, collate)
        np.testing.assert_allclose(logits, alone[0], atol=1e-5)
        label = collate([row])["labels"]
        losses += float(task_loss(kind, torch.tensor(logits)[None], label))
        count += cells(label)
    assert loss == pytest.approx(losses / count, rel=1e-4)
    assert len(decide(kind, examples, rows, together, labels)) == len(examples)


def test_without_labels_there_is_no_loss(tmp_path):
    model = load_for_training(tiny.deberta(tmp_path), "regression")
    rows = ExampleEncoder("regression", tiny.tokenizer(), (), 64).encode([TextExample("0", "a film")]).rows
    logits, loss = row_logits(model, rows, "regression", Collator(tiny.tokenizer(), "regression"))
    assert np.isfinite(logits[0])
    assert np.isnan(loss)
