import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from debertakit.generation.perplexity import perplexity
from debertakit.text.tokenizer_training import train_tokenizer
from tests.generation.material import writer
from tests.pretraining.material import text as sentences


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("words") / "text.txt"
    file.write_text(sentences(20), encoding="utf-8")
    return train_tokenizer(file, kind="wordpiece", vocab_size=101, progress=False)


@torch.inference_mode()
def naive(model, tokenizer, text: str, window: int, stride: int) -> float:
    """Sum the negative log-likelihood token by token, each from the first window that contains the token."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    total = 0.0
    for t, token in enumerate(ids):
        end = window if t < window else window + stride * math.ceil((t + 1 - window) / stride)
        begin = max(0, min(end, len(ids)) - window)
        context = torch.tensor([[tokenizer.cls_token_id, *ids[begin:t]]])
        total -= float(model(context).logits[0, -1].log_softmax(-1)[token])
    return total


@pytest.mark.parametrize(("window", "stride"), [(12, 5), (12, 12), (7, 1), (500, 100)])
@torch.inference_mode()
def test_windows_equal_a_token_at_a_time(tokenizer, window, stride):
    model = writer(vocab_size=len(tokenizer))
    text = sentences(1, seed=5)[:150]
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert tokens > 24
    nll = naive(model, tokenizer, text, window, stride)
    found = perplexity(model, tokenizer, text, window, stride)
    assert found.tokens == tokens
    assert found.per_token == pytest.approx(math.exp(nll / tokens), rel=1e-4)
    assert found.per_word == pytest.approx(math.exp(nll / len(text.split())), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(nll / math.log(2) / len(text.encode()), rel=1e-4)


def test_a_uniform_model_is_as_perplexed_as_its_vocabulary_is_large(tokenizer, tmp_path):
    model = writer(vocab_size=len(tokenizer))
    with torch.no_grad():
        model.deberta.embeddings.word_embeddings.weight.zero_()
        model.lm_predictions.lm_head.bias.zero_()
    file = tmp_path / "text.txt"
    file.write_text(sentences(3), encoding="utf-8")
    assert perplexity(model, tokenizer, file).per_token == pytest.approx(len(tokenizer), rel=1e-5)


def test_a_model_of_transformers_is_measured_the_same_way(tokenizer):
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape)).eval()
    text = sentences(1, seed=5)[:150]
    found = perplexity(model, tokenizer, text, 16, 4)
    assert found.per_token == pytest.approx(math.exp(naive(model, tokenizer, text, 16, 4) / found.tokens), rel=1e-4)


def test_mistakes_have_names(tokenizer):
    model = writer(vocab_size=len(tokenizer))
    with pytest.raises(ValueError, match="empty"):
        perplexity(model, tokenizer, "  ")
    with pytest.raises(ValueError, match="stride=9 must be between 1 and window=4"):
        perplexity(model, tokenizer, "the cat", 4, 9)
