"""torch.compile around our classes and accelerated models."""

import pytest
import torch

from tests.stock import KINDS, VARIANTS, assert_same, inputs, labels, main_outputs, own, pair, scalar

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_whole_graph(variant):
    """`fullgraph=True` refuses a graph break, such as a decision that depends on the values of the mask."""
    model, stock = pair(variant, "ForTokenClassification", num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for padding in ("none", "right", "left", "holes"):
        batch = inputs(padding=padding)
        real = batch["attention_mask"].bool()
        with torch.no_grad():
            assert_same(compiled(**batch).logits[real], stock(**batch).logits[real])


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_is_one_whole_graph(kind):
    model = own(kind, num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    mask = inputs(kind)["attention_mask"]
    with torch.no_grad():
        expected = main_outputs(kind, model(**inputs(kind)), mask)
        assert_same(main_outputs(kind, compiled(**inputs(kind)), mask), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_lengths_vary_without_a_recompilation_for_each(variant):
    model, stock = pair(variant, num_hidden_layers=1)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
    with torch.no_grad():
        for length in (5, 8, 12, 9, 11, 7):
            batch = {key: value[:, :length] for key, value in inputs().items()}
            assert_same(compiled(**batch).logits, stock(**batch).logits)
    assert counter.frame_count <= 2


def test_compiled_training_has_the_gradients_of_stock():
    model, stock = pair("own", num_hidden_layers=1, **NO_DROPOUT)
    batch = {**inputs(padding="none"), **labels("ForSequenceClassification")}
    compiled = torch.compile(model.train(), backend="aot_eager")
    scalar(compiled(**batch)).backward()
    scalar(stock.train()(**batch)).backward()
    for name, weight in stock.named_parameters():
        assert_same(model.get_parameter(name).grad, weight.grad)


def test_the_inductor_gives_the_same_numbers():
    """Generated C++ code, of a single layer to keep the compiler quick."""
    model, stock = pair("own", num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        for padding in ("right", "none"):
            assert_same(compiled(**inputs(padding=padding)).logits, stock(**inputs(padding=padding)).logits)
