"""Integrated gradients: completeness, and a model whose answer has a known cause."""

import pytest
import torch

from debertakit.explain.attribution import attribute
from debertakit.explain.options import Inputs, Outputs
from debertakit.explain.outputs import make_outputs
from debertakit.heads import DebertaForSequenceClassification
from debertakit.loading import TaskSettings
from tests.explain.material import TEXT
from tests.models import randomise, small

pytest.importorskip("captum")


def test_scores_sum_to_the_change_of_the_logit(tokenizer):
    model = randomise(DebertaForSequenceClassification(small()))
    model.classifier.weight.data.mul_(30)
    found = attribute(model, tokenizer, TEXT, "the mall", label=1, steps=200)
    assert len(found.scores) == len(found.tokens) == 13
    ids = tokenizer(TEXT, "the mall", return_tensors="pt")["input_ids"]
    blank = torch.where(ids < 3, ids, 0)  # words gone, [CLS] and [SEP] there
    with torch.no_grad():
        change = model(ids).logits[0, 1] - model(blank).logits[0, 1]
    assert found.change == pytest.approx(float(change), abs=1e-5)
    assert abs(found.change) > 0.01
    assert abs(found.error) < 0.01 * abs(found.change)
    assert all(found.scores[i] == 0 for i in (0, 9, 12))  # special tokens are the same in both


def test_the_word_that_decides_gets_the_score(tokenizer):
    """The model is trained to detect a single word."""
    torch.manual_seed(0)
    config = small(num_labels=2, num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = DebertaForSequenceClassification(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    words = torch.randint(4, 12, (64, 10))
    words[:, 0] = 1
    labels = (words == tokenizer.convert_tokens_to_ids("store")).any(1).long()
    for _ in range(60):
        optimiser.zero_grad()
        model(words, labels=labels).loss.backward()
        optimiser.step()
    found = attribute(model, tokenizer, TEXT, label=1)
    assert max(zip(found.scores, found.tokens, strict=True))[1] == "store"


def test_a_text_is_read_up_to_the_stored_length(tokenizer, tmp_path):
    DebertaForSequenceClassification(small()).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    TaskSettings(max_length=6).save(tmp_path)
    lines = make_outputs([str(tmp_path)], [TEXT], Inputs(), Outputs(attribution=True))
    assert [line.split()[-1] for line in lines[1:]] == ["[CLS]", "a", "new", "store", "opened", "[SEP]"]


def test_labels_that_are_not_there(tokenizer):
    model = DebertaForSequenceClassification(small())
    with pytest.raises(ValueError, match="no label 7; it has 0 to 2"):
        attribute(model, tokenizer, TEXT, label=7)
