"""Gradients, checkpointing, initialisation and training of our classes and accelerated models, compared with stock."""

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from debertakit import accelerate
from tests.stock import KINDS, VARIANTS, assert_same, inputs, labels, own, pair, scalar, stock_class

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gradients(model, batch):
    model.zero_grad()
    scalar(model(**batch)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_equal_stock(variant, kind):
    """Without padding: what stock computes at padding also reaches its gradients."""
    model, stock = pair(variant, kind, **NO_DROPOUT)
    batch = {**inputs(kind, "none"), **labels(kind)}
    found, expected = gradients(model.train(), batch), gradients(stock.train(), batch)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=2e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", ["deberta-v3-base", "deberta-v2-xlarge", "deberta-base"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_checkpointing_changes_no_gradient(variant, reentrant, name):
    model, _ = pair(variant, name=name)
    model.train()  # with dropout: the recomputed layers must draw the same masks
    batch = {**inputs(), **labels("ForSequenceClassification")}
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            assert model.is_gradient_checkpointing
        torch.manual_seed(5)
        found.append(gradients(model, batch))
    assert found[0].keys() == found[1].keys()
    for key in found[0]:
        assert_same(found[1][key], found[0][key])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_checkpointing_trains_every_head_twice(variant, kind):
    """Two steps in a row, as the Trainer does with its default `use_reentrant`; then it can be switched off."""
    model, _ = pair(variant, kind)
    model.train().gradient_checkpointing_enable()
    batch = {**inputs(kind), **labels(kind)}
    for _ in range(2):
        assert gradients(model, batch)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    assert gradients(model, batch)


@pytest.mark.parametrize("variant", VARIANTS)
def test_reentrant_checkpointing_with_frozen_embeddings(variant):
    """PEFT freezes the embeddings and calls `enable_input_require_grads`, or nothing would be recomputed."""
    model, _ = pair(variant, **NO_DROPOUT)
    for weight in model.deberta.embeddings.parameters():
        weight.requires_grad_(False)
    batch = {**inputs(), **labels("ForSequenceClassification")}
    expected = gradients(model.train(), batch)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    found = gradients(model, batch)
    assert found.keys() == expected.keys()
    for key in expected:
        assert_same(found[key], expected[key])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", ["argument", "config"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_returned_states_and_attentions_keep_their_gradients(variant, asked, kind):
    """The returned tensors are part of the graph: `retain_grad` before `backward` fills their `grad`."""
    keep = {"output_hidden_states": True, "output_attentions": True}
    if asked == "config":
        model, stock = pair(variant, kind, attn_implementation="eager", **keep)
        keep = {}
    else:
        model, stock = pair(variant, kind)
    batch = {**inputs(kind, "none"), **labels(kind)}
    found = []
    for each in (model, stock):
        output = each(**batch, **keep)
        tensors = [*output.hidden_states, *output.attentions]
        for tensor in tensors:
            tensor.retain_grad()
        scalar(output).backward()
        assert all(tensor.grad is not None for tensor in tensors)
        found.append([tensor.grad for tensor in tensors])
    assert_same(*found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_returned_states_keep_their_gradients_under_padding(variant):
    model, _ = pair(variant, "Model")
    output = model(**inputs("Model"), output_hidden_states=True, output_attentions=True)
    tensors = [*output.hidden_states, *output.attentions]
    for tensor in tensors:
        tensor.retain_grad()
    output.last_hidden_state.square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.abs().sum() > 0 for tensor in tensors)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_few_steps_lower_the_loss(variant, kind):
    model, stock = pair(variant, kind, initializer_range=0.1, **NO_DROPOUT)
    model = type(model)(model.config) if variant == "own" else accelerate(type(stock)(stock.config))
    batch = {**inputs(kind), **labels(kind)}
    optimiser = torch.optim.AdamW(model.train().parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = model(**batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [0.02, 0.5])
def test_fresh_weights_have_the_distribution_of_stock(kind, spread):
    config = own(kind, hidden_size=64, initializer_range=spread).config
    model = type(own(kind))(config)
    cls = stock_class(model)
    stock = cls(cls.config_class.from_dict(config.to_dict()))
    theirs = dict(stock.named_parameters())
    assert set(dict(model.named_parameters())) == set(theirs)
    for name, weight in model.named_parameters():
        expected = theirs[name]
        if expected.numel() == 1 or expected.std() == 0:  # zeros and ones
            assert torch.equal(weight, expected), name
        else:
            n = weight.numel()
            assert abs(float(weight.mean())) < 5 * spread / n**0.5, name
            assert float(weight.std()) == pytest.approx(spread, rel=5 / (2 * n) ** 0.5 + 0.02), name
    assert model.get_input_embeddings().weight[0].abs().sum() == 0  # padding
    assert stock.get_input_embeddings().weight[0].abs().sum() == 0


@pytest.mark.parametrize("name", ["deberta-v3-base", "deberta-base"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_second_derivatives_equal_stock(variant, name):
    """A gradient penalty: the norm of the gradient at the words is itself a loss."""
    found = []
    for model in pair(variant, name=name, **NO_DROPOUT):
        words = model.get_input_embeddings()(inputs()["input_ids"]).detach().requires_grad_()
        output = model(inputs_embeds=words, attention_mask=torch.ones(3, 12), **labels("ForSequenceClassification"))
        (first,) = torch.autograd.grad(output.loss, words, create_graph=True)
        model.zero_grad()
        first.square().sum().backward()
        found.append([p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None])
    assert_same(*found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_per_example_gradients_with_vmap_equal_stock(variant):
    """Differential privacy and influence functions: one gradient for each example of a batch."""
    batch = {**inputs(padding="none"), **labels("ForSequenceClassification")}
    found = []
    for model in pair(variant, **NO_DROPOUT):
        weights = {name: p.detach() for name, p in model.named_parameters()}

        def loss(weights, ids, mask, label, model=model):
            logits = functional_call(model, weights, (ids[None], mask[None])).logits
            return F.cross_entropy(logits, label[None])

        found.append(vmap(grad(loss), in_dims=(None, 0, 0, 0))(weights, *batch.values()))
    ours, theirs = found
    for key in theirs:
        assert_same(ours[key], theirs[key])
        assert ours[key].shape[0] == 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_functional_gradients_equal_autograd(variant):
    model, _ = pair(variant, **NO_DROPOUT)
    batch = {**inputs(), **labels("ForSequenceClassification")}
    weights = {name: p.detach() for name, p in model.named_parameters()}
    found = grad(lambda w: functional_call(model, w, (), batch).loss)(weights)
    expected = gradients(model, batch)
    for key in expected:
        assert_same(found[key], expected[key])


@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_mode_derivatives_equal_stock(variant):
    found = []
    for model in pair(variant, **NO_DROPOUT):
        words = model.get_input_embeddings()(inputs()["input_ids"]).detach()
        direction = torch.randn(words.shape, generator=torch.Generator().manual_seed(2))
        _, tangent = jvp(lambda w, model=model: model(inputs_embeds=w).logits, (words,), (direction,))
        found.append(tangent.detach())
    assert_same(*found)


def test_num_items_in_batch_scales_the_masked_lm_loss():
    """The Trainer passes the number of labels of all accumulated batches."""
    model = own("ForMaskedLM")
    batch = {**inputs("ForMaskedLM"), **labels("ForMaskedLM")}
    counted = int((batch["labels"] != -100).sum())
    assert_same(model(**batch, num_items_in_batch=2 * counted).loss, model(**batch).loss / 2)
