"""Scores of causal, permuted and discriminating models equal slow computations, one token and one text at a time."""

import json
import math

import pytest
import torch
import transformers

from debertakit.generation.causal import DebertaForCausalLM
from debertakit.heads import DebertaForMaskedLM, DebertaForReplacedTokenDetection
from debertakit.lab.language_models import LanguageModel, Question, answer, open_language_model, text_scores
from tests.models import randomise, small, word_tokenizer

WORDS = "the cat cats dog dogs sees see likes a house red old every child".split()
SENTENCES = ["the cat sees a house", "the cats see the old red house", "cat", "the zebra see", "the cat sees a house"]
SHAPE = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(WORDS)


def scored_places(tokenizer, ids: list[int]) -> list[int]:
    return [place for place, token in enumerate(ids) if token not in tokenizer.all_special_ids]


def gpt2(tokenizer) -> transformers.GPT2LMHeadModel:
    return randomise(transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(tokenizer), **SHAPE)))


def xlnet(tokenizer) -> transformers.XLNetLMHeadModel:
    shape = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "mem_len": None}
    return randomise(transformers.XLNetLMHeadModel(transformers.XLNetConfig(vocab_size=len(tokenizer), **shape)))


@pytest.mark.parametrize("family", ["gpt2", "deberta"])
@torch.inference_mode()
def test_a_causal_model_reads_from_left_to_right(tokenizer, family):
    ours = DebertaForCausalLM(small(vocab_size=len(tokenizer), emd_steps=0))
    model = gpt2(tokenizer) if family == "gpt2" else randomise(ours)
    expected = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence)["input_ids"]
        steps = [model(input_ids=torch.tensor([ids[:place]])).logits[0, -1] for place in scored_places(tokenizer, ids)]
        truth = [ids[place] for place in scored_places(tokenizer, ids)]
        expected.append(sum(float(s.log_softmax(-1)[token]) for s, token in zip(steps, truth, strict=True)))
    assert text_scores(LanguageModel("causal", model, tokenizer), SENTENCES) == pytest.approx(expected, abs=1e-4)


@torch.inference_mode()
def test_xlnet_does_not_see_the_hidden_tokens(tokenizer):
    model = xlnet(tokenizer)
    ids = tokenizer("the cats see the old red house")["input_ids"]
    hidden = (3, 4)
    unseen, targets = torch.zeros(1, len(ids), len(ids)), torch.zeros(1, 2, len(ids))
    unseen[0, :, list(hidden)] = 1.0
    targets[0, [0, 1], list(hidden)] = 1.0
    inputs = {"input_ids": torch.tensor([ids]), "perm_mask": unseen, "target_mapping": targets}
    logits = model(**inputs, token_type_ids=torch.zeros(1, len(ids), dtype=torch.long)).logits[0]
    expected = sum(float(row.log_softmax(-1)[ids[place]]) for row, place in zip(logits, hidden, strict=True))
    opened = LanguageModel("permuted", model, tokenizer)
    (found,) = answer(opened, [Question(tuple(ids), hidden)])
    assert found.log_probability == pytest.approx(expected, abs=1e-4)
    other = list(ids)
    other[3] = tokenizer.convert_tokens_to_ids("cat")  # another hidden token: the prediction at 4 stays the same
    same = [answer(opened, [Question(tuple(each), hidden)])[0].log_probability for each in (ids, other)]
    moved = float(logits[0].log_softmax(-1)[other[3]] - logits[0].log_softmax(-1)[ids[3]])
    assert same[1] - same[0] == pytest.approx(moved, abs=1e-4)


@pytest.mark.parametrize("family", ["electra", "deberta"])
@torch.inference_mode()
def test_a_discriminator_says_that_all_tokens_are_original(tokenizer, family):
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    electra = transformers.ElectraConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **shape)
    ours = DebertaForReplacedTokenDetection(small(vocab_size=len(tokenizer), emd_steps=0))
    model = randomise(transformers.ElectraForPreTraining(electra) if family == "electra" else ours)
    expected = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence)["input_ids"]
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        expected.append(-sum(math.log1p(math.exp(float(logits[place]))) for place in scored_places(tokenizer, ids)))
    opened = LanguageModel("detector", model, tokenizer)
    assert text_scores(opened, SENTENCES) == pytest.approx(expected, abs=1e-4)


def test_every_token_of_a_hidden_word_is_masked(tokenizer):
    model = randomise(DebertaForMaskedLM(small(vocab_size=len(tokenizer), emd_steps=2)))
    ids = tokenizer("the cats see the old red house")["input_ids"]
    masked = torch.tensor([ids])
    masked[0, [2, 5]] = tokenizer.mask_token_id
    with torch.inference_mode():
        logits = model(input_ids=masked).logits[0, [2, 5]]
    (found,) = answer(LanguageModel("masked", model, tokenizer), [Question(tuple(ids), (2, 5))])
    truth = torch.tensor([ids[2], ids[5]])
    expected = float(logits.log_softmax(-1)[[0, 1], truth].sum())
    assert found.log_probability == pytest.approx(expected, abs=1e-4)
    best = list(ids)
    best[2], best[5] = logits.argmax(-1).tolist()
    hits = [
        answer(LanguageModel("masked", model, tokenizer), [Question(tuple(each), (2, 5))])[0].right
        for each in (ids, best)
    ]
    assert hits == [torch.equal(logits.argmax(-1), truth), True]


def test_the_kind_of_a_folder(tokenizer, tmp_path):
    config = small(vocab_size=len(tokenizer), emd_steps=0)
    models = {
        "masked": DebertaForMaskedLM(config),
        "permuted": xlnet(tokenizer),
        "causal": gpt2(tokenizer),
        "detector": DebertaForReplacedTokenDetection(config),
    }
    for kind, model in models.items():
        model.save_pretrained(tmp_path / kind)
        tokenizer.save_pretrained(tmp_path / kind)
        assert open_language_model(tmp_path / kind).kind == kind
    runs = {"arlm": "causal", "prefix": "causal", "plm": "permuted", "mlm": "masked"}  # tiny-ar, tiny-prefix, ...
    for objective, kind in runs.items():
        weights = {"mlm": 0.0, "arlm": 0.0, objective: 1.0}
        (tmp_path / "masked" / "run.json").write_text(json.dumps({"objectives": weights}))
        assert open_language_model(tmp_path / "masked").kind == kind
