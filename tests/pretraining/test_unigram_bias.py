"""The output bias starts at the log frequency of the tokens, in every family, and only in a run from random weights."""

import numpy as np
import pytest
import torch

from debertakit.pretraining import state
from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import evaluate, make_run, pretrain, train_step
from debertakit.pretraining.recipes import recipe
from debertakit.pretraining.settings import override
from tests.pretraining.material import config, cut_short, same, weights

ON = "unigram_bias=true"
FAMILY = [
    "tiny",
    "v1-tiny",
    "tiny-d",
    "v3-tiny",
    "bert-tiny",
    "roberta-tiny",
    "albert-tiny",
    "xlnet-tiny",
    "electra-tiny",
]


def frequencies(corpus, size: int) -> torch.Tensor:
    counts = np.zeros(size)
    for i in range(len(corpus.train)):
        for token in corpus.train.document(i)[0]:
            counts[token] += 1
    counts[corpus.train.vocabulary["special"]] = 0
    return torch.from_numpy((counts + 1) / (counts.sum() + size)).float()


def test_token_counts(corpus):
    documents = [corpus.validation.document(i)[0] for i in range(len(corpus.validation))]
    expected = np.bincount(np.concatenate(documents), minlength=corpus.train.vocabulary["size"])
    assert (corpus.validation.token_counts() == expected).all()


@pytest.mark.parametrize("name", FAMILY)
def test_every_family_starts_at_the_unigram_distribution(corpus, tokenizer, name):
    """Without hidden states, the head's logits are its bias: the softmax of the bias is the distribution."""
    changes = ["data.max_length=32", "data.step_tokens=256", "data.micro_tokens=256", "precision=fp32", ON]
    run = make_run(override(recipe(name), changes), corpus, tokenizer, World())
    words = list(run.module.models.values())[-1]  # RTD: the generator
    family_head = run.module.generator_backbone if "v3" in name or "electra" in name else run.module.backbone
    with torch.no_grad():
        for parameter in words.parameters():
            if parameter.dim() > 1:
                parameter.zero_()
        logits = family_head.word_logits(torch.zeros(1, words.config.hidden_size))[0]
    assert torch.allclose(logits.softmax(-1), frequencies(corpus, len(logits)), atol=1e-6)


def test_a_table_larger_than_the_vocabulary(corpus, tokenizer):
    run = make_run(config("model.vocab_size=200", ON), corpus, tokenizer, World())
    bias = run.module.model.lm_predictions.lm_head.bias
    assert torch.allclose(bias.exp(), frequencies(corpus, 200))
    assert bias[len(tokenizer) :].unique().numel() == 1


def test_the_first_loss_is_that_of_a_unigram_guess(corpus, tokenizer):
    off, on = (make_run(config(f"unigram_bias={value}"), corpus, tokenizer, World()) for value in ("false", "true"))
    assert evaluate(on)["loss"] < evaluate(off)["loss"] - 0.3
    others = [name for name in off.module.state_dict() if "lm_head.bias" not in name]
    ours, theirs = on.module.state_dict(), off.module.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in others)  # the other weights are not changed


def test_a_resumed_run_is_exact(corpus, tokenizer, tmp_path, monkeypatch):
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    pretrain(config(ON), corpus, tokenizer, whole)
    with monkeypatch.context() as patched:
        cut_short(patched, 8)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config(ON), corpus, tokenizer, halved)
    pretrain(config(ON), corpus, tokenizer, halved, resume=True)
    assert same(weights(whole), weights(halved))


def test_a_run_from_a_checkpoint_keeps_its_bias(corpus, tokenizer, tmp_path):
    first = make_run(config(), corpus, tokenizer, World())
    train_step(first, 0.0)
    folder = state.save(tmp_path, first.module, first.optimizer, first.progress, World(), tokenizer, config().to_json())
    again = make_run(config(ON, f"init={folder}"), corpus, tokenizer, World())
    name = "model.lm_predictions.lm_head.bias"
    assert torch.equal(again.module.state_dict()[name], first.module.state_dict()[name])


def test_a_head_without_a_bias_is_refused(corpus, tokenizer):
    with pytest.raises(ValueError, match="gpt2 has no bias; set unigram_bias=false"):
        make_run(override(recipe("gpt2-tiny"), [ON]), corpus, tokenizer, World())


def test_other_masks_are_also_evaluated_with_token_masks(corpus, tokenizer):
    """The figures of runs with different masks compare: same tokens, same masks."""
    ngrams = make_run(config(), corpus, tokenizer, World())
    tokens = make_run(
        config("masking.strategy=token", "masking.rate=0.4", "masking.final_rate=0.15"), corpus, tokenizer, World()
    )
    found, expected = evaluate(ngrams), evaluate(tokens)
    assert found["token_mask_loss"] == expected["loss"] != found["loss"]
    assert found["token_mask_accuracy"] == expected["accuracy"]
    assert "token_mask_loss" not in expected  # its own masks, at the end of the schedule, are these
    assert ngrams.progress.validation == found["loss"]


@pytest.mark.parametrize("name", ["v3-tiny", "tiny-mt"])
def test_token_masks_with_several_losses(corpus, tokenizer, name):
    run = make_run(config("masking.mask=1", "masking.random=0", name=name), corpus, tokenizer, World())
    standard = make_run(
        config("masking.strategy=token", "masking.mask=0.8", "masking.random=0.1", name=name),
        corpus,
        tokenizer,
        World(),
    )
    assert evaluate(run)["token_mask_loss"] == pytest.approx(evaluate(standard)["mlm_loss"])


def test_a_model_without_masked_words_has_no_such_loss(corpus, tokenizer):
    assert "token_mask_loss" not in evaluate(
        make_run(config("objectives.mlm=0", "objectives.arlm=1"), corpus, tokenizer, World())
    )
