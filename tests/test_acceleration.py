import copy

import pytest
import torch
import transformers
from torch import nn

from debertakit import accelerate, undo
from tests.conftest import randomise, small


def stock(name, suffix="Model", **overrides):
    config = small(name, emd_steps=0, **overrides)
    prefix = "Deberta" if config.model_type == "deberta" else "DebertaV2"
    cls = getattr(transformers, prefix + suffix)
    return randomise(cls(cls.config_class.from_dict(config.to_dict())))


def batch():
    ids, mask = torch.randint(1, 101, (3, 20)), torch.ones(3, 20, dtype=torch.long)
    mask[1, 13:] = 0
    mask[2, :4] = 0
    return ids, mask


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v2-xlarge", "deberta-v3-base"])
def test_outputs_and_gradients_are_unchanged(name):
    model = stock(name)
    ids, mask = batch()
    results = []
    for run in (lambda m: m, accelerate, undo):
        run(model).zero_grad()
        output = model(ids, attention_mask=mask, output_hidden_states=True)
        (output.last_hidden_state * mask[..., None]).square().mean().backward()
        results.append((output, {n: p.grad.clone() for n, p in model.named_parameters()}))
    (before, grads), (fast, fast_grads), (after, _) = results
    for a, b in zip(before.hidden_states, fast.hidden_states, strict=True):
        torch.testing.assert_close(a[mask.bool()], b[mask.bool()], atol=1e-5, rtol=0)
    for key in grads:
        torch.testing.assert_close(grads[key], fast_grads[key], atol=1e-5, rtol=1e-4)
    assert torch.equal(before.last_hidden_state, after.last_hidden_state)
    assert fast.last_hidden_state[1, 13:].abs().sum() == 0  # it is our path that ran


def test_the_model_keeps_its_class_weights_and_file(tmp_path):
    model = stock("deberta-v3-base", "ForSequenceClassification")
    keys = list(model.state_dict())
    fast = accelerate(model)
    assert fast is model
    assert list(fast.state_dict()) == keys
    fast.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    ids, mask = batch()
    real = mask[:, 0].bool()
    torch.testing.assert_close(
        again(ids, attention_mask=mask).logits[real], fast(ids, attention_mask=mask).logits[real], atol=1e-5, rtol=0
    )


def test_a_model_that_holds_one_somewhere_inside():
    class Reranker(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict({"encoder": stock("deberta-v3-base")})
            self.score = nn.Linear(32, 1)

        def forward(self, ids, mask):
            return self.score(self.parts["encoder"](ids, attention_mask=mask).last_hidden_state[:, 0])

    model = Reranker().eval()
    ids, _ = batch()
    mask = torch.ones_like(ids)
    before = model(ids, mask)
    torch.testing.assert_close(accelerate(model)(ids, mask), before, atol=1e-5, rtol=0)


def test_training_with_checkpointing_and_dropout_runs_and_reproduces():
    model = accelerate(stock("deberta-v3-base")).train()
    ids, mask = batch()
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(1)
        model(ids, attention_mask=mask).last_hidden_state.square().mean().backward()
        grads.append(model.encoder.layer[0].attention.self.key_proj.weight.grad.clone())
    torch.testing.assert_close(*grads)


def test_attentions_still_come_out():
    model = stock("deberta-v3-base")
    ids, _ = batch()
    before = model(ids, output_attentions=True).attentions
    after = accelerate(copy.deepcopy(model))(ids, output_attentions=True).attentions
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_a_model_without_deberta_is_refused():
    with pytest.raises(ValueError, match="Linear holds no transformers DeBERTa encoder"):
        accelerate(nn.Linear(2, 2))
