import copy
import subprocess
import sys
import types

import pytest
import torch
import transformers
from torch import nn

from debertakit import DebertaModel, accelerate, undo
from debertakit.acceleration import AcceleratedForward
from tests.models import randomise, small


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
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)  # at padding too
    for key in grads:
        torch.testing.assert_close(grads[key], fast_grads[key], atol=1e-5, rtol=1e-4)
    assert torch.equal(before.last_hidden_state, after.last_hidden_state)
    assert not torch.equal(before.last_hidden_state, fast.last_hidden_state)  # rounding differs, so our path ran


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


@pytest.mark.parametrize("padded", [False, True])
def test_attentions_still_come_out(padded):
    model = stock("deberta-v3-base")
    ids, mask = batch()
    mask = mask if padded else torch.ones_like(ids)
    before = model(ids, mask, output_attentions=True).attentions
    after = accelerate(copy.deepcopy(model))(ids, mask, output_attentions=True).attentions
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [513, 700])
def test_past_512_tokens_the_distance_rule_is_the_one_asked_for(length):
    """For distances below -511, stock reads row 0; Microsoft clamps them to row 1."""
    model = stock("deberta-v3-base", num_hidden_layers=1)
    ids = torch.randint(1, 101, (1, length))
    with torch.no_grad():
        before = model(ids).last_hidden_state
        torch.testing.assert_close(accelerate(model)(ids).last_hidden_state, before, atol=1e-5, rtol=0)
        clamped = accelerate(model, clamp_distances=True)(ids).last_hidden_state
        ours = DebertaModel(small(emd_steps=0, num_hidden_layers=1)).eval()
        ours.load_state_dict(model.state_dict())
        torch.testing.assert_close(clamped, ours(ids).last_hidden_state, atol=1e-5, rtol=0)
    if length == 700:  # at length 513, only one pair of tokens differs
        assert not torch.allclose(clamped, before, atol=1e-3)


@pytest.mark.slow
def test_a_saved_accelerated_model_is_a_stock_model(tmp_path):
    """torch.save stores no reference to this package; a copy in memory stays accelerated."""
    model = accelerate(stock("deberta-v3-base"))
    torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys; sys.modules['debertakit'] = None\n"
        "import torch\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "print(model(torch.arange(1, 9)[None]).last_hidden_state.shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "torch.Size([1, 8, 32])" in done.stdout, done.stderr
    twin = copy.deepcopy(model)
    assert isinstance(twin.encoder.forward, AcceleratedForward)
    assert twin.encoder.forward.encoder is twin.encoder


def test_hooks_see_what_they_see_in_stock():
    model = accelerate(stock("deberta-v3-base"))
    ids, mask = batch()
    shapes = []
    hook = model.encoder.layer[1].attention.self.register_forward_hook(
        lambda _, __, output: shapes.append(output[0].shape)
    )
    model(ids, attention_mask=mask)
    hook.remove()
    model(ids, attention_mask=mask)
    assert shapes == [(3, 20, 32)]


def test_an_object_that_holds_a_model_in_an_attribute():
    model = stock("deberta-v3-base")
    holder = types.SimpleNamespace(model=model, tokenizer=None)
    assert accelerate(holder) is holder
    assert isinstance(model.encoder.forward, AcceleratedForward)
    undo(holder)
    assert "forward" not in vars(model.encoder)


def test_a_model_without_deberta_is_refused():
    with pytest.raises(ValueError, match="Linear holds no transformers DeBERTa encoder"):
        accelerate(nn.Linear(2, 2))
