"""A model is also an nn.Module: dtypes and moves, weights that change, hooks on its parts."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.stock import KINDS, VARIANTS, assert_same, inputs, main_outputs, own, pair, stock_twin


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-2), (torch.bfloat16, 1e-1), (torch.float64, 1e-6)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_moved_to_another_dtype_and_back(variant, dtype, tolerance):
    model, stock = pair(variant)
    with torch.no_grad():
        before = model(**inputs()).logits
        model, stock = model.to(dtype), stock.to(dtype)
        for _ in range(2):
            found = model(**inputs()).logits
            assert found.dtype == dtype
            assert found.isfinite().all()
            torch.testing.assert_close(found, stock(**inputs()).logits, atol=tolerance, rtol=0)
        if dtype is torch.float64:
            assert_same(model.float()(**inputs()).logits, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("move", ["half", "bfloat16", "double", "float"])
def test_every_head_runs_in_every_dtype(kind, move):
    model = getattr(own(kind), move)()
    mask = inputs(kind)["attention_mask"]
    found = main_outputs(kind, model(**inputs(kind)), mask)
    assert all(value.dtype == model.dtype and value.isfinite().all() for value in found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_autocast(variant):
    model, stock = pair(variant)
    with torch.no_grad():
        plain = model(**inputs()).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, expected = model(**inputs()).logits, stock(**inputs()).logits
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, atol=1e-1, rtol=0)
        assert_same(model(**inputs()).logits, plain, tolerance=0)  # nothing of autocast is kept


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_on_the_meta_device(kind):
    """Models can be built on the meta device: shapes without memory."""
    with torch.device("meta"):
        model = type(own(kind))(own(kind).config)
    assert all(weight.is_meta for weight in model.parameters())
    assert model.num_parameters() == own(kind).num_parameters()


def through_data_added(weight):
    weight.data += torch.randn(weight.shape)


def through_data_copied(weight):
    weight.data.copy_(torch.randn(weight.shape))


def through_data_replaced(weight):
    weight.data = torch.randn(weight.shape)


def through_data_one_row(weight):
    row = weight.shape[0] // 2 + 1
    weight.data[row] = torch.randn(weight.data[row].shape)


def through_data_one_element(weight):
    weight.data.view(-1)[weight.numel() // 2 + 3] += 30.0


def through_numpy(weight):
    weight.detach().numpy()[...] *= -2.0


def in_place(weight):
    with torch.no_grad():
        weight.mul_(-2.0)


def in_inference_mode(weight):
    with torch.inference_mode():
        weight.data.mul_(-2.0)


CHANGES = [
    through_data_added,
    through_data_copied,
    through_data_replaced,
    through_data_one_row,
    through_data_one_element,
    through_numpy,
    in_place,
    in_inference_mode,
]
# Everything that the projected position table is computed from, and one weight that it is not computed from.
WEIGHTS = (
    "encoder.rel_embeddings.weight",
    "encoder.LayerNorm.weight",
    "encoder.layer.0.attention.self.key_proj.weight",
    "encoder.layer.1.attention.self.query_proj.bias",
    "encoder.layer.0.output.dense.weight",
)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_evaluation_sees_every_change_of_the_weights(variant, change, weight):
    """Evaluate, change a weight without telling autograd, evaluate again: like a model that has just been built."""
    model, _ = pair(variant, "Model")
    with torch.no_grad():
        before = model(**inputs("Model")).last_hidden_state
    change(model.get_parameter(weight))
    with torch.no_grad():
        after = model(**inputs("Model")).last_hidden_state
    fresh = stock_twin(own("Model"))
    fresh.load_state_dict(model.state_dict())
    real = inputs("Model")["attention_mask"].bool()
    with torch.no_grad():
        assert_same(after[real], fresh(**inputs("Model")).last_hidden_state[real])
    assert (after - before).abs().max() > 1e-4


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_evaluation_sees_loaded_averaged_and_optimised_weights(variant):
    model, _ = pair(variant, "Model")
    other, _ = pair(variant, "Model")

    def check():
        fresh = stock_twin(own("Model"))
        fresh.load_state_dict(model.state_dict())
        real = inputs("Model")["attention_mask"].bool()
        with torch.no_grad():
            found, expected = model(**inputs("Model"))[0][real], fresh(**inputs("Model"))[0][real]
        assert_same(found, expected)
        return found

    seen = [check()]
    for weight in other.parameters():
        nn.init.normal_(weight, std=0.3)
    model.load_state_dict(other.state_dict())
    seen.append(check())
    torch._foreach_mul_([p.data for p in model.parameters()], 0.9)  # an exponential moving average
    seen.append(check())
    nn.utils.vector_to_parameters(0.7 * nn.utils.parameters_to_vector(other.parameters()).detach(), model.parameters())
    seen.append(check())
    for fused in (False, True):
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
        model(**inputs("Model")).last_hidden_state.square().mean().backward()
        optimiser.step()
        seen.append(check())
    for before, after in pairwise(seen):
        assert not torch.allclose(before, after, atol=1e-4)


def test_a_pruned_projection_is_pruned_in_the_positions_too():
    from torch.nn.utils import prune

    model, stock = pair("accelerated", "Model")
    with torch.no_grad():
        model(**inputs("Model"))
        for each in (model, stock):
            prune.l1_unstructured(each.encoder.layer[0].attention.self.key_proj, "weight", amount=0.5)
        real = inputs("Model")["attention_mask"].bool()
        assert_same(model(**inputs("Model"))[0][real], stock(**inputs("Model"))[0][real])


HOOKED = (
    "embeddings",
    "encoder",
    "encoder.layer.0",
    "encoder.layer.0.attention",
    "encoder.layer.0.attention.self",
    "encoder.layer.0.attention.output",
    "encoder.layer.0.intermediate",
    "encoder.layer.0.intermediate.dense",
    "encoder.layer.0.output",
    "encoder.layer.1",
    "encoder.layer.1.attention.self.query_proj",
)


def first_tensor(value):
    while not isinstance(value, torch.Tensor):
        value = value[0]
    return value


@pytest.mark.parametrize("name", HOOKED)
def test_hooks_on_an_accelerated_model_see_what_they_see_on_stock(name):
    model, stock = pair("accelerated", "Model")
    model, batch = copy.deepcopy(model), inputs("Model")
    real = batch["attention_mask"].bool()
    seen = []
    for each in (model, stock):
        calls = []
        part = each.get_submodule(name)
        handles = [
            part.register_forward_hook(lambda _, __, output, calls=calls: calls.append(first_tensor(output))),
            part.register_forward_pre_hook(lambda _, __, kwargs, calls=calls: calls.append(None), with_kwargs=True),
        ]
        with torch.no_grad():
            each(**batch)
        for handle in handles:
            handle.remove()
        seen.append([call for call in calls if call is not None])
        assert calls.count(None) == len(seen[-1]) > 0
    if "query_proj" in name:  # called for the words and for the positions, in an order that is nobody's business
        return
    assert len(seen[0]) == len(seen[1])
    for found, expected in zip(*seen, strict=True):
        assert found.shape == expected.shape
        assert_same(found[real], expected[real])


@pytest.mark.parametrize("name", ["encoder.layer.0", "encoder.layer.0.attention", "encoder.layer.0.output"])
def test_a_hook_on_an_accelerated_model_can_replace_the_output(name):
    """Activation patching: the value that a hook returns continues through the model."""

    def halve(_, __, output):
        return (output[0] / 2, *output[1:]) if isinstance(output, tuple) else output / 2

    model, stock = pair("accelerated", "Model")
    real = inputs("Model")["attention_mask"].bool()
    with torch.no_grad():
        before = stock(**inputs("Model"))[0][real]
        handles = [each.get_submodule(name).register_forward_hook(halve) for each in (model, stock)]
        found, expected = model(**inputs("Model"))[0][real], stock(**inputs("Model"))[0][real]
        assert_same(found, expected)
        assert (before - expected).abs().max() > 1e-3
        for handle in handles:
            handle.remove()
        assert_same(model(**inputs("Model"))[0][real], before)


@pytest.mark.parametrize("name", ["encoder.layer.0", "encoder.layer.0.attention.self", "encoder.layer.0.output"])
def test_backward_hooks_fire_on_an_accelerated_model(name):
    model, _ = pair("accelerated", "Model")
    calls = []
    model.get_submodule(name).register_full_backward_hook(lambda *_: calls.append(1))
    model(**inputs("Model")).last_hidden_state.sum().backward()
    assert calls


@pytest.mark.parametrize(
    "name", ["embeddings", "encoder.layer.0", "encoder.layer.0.attention.output", "encoder.layer.1.intermediate"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_on_our_classes_fire_once_for_each_call(kind, name):
    model = own(kind)
    calls = []
    model.base_model.get_submodule(name).register_forward_hook(lambda *_: calls.append(1))
    for number in (1, 2):
        model(**inputs(kind))
        assert len(calls) == number


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_copy_is_independent(variant, kind):
    model, _ = pair(variant, kind)
    mask = inputs(kind)["attention_mask"]
    with torch.no_grad():
        before = main_outputs(kind, model(**inputs(kind)), mask)
        twin = copy.deepcopy(model)
        for weight in twin.base_model.encoder.parameters():
            weight.mul_(-1.5)
        changed = main_outputs(kind, twin(**inputs(kind)), mask)
        assert (changed[0] - before[0]).abs().max() > 1e-3  # it reads its own weights
        assert_same(main_outputs(kind, model(**inputs(kind)), mask), before, tolerance=0)
        for weight in twin.base_model.encoder.parameters():
            weight.div_(-1.5)
        assert_same(main_outputs(kind, twin(**inputs(kind)), mask), before)
