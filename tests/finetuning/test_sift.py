"""Compare SiFT with its definition, computed here without a hook."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from debertakit.finetuning.options import FinetuneOptions
from debertakit.finetuning.sift import Sift, ascend, embedding_norms, perturbed_logits, watching
from debertakit.loading import load_for_training
from debertakit.tasks.batches import Collator
from debertakit.tasks.features import ExampleEncoder
from debertakit.tasks.losses import divergence, task_logits
from tests import tiny

SIFT = Sift(strength=2.0, step=0.05, init=0.02)


def batch(kind="single-label", labels=("0", "1"), count=6):
    rows = ExampleEncoder(kind, tiny.tokenizer(), labels, 64).encode(tiny.examples(kind, count)).rows
    return Collator(tiny.tokenizer(), kind)(rows)


def compare(clean, other):
    return divergence("single-label", clean, other, torch.zeros(len(clean)))


def sharp(model):
    """Draw weights so large that a small perturbation changes the output. Norms keep their weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    return model.eval()


def by_hand(model, inputs):
    """delta, and the logits there, for transformers' BERT: its parts called one by one."""
    embeddings = model.bert.embeddings
    positions = torch.arange(inputs["input_ids"].shape[1])
    x = embeddings.word_embeddings(inputs["input_ids"]) + embeddings.position_embeddings(positions)
    x = x + embeddings.token_type_embeddings(inputs["token_type_ids"])
    normal = ((x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-7).sqrt()).detach()
    mask = (1.0 - inputs["attention_mask"].float())[:, None, None] * -1e9

    def logits(n):
        hidden = F.layer_norm(n, n.shape[-1:], embeddings.LayerNorm.weight, embeddings.LayerNorm.bias, 1e-12)
        return model.classifier(model.bert.pooler(model.bert.encoder(hidden, attention_mask=mask)[0]))

    torch.manual_seed(7)
    start = (torch.randn_like(normal).clamp(-2, 2) * SIFT.init).requires_grad_()
    clean = logits(normal)
    p, q = clean.detach().log_softmax(-1), logits(normal + start).log_softmax(-1)
    loss = (p.exp() * (p - q)).sum()  # the other half of the symmetric form is constant in q
    (gradient,) = torch.autograd.grad(loss, start)
    delta = start.detach() + SIFT.step * gradient / (gradient.abs().max(-1, keepdim=True).values + 1e-6)
    return normal, start.detach(), delta, logits


def test_delta_is_the_definition(tmp_path):
    model = sharp(load_for_training(tiny.bert(tmp_path), "single-label", ("0", "1")))
    model.set_attn_implementation("eager")
    inputs = batch()
    normal, start, delta, logits = by_hand(model, inputs)
    used = []
    with watching(model) as perturbations:
        clean = task_logits(model, inputs, "single-label")

        def forward():
            used.append(perturbations[0].delta.detach().clone())
            return task_logits(model, inputs, "single-label")

        torch.manual_seed(7)
        perturbed = perturbed_logits(SIFT, perturbations, clean, forward, compare)
        torch.testing.assert_close(perturbations[0].normal, normal, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(used[0], start)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(used[1][real], delta[real], atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(perturbed, logits(normal + used[1]), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(clean, logits(normal), atol=1e-4, rtol=1e-3)  # LayerNorm(n) is LayerNorm(x)


@pytest.mark.parametrize("make", [tiny.deberta, tiny.bert])
def test_the_divergence_rises_along_delta(make, tmp_path):
    model = sharp(load_for_training(make(tmp_path), "single-label", ("0", "1")))
    inputs = batch()
    seen = []
    with watching(model) as perturbations:
        clean = task_logits(model, inputs, "single-label")

        def forward():
            logits = task_logits(model, inputs, "single-label")
            seen.append(float(compare(clean, logits).detach()))
            return logits

        perturbed_logits(SIFT, perturbations, clean, forward, compare)
    assert seen[1] > 1.5 * seen[0] > 0


@pytest.mark.parametrize("make", [tiny.deberta, tiny.bert])
def test_the_ascent_leaves_parameters_alone_and_the_words_learn_from_the_clean_pass_only(make, tmp_path):
    model = load_for_training(make(tmp_path), "single-label", ("0", "1")).train()
    inputs = batch()
    with watching(model) as perturbations:
        clean = task_logits(model, inputs, "single-label")
        perturbed = perturbed_logits(
            SIFT, perturbations, clean, lambda: task_logits(model, inputs, "single-label"), compare
        )
        assert all(parameter.grad is None for parameter in model.parameters())
        assert perturbations[0].delta is None
    compare(clean.detach(), perturbed).backward()
    words = model.base_model.embeddings.word_embeddings.weight
    assert words.grad is None or not words.grad.any()
    assert model.base_model.embeddings.LayerNorm.weight.grad.any()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_every_embedding_has_a_perturbation_of_its_own():
    class Side(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.embeddings = nn.ModuleDict({"words": nn.Embedding(9, width), "LayerNorm": nn.LayerNorm(width)})

    model = nn.ModuleDict({"left": Side(4), "right": Side(6)})
    assert len(embedding_norms(model)) == 2
    ids = torch.arange(9)

    def forward():
        sides = [side.embeddings["LayerNorm"](side.embeddings["words"](ids)) for side in model.values()]
        return torch.cat(sides, -1)

    with watching(model) as perturbations:
        clean = forward()
        seen = []

        def watched():
            seen.append([perturbation.delta for perturbation in perturbations])
            return forward()

        perturbed = perturbed_logits(SIFT, perturbations, clean, watched, compare)
    assert perturbed.shape == (9, 10)
    assert [delta.shape[-1] for delta in seen[0]] == [4, 6]
    for before, after in zip(*seen, strict=True):  # each moved, by its own gradient, and by no more than a step
        moved = (after - before).detach().abs()
        assert 0 < float(moved.max()) <= SIFT.step + 1e-6


def test_a_gradient_that_is_not_finite_moves_nothing():
    delta, gradient = torch.zeros(2, 3), torch.tensor([[1.0, float("inf"), 0.0], [0.5, -1.0, 0.0]])
    moved = ascend(delta, gradient, 0.1)
    assert moved[0].tolist() == [0, 0, 0]
    assert moved[1].tolist() == pytest.approx([0.05, -0.1, 0.0], abs=1e-6)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="has none"):
        embedding_norms(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="sift_lambda is -1; it must be >= 0"):
        FinetuneOptions(sift_lambda=-1)
