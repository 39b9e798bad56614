"""Losses against numpy, cell by cell."""

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, softmax

from debertakit.loading import load_for_training
from debertakit.tasks.batches import Collator
from debertakit.tasks.features import ExampleEncoder, find_labels
from debertakit.tasks.losses import cells, class_weights, divergence, task_logits, task_loss
from tests import tiny

DRAW = np.random.default_rng(0)
KINDS = ["single-label", "multi-label", "regression", "tagging", "qa", "choice"]


def symmetric_kl(p, q):
    p, q = np.asarray(p), np.asarray(q)
    return (p * np.log(p / q) + q * np.log(q / p)).sum()


def test_cross_entropy_is_a_sum_over_the_labelled_cells():
    logits = DRAW.normal(size=(2, 3, 4))
    labels = np.array([[1, -100, 0], [-100, 3, -100]])
    expected = -sum(log_softmax(logits[i, j])[labels[i, j]] for i in range(2) for j in range(3) if labels[i, j] != -100)
    found = task_loss("tagging", torch.tensor(logits), torch.tensor(labels))
    assert float(found) == pytest.approx(expected)
    assert cells(torch.tensor(labels)) == 3
    weights = np.array([0.5, 2.0, 1.0, 3.0])
    weighted = -sum(
        weights[labels[i, j]] * log_softmax(logits[i, j])[labels[i, j]]
        for i in range(2)
        for j in range(3)
        if labels[i, j] != -100
    )
    assert float(task_loss("tagging", torch.tensor(logits), torch.tensor(labels), torch.tensor(weights))) == (
        pytest.approx(weighted)
    )


def test_the_other_losses():
    z, y = DRAW.normal(size=(3, 4)), DRAW.integers(0, 2, (3, 4)).astype(float)
    expected = -(y * np.log(expit(z)) + (1 - y) * np.log(expit(-z))).sum()
    assert float(task_loss("multi-label", torch.tensor(z), torch.tensor(y))) == pytest.approx(expected)
    assert float(task_loss("regression", torch.tensor(z[0]), torch.tensor(y[0]))) == pytest.approx(
        ((z[0] - y[0]) ** 2).sum()
    )
    both, labels = DRAW.normal(size=(2, 2, 5)), np.array([[0, 3], [1, 1]])
    expected = -sum(log_softmax(both[i, j])[labels[i, j]] for i in range(2) for j in range(2))
    assert float(task_loss("qa", torch.tensor(both), torch.tensor(labels))) == pytest.approx(expected)


def test_divergence_is_the_symmetric_kl():
    a, b = DRAW.normal(size=(2, 3, 4)), DRAW.normal(size=(2, 3, 4))
    labels = torch.tensor([[1, -100, 0], [-100, 3, -100]])
    kept = (labels != -100).numpy()
    expected = sum(symmetric_kl(softmax(x), softmax(y)) for x, y in zip(a[kept], b[kept], strict=True))
    assert float(divergence("tagging", torch.tensor(a), torch.tensor(b), labels)) == pytest.approx(expected)
    z, w = a[0, 0], b[0, 0]
    expected = sum(symmetric_kl([expit(x), expit(-x)], [expit(y), expit(-y)]) for x, y in zip(z, w, strict=True))
    found = divergence("multi-label", torch.tensor(z), torch.tensor(w), torch.zeros(4))
    assert float(found) == pytest.approx(expected)
    assert float(divergence("regression", torch.tensor(z), torch.tensor(w), None)) == pytest.approx(
        ((z - w) ** 2).sum()
    )


def test_divergence_has_microsofts_gradients():
    """Microsoft's loss is a cross-entropy in each direction, with constant targets."""
    a, b = (torch.tensor(DRAW.normal(size=(3, 4)), requires_grad=True) for _ in range(2))
    ours = torch.autograd.grad(divergence("single-label", a, b, torch.zeros(3)), (a, b))
    crossed = -(a.softmax(-1).detach() * b.log_softmax(-1)).sum() - (b.softmax(-1).detach() * a.log_softmax(-1)).sum()
    for x, y in zip(ours, torch.autograd.grad(crossed, (a, b)), strict=True):
        torch.testing.assert_close(x, y)


def test_padding_and_missing_options_do_not_count():
    clean, other = torch.tensor([[0.3, 1.0, -1e4]]), torch.tensor([[0.1, 0.5, -1e4]])
    found = divergence("choice", clean, other, torch.tensor([0]))
    assert torch.isfinite(found)
    torch.testing.assert_close(found, divergence("choice", clean[:, :2], other[:, :2], torch.tensor([0])))


@pytest.mark.parametrize("make", [tiny.deberta, tiny.bert])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_an_example_do_not_depend_on_its_neighbours(kind, make, tmp_path):
    tokenizer, examples = tiny.tokenizer(), tiny.examples(kind, 4)
    labels = find_labels(kind, examples)
    model = load_for_training(make(tmp_path), kind, labels).eval()
    rows = ExampleEncoder(kind, tokenizer, labels, 64).encode(examples).rows
    collate = Collator(tokenizer, kind)
    with torch.no_grad():
        together = task_logits(model, collate(rows), kind)
        for index, row in enumerate(rows):
            alone = task_logits(model, collate([row]), kind)[0]
            in_batch = together[index]
            for axis, size in enumerate(alone.shape):
                in_batch = in_batch.narrow(axis, 0, size)
            torch.testing.assert_close(alone, in_batch, atol=1e-5, rtol=1e-4)


def test_rare_classes_weigh_more():
    assert class_weights("single-label", [0, 0, 0, 1], 2).tolist() == pytest.approx([4 / 6, 2.0])
    assert class_weights("tagging", [[-100, 0, 0], [0, 1, -100]], 2).tolist() == pytest.approx([4 / 6, 2.0])
    assert class_weights("multi-label", [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]], 2).tolist() == pytest.approx([1 / 3, 2.0])
    with pytest.raises(ValueError, match="regression"):
        class_weights("regression", [1.0], 1)
