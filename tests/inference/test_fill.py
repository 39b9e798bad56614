import pytest
import torch
from transformers import pipeline

from debertakit.heads import DebertaForMaskedLM
from debertakit.inference.fill import fill_mask
from tests.models import small, word_tokenizer

WORDS = "a new store mall opened beside the old".split()


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(WORDS)


@pytest.fixture(scope="module")
def model(tokenizer):
    """Overfit the paper's example sentence, in which the two masks differ only in position."""
    torch.manual_seed(0)
    config = small(vocab_size=len(tokenizer) + 7, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = DebertaForMaskedLM(config).train()
    whole = tokenizer("a new store opened beside the new mall", return_tensors="pt")["input_ids"]
    masked, labels = whole.clone(), torch.full_like(whole, -100)
    for at in (3, 8):
        masked[0, at], labels[0, at] = tokenizer.mask_token_id, whole[0, at]
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(60):
        optimiser.zero_grad()
        model(masked, labels=labels).loss.backward()
        optimiser.step()
    return model.eval()


TEXT = "a new [MASK] opened beside the new [MASK]"


def test_each_mask_gets_its_word(model, tokenizer):
    first, second = fill_mask(TEXT, model, tokenizer, top=3)
    assert [c.token for c in (first[0], second[0])] == ["store", "mall"]
    assert first[0].probability > 0.5
    assert first[0].text == "a new store opened beside the new [MASK]"
    assert len(first) == 3
    assert all(c.token_id < len(tokenizer) for c in first)  # never an unused embedding row beyond the vocabulary


def test_transformers_pipeline_says_the_same(model, tokenizer):
    piped = pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=1)(TEXT)
    assert [answers[0]["token_str"] for answers in piped] == ["store", "mall"]
    ours = fill_mask(TEXT, model, tokenizer, top=1)
    assert abs(piped[0][0]["score"] - ours[0][0].probability) < 1e-5


@pytest.mark.parametrize(("text", "message"), [("", "empty"), ("   ", "empty"), ("a new store", r"no \[MASK\]")])
def test_texts_that_cannot_be_filled(text, message, model, tokenizer):
    with pytest.raises(ValueError, match=message):
        fill_mask(text, model, tokenizer)


def test_the_filled_text_is_the_users_own(model, tokenizer):
    (mask,) = fill_mask("A  New\n[MASK] opened, (beside) the mall", model, tokenizer, top=1)
    assert mask[0].text == f"A  New\n{mask[0].token} opened, (beside) the mall"
