"""PEFT adapters on our classes and on accelerated models, compared with the same adapters on stock models."""

import copy

import pytest
import torch

from debertakit import accelerate
from tests.clients.material import client
from tests.stock import HEADS, VARIANTS, assert_same, inputs, labels, own, pair, stock_twin

peft = client("peft")

TARGETS = {"target_modules": ["query_proj", "key_proj", "value_proj"]}
LORA = {"r": 4, "init_lora_weights": False, **TARGETS}
METHODS = {
    "lora": lambda: peft.LoraConfig(task_type="SEQ_CLS", **LORA),
    "dora": lambda: peft.LoraConfig(task_type="SEQ_CLS", use_dora=True, **LORA),
    "lora on every linear layer": lambda: peft.LoraConfig(
        task_type="SEQ_CLS", r=4, init_lora_weights=False, target_modules="all-linear"
    ),
    "ia3": lambda: peft.IA3Config(
        task_type="SEQ_CLS",
        target_modules=["key_proj", "value_proj", "output.dense"],
        feedforward_modules=["output.dense"],
        init_ia3_weights=False,
    ),
    "prompt": lambda: peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
    "p-tuning": lambda: peft.PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=4, encoder_hidden_size=16),
}
TASKS = {
    "ForMaskedLM": None,
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForMultipleChoice": None,
}


def logits(model):
    with torch.no_grad():
        return model.eval()(**inputs()).logits


def wrapped_pair(variant, config, **fields):
    """The same adapter on the model under test and on stock."""
    model, stock = pair(variant, **fields)
    model, stock = (peft.get_peft_model(each, config()) for each in (model, stock))
    # An adapter may begin as the identity; make it visible, and equal on both.
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight.data, std=0.3)
            stock.get_parameter(name).data.copy_(weight.data)
    return model, stock


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_with_an_adapter_equal_stock(variant, method):
    model, stock = wrapped_pair(variant, METHODS[method])
    assert_same(logits(model), logits(stock))
    plain = logits(own("ForSequenceClassification"))
    assert (logits(model) - plain).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_of_an_adapter_equal_stock(variant, method):
    model, stock = wrapped_pair(variant, METHODS[method], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = {**inputs(padding="none"), **labels("ForSequenceClassification")}
    found = []
    for each in (model, stock):
        each.train()(**batch).loss.backward()
        found.append({name: p.grad for name, p in each.named_parameters() if p.grad is not None})
    ours, theirs = found
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert_same(ours[name], theirs[name])


@pytest.mark.parametrize("kind", HEADS)
def test_lora_trains_on_every_head(kind):
    model = type(own(kind))(own(kind, initializer_range=0.2).config)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type=TASKS[kind], **LORA))
    batch = {**inputs(kind), **labels(kind)}
    optimiser = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=3e-2)
    losses = []
    for _ in range(6):
        loss = wrapped.eval()(**batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_a_wrapped_model_can_be_accelerated_afterwards():
    stock = peft.get_peft_model(stock_twin(own("ForSequenceClassification")), METHODS["lora"]())
    before = logits(stock)
    assert_same(logits(accelerate(stock)), before)


@pytest.mark.parametrize("method", ["lora", "dora", "ia3"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_merged_adapter_is_seen_after_an_evaluation(variant, method):
    """PEFT merges by writing to `.data`. Position projections that an evaluation kept would then be stale."""
    model, stock = wrapped_pair(variant, METHODS[method])
    base, adapted = logits(own("ForSequenceClassification")), logits(model)
    with model.disable_adapter():
        assert_same(logits(model), base)
    merged = model.merge_and_unload()
    assert_same(logits(merged), logits(stock.merge_and_unload()))
    assert_same(logits(merged), adapted, tolerance=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_merging_and_unmerging_in_place(variant):
    model, stock = wrapped_pair(variant, METHODS["lora"])
    before = logits(model)
    for change in ("merge_adapter", "unmerge_adapter", "merge_adapter"):
        for each in (model, stock):
            getattr(each, change)()
        assert_same(logits(model), logits(stock))
        assert_same(logits(model), before, tolerance=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_evaluate_then_load_an_adapter_then_merge(variant, tmp_path):
    """Evaluate first, so that everything that can be cached is cached."""
    trained, _ = wrapped_pair(variant, METHODS["lora"])
    trained.save_pretrained(tmp_path)
    model, stock = pair(variant)
    before = logits(model)
    merged = peft.PeftModel.from_pretrained(model, tmp_path).merge_and_unload()
    expected = logits(peft.PeftModel.from_pretrained(stock, tmp_path).merge_and_unload())
    assert_same(logits(merged), expected)
    assert (expected - before).abs().max() > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_several_adapters_are_switched_and_combined(variant):
    def lora():
        return peft.LoraConfig(**LORA)

    model, stock = wrapped_pair(variant, lora)
    for each in (model, stock):
        torch.manual_seed(7)
        each.add_adapter("second", lora())
    seen = []
    for name in ("default", "second", "default"):
        for each in (model, stock):
            each.set_adapter(name)
        seen.append(logits(model))
        assert_same(seen[-1], logits(stock))
    assert (seen[0] - seen[1]).abs().max() > 1e-3
    assert_same(seen[0], seen[2], tolerance=0)
    for each in (model, stock):
        each.add_weighted_adapter(["default", "second"], [0.5, 0.5], "mean", combination_type="linear")
        each.set_adapter("mean")
    assert_same(logits(model), logits(stock))
    for each in (model, stock):
        each.delete_adapter("second")
    assert_same(logits(model), logits(stock))


def test_an_adapter_saved_on_our_class_loads_on_stock(tmp_path):
    model, _ = wrapped_pair("own", METHODS["lora"])
    model.save_pretrained(tmp_path)
    stock = peft.PeftModel.from_pretrained(stock_twin(own("ForSequenceClassification")), tmp_path)
    assert_same(logits(stock), logits(model))


def test_transformers_own_adapter_methods():
    """`model.add_adapter` of transformers, without a PeftModel around it."""
    model, stock = pair("own")
    for each in (model, stock):
        torch.manual_seed(7)
        each.add_adapter(peft.LoraConfig(**LORA), adapter_name="first")
    assert_same(logits(model), logits(stock))
    base = logits(own("ForSequenceClassification"))
    model.disable_adapters()
    assert_same(logits(model), base)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_lora_with_gradient_checkpointing(variant, reentrant):
    model, _ = wrapped_pair(variant, METHODS["lora"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = {**inputs(), **labels("ForSequenceClassification")}
    plain = copy.deepcopy(model)
    plain.train()(**batch).loss.backward()
    model.base_model.model.enable_input_require_grads()
    model.base_model.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model.train()(**batch).loss.backward()
    for name, weight in plain.named_parameters():
        if weight.grad is not None:
            assert_same(model.get_parameter(name).grad, weight.grad)
