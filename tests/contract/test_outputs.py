"""Outputs of our six classes and of accelerated models, compared with the stock classes."""

import inspect

import pytest
import torch

from tests.stock import (
    HEADS,
    KINDS,
    LENGTH,
    VARIANTS,
    assert_same,
    inputs,
    labels,
    main_outputs,
    own,
    pair,
    scalar,
    stock_class,
)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_has_the_signature_of_the_stock_class(kind):
    """Names, order and defaults. `return_dict` may also be taken by transformers' decorator."""

    def parameters(cls):
        found = inspect.signature(cls.forward).parameters.values()
        named = [(p.name, p.default) for p in found if p.kind is not p.VAR_KEYWORD and p.name != "return_dict"]
        return named, any(p.kind is p.VAR_KEYWORD for p in found)

    model = own(kind)
    assert parameters(type(model)) == parameters(stock_class(model))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_second_positional_argument_is_the_mask(variant, kind):
    model, stock = pair(variant, kind)
    batch = inputs(kind)
    arguments = (batch["input_ids"], batch["attention_mask"])
    expected = main_outputs(kind, stock(*arguments), arguments[1])
    assert_same(main_outputs(kind, model(*arguments), arguments[1]), expected)
    assert_same(main_outputs(kind, model(**batch), arguments[1]), expected)


@pytest.mark.parametrize("name", ["deberta-v3-base", "deberta-v2-xlarge", "deberta-base"])
@pytest.mark.parametrize("padding", ["none", "right", "left", "holes"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_have_the_same_values_under_every_padding(variant, padding, name):
    model, stock = pair(variant, "Model", name)
    batch = inputs("Model", padding)
    keep = {"output_hidden_states": True, "output_attentions": True}
    found, expected = model(**batch, **keep), stock(**batch, **keep)
    real = batch["attention_mask"].bool()
    for a, e in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert_same(a[real], e[real])
    rows = real[:, None, :, None].expand_as(expected.attentions[0])
    for a, e in zip(found.attentions, expected.attentions, strict=True):
        assert_same(a[rows], e[rows])


@pytest.mark.parametrize("name", ["deberta-v3-base", "deberta-base"])
@pytest.mark.parametrize("padding", ["right", "left", "holes"])
def test_an_accelerated_model_returns_the_stock_values_at_padding_too(padding, name):
    """Code that averages over all positions, padding included, then still gets the same mean."""
    model, stock = pair("accelerated", "Model", name)
    batch = inputs("Model", padding)
    found, expected = model(**batch, output_hidden_states=True), stock(**batch, output_hidden_states=True)
    assert_same(found.hidden_states, expected.hidden_states)
    assert_same(found.last_hidden_state.mean((0, 1)), expected.last_hidden_state.mean((0, 1)))


def test_an_accelerated_model_equals_stock_past_the_position_table():
    """Stock and Microsoft disagree about distances beyond max_position_embeddings; accelerate() follows stock."""
    shape = {"max_position_embeddings": 16, "position_buckets": 8, "vocab_size": 101}
    model, stock = pair("accelerated", "Model", **shape)
    for length in (15, 16, 17, 24, 40):
        ids = torch.randint(5, 101, (2, length))
        assert_same(model(ids).last_hidden_state, stock(ids).last_hidden_state)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_equal_stock(variant, kind):
    model, stock = pair(variant, kind)
    batch = {**inputs(kind), **labels(kind)}
    if (variant, kind) == ("own", "ForQuestionAnswering"):  # padding is left out; see the test below
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    assert_same(model(**batch).loss, stock(**batch).loss)


def test_padding_does_not_change_the_loss_of_question_answering():
    """In stock, padding takes part in the softmax over positions."""
    model, _ = pair("own", "ForQuestionAnswering")
    ids = torch.randint(1, 60, (1, 6))
    padded = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1)
    mask = (torch.arange(10) < 6).long()[None]
    answer = {"start_positions": torch.tensor([2]), "end_positions": torch.tensor([4])}
    assert_same(model(padded, mask, **answer).loss, model(ids, **answer).loss)


def test_labels_do_not_change_the_logits_of_question_answering():
    """The mask of the loss stays inside the loss."""
    model = own("ForQuestionAnswering")
    batch = inputs("ForQuestionAnswering")
    labelled = model(**batch, **labels("ForQuestionAnswering"))
    assert_same(labelled.to_tuple()[1:], model(**batch).to_tuple(), tolerance=0)


@pytest.mark.parametrize(
    ("problem", "num_labels", "targets"),
    [
        (None, 1, torch.tensor([0.5, -1.0, 2.0])),
        ("regression", 1, torch.tensor([0.5, -1.0, 2.0])),
        ("regression", 3, torch.randn(3, 3, generator=torch.Generator().manual_seed(0))),
        ("multi_label_classification", 3, torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1]])),
        ("single_label_classification", 3, torch.tensor([0, 2, 1])),
    ],
)
def test_classification_losses_of_every_problem_type_equal_stock(problem, num_labels, targets):
    model, stock = pair("own", num_labels=num_labels, problem_type=problem)
    batch = {**inputs(), "labels": targets}
    assert_same(model(**batch).loss, stock(**batch).loss)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", ["argument", "config"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tuples_have_the_entries_of_stock(variant, asked, kind):
    """loss, logits, hidden states, attentions: as many and in the same order, however they were requested."""
    requests = {"output_hidden_states": True, "output_attentions": True, "return_dict": False}
    if asked == "config":
        model, stock = pair(variant, kind, attn_implementation="eager", **requests)
        requests = {}
    else:
        model, stock = pair(variant, kind)
    batch = inputs(kind, "none")
    for extra in ({}, labels(kind)):
        found, expected = model(**batch, **extra, **requests), stock(**batch, **extra, **requests)
        assert type(found) is tuple
        assert_same(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("request_", ["output_hidden_states", "output_attentions"])
def test_dict_and_tuple_hold_the_same(kind, request_):
    model = own(kind)
    batch = {**inputs(kind), **labels(kind)}
    as_dict = model(**batch, **{request_: True})
    as_tuple = model(**batch, **{request_: True}, return_dict=False)
    assert_same(as_tuple, as_dict.to_tuple(), tolerance=0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_overrides_the_config(kind):
    model = own(kind, output_hidden_states=True, attn_implementation="eager", output_attentions=True)
    batch = inputs(kind)
    assert len(model(**batch).hidden_states) == model.config.num_hidden_layers + 1
    assert len(model(**batch).attentions) == model.config.num_hidden_layers
    quiet = model(**batch, output_hidden_states=False, output_attentions=False)
    assert quiet.hidden_states is None
    assert quiet.attentions is None


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_logits_have_the_stock_shape_in_training_and_evaluation(kind, training):
    model, stock = pair("own", kind)
    batch = {**inputs(kind), **labels(kind)}
    found, expected = model.train(training)(**batch), stock.train(training)(**batch)
    assert [x.shape for x in found.to_tuple()] == [x.shape for x in expected.to_tuple()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_embedded_words_instead_of_ids(variant, kind):
    model, stock = pair(variant, kind)
    batch = inputs(kind)
    words = model.get_input_embeddings()(batch.pop("input_ids"))
    mask = batch["attention_mask"]
    found = main_outputs(kind, model(inputs_embeds=words, **batch), mask)
    assert_same(found, main_outputs(kind, model(**inputs(kind)), mask))
    assert_same(found, main_outputs(kind, stock(inputs_embeds=words, **batch), mask))


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_reach_embedded_words(variant):
    """Attribution methods and adversarial training differentiate with respect to `inputs_embeds`."""
    grads = []
    for model in pair(variant):
        words = model.get_input_embeddings()(inputs()["input_ids"]).detach().requires_grad_()
        model(inputs_embeds=words, attention_mask=inputs()["attention_mask"], **labels("ForSequenceClassification"))[
            "loss"
        ].backward()
        grads.append(words.grad)
    assert_same(*grads)
    assert grads[0].abs().max() > 0


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"])
def test_both_or_neither_of_ids_and_embedded_words_is_refused(kind):
    model = own(kind)
    ids = inputs(kind)["input_ids"]
    with pytest.raises(ValueError, match="inputs_embeds"):
        model(ids, inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(ValueError, match="inputs_embeds"):
        model()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_sequence_does_not_depend_on_its_batch(variant, kind):
    model, _ = pair(variant, kind)
    batch = inputs(kind)
    together = model(**batch, output_hidden_states=True)
    for row in range(3):
        alone = {key: value[row : row + 1] for key, value in batch.items()}
        length = int(alone["attention_mask"].sum(-1).max())
        alone = {key: value[..., :length] for key, value in alone.items()}
        mask = alone["attention_mask"]
        found = main_outputs(kind, model(**alone), mask)
        cut = {key: together[key][row : row + 1] for key in ("logits", "start_logits", "end_logits") if key in together}
        if kind == "Model":
            cut["last_hidden_state"] = together.last_hidden_state[row : row + 1]
        if kind not in ("ForSequenceClassification", "ForMultipleChoice"):
            cut = {key: value[:, :length] for key, value in cut.items()}
        expected = list(cut.values())
        if kind not in ("ForSequenceClassification", "ForMultipleChoice"):
            expected = [value[mask.bool()] for value in expected]
        assert_same(found, expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_calls_give_equal_results(kind, variant):
    model, _ = pair(variant, kind)
    batch = {**inputs(kind), **labels(kind)}
    with torch.no_grad():
        assert torch.equal(model(**batch)[0], model(**batch)[0])
    model.train()
    losses = []
    for _ in range(2):
        torch.manual_seed(3)
        losses.append(scalar(model(**batch)))
    assert torch.equal(*losses)
    assert not torch.equal(losses[0], scalar(model(**batch)))  # dropout is on


@pytest.mark.parametrize("mask_type", [torch.bool, torch.long, torch.int32, torch.float32])
@pytest.mark.parametrize("variant", VARIANTS)
def test_masks_of_every_type(variant, mask_type):
    model, _ = pair(variant)
    batch = inputs()
    expected = model(**batch).logits
    assert_same(model(batch["input_ids"], batch["attention_mask"].to(mask_type)).logits, expected, tolerance=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_gradient_mode_gives_the_same_logits(variant, mode):
    model, stock = pair(variant)
    expected = stock(**inputs()).logits.detach()
    for _ in range(2):  # the second call may use what the first one kept
        with mode():
            found = model(**inputs()).logits
        assert_same(found.detach().clone(), expected)


def test_positions_and_segments_are_read_where_the_config_has_them():
    fields = {"type_vocab_size": 2, "position_biased_input": True}
    model, stock = pair("own", "ForTokenClassification", **fields)
    batch = inputs(padding="none")
    batch["token_type_ids"] = (torch.arange(LENGTH) > 5).long().expand(3, LENGTH)
    batch["position_ids"] = torch.arange(LENGTH).flip(0).expand(3, LENGTH)
    assert_same(model(**batch).logits, stock(**batch).logits)
    without = {key: batch[key] for key in ("input_ids", "attention_mask")}
    assert not torch.allclose(model(**batch).logits, model(**without).logits, atol=1e-3)
