"""Parts against stock transformers and against the definition of the shares."""

from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from debertakit.explain.parts import (
    Anatomy,
    Subject,
    cells,
    encode,
    look,
    patterns,
    profile,
    shares,
    take_apart,
    token_texts,
)
from debertakit.heads import DebertaForSequenceClassification
from debertakit.model import DebertaModel
from tests.explain.material import TEXT, random_anatomy
from tests.models import SPECIALS, randomise, small, word_tokenizer, wrap


@pytest.mark.parametrize("variant", ["deberta-base", "deberta-v3-base", "deberta-v2-xlarge"])
def test_parts_sum_to_the_scores_and_their_softmax_is_the_attention(variant, tokenizer):
    subject = Subject("tiny", randomise(DebertaForSequenceClassification(small(variant))), tokenizer)
    anatomy = take_apart(subject, TEXT, "the mall")
    assert anatomy.tokens == ["[CLS]", *TEXT.split(), "[SEP]", "the", "mall", "[SEP]"]
    assert list(anatomy.parts) == ["c2c", "c2p", "p2c"]
    assert all(part.shape == (2, 2, 13, 13) for part in [anatomy.attention, *anatomy.parts.values()])
    scores = torch.tensor(sum(anatomy.parts.values()))
    np.testing.assert_allclose(scores.softmax(-1).numpy(), anatomy.attention, atol=1e-5)


@pytest.mark.parametrize("kind", ["Deberta", "DebertaV2"])
def test_attention_is_that_of_stock_transformers(kind, tokenizer):
    ours = randomise(DebertaModel(small("deberta-base" if kind == "Deberta" else "deberta-v3-base", emd_steps=0)))
    config = getattr(transformers, f"{kind}Config").from_dict(ours.config.to_dict())
    stock = getattr(transformers, f"{kind}Model")(config).eval()
    stock.load_state_dict(ours.state_dict())
    encoded = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        expected = stock(encoded["input_ids"], output_attentions=True).attentions
    given = take_apart(Subject("ours", ours, tokenizer), TEXT)
    np.testing.assert_allclose(given.attention, torch.cat(expected).numpy(), atol=1e-5)
    np.testing.assert_allclose(
        torch.tensor(sum(given.parts.values())).softmax(-1).numpy(), torch.cat(expected).numpy(), atol=1e-5
    )


def test_other_encoders_have_attention_alone(tokenizer, tmp_path):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=50, **shape))
    bert.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    anatomy = take_apart(Subject.load(tmp_path / "bert"), TEXT)
    assert anatomy.model == "bert"
    assert anatomy.attention.shape == (3, 4, 10, 10)
    np.testing.assert_allclose(anatomy.attention.sum(-1), 1, atol=1e-5)
    assert not anatomy.parts
    assert profile(anatomy).position is None
    with pytest.raises(ValueError, match="bert has no disentangled attention"):
        shares([anatomy])


def test_a_saved_deberta_is_taken_apart_as_ours(tokenizer, tmp_path):
    randomise(DebertaForSequenceClassification(small())).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert set(take_apart(Subject.load(tmp_path), TEXT).parts) == {"c2c", "c2p", "p2c"}
    with pytest.raises(ValueError, match="missing: no such folder"):
        Subject.load(tmp_path / "missing")


def test_shares_are_the_regression_of_parts_on_scores():
    """The same number by numpy's covariances, query by query."""
    texts = [random_anatomy(5), random_anatomy(9)]
    given = shares(texts)
    for layer, head in np.ndindex(2, 3):
        above = dict.fromkeys(given.parts, 0.0)
        below = 0.0
        for text in texts:
            total = sum(text.parts.values())
            for i in range(len(text.tokens)):
                s = total[layer, head, i]
                below += np.var(s)
                for name in above:
                    above[name] += np.cov(text.parts[name][layer, head, i], s, bias=True)[0, 1]
        for name, value in above.items():
            assert given.parts[name][layer, head] == pytest.approx(value / below)
    np.testing.assert_allclose(given.content + given.position, 1)


def test_shares_do_not_see_what_the_softmax_does_not():
    text = random_anatomy()
    shift = np.random.default_rng(1).normal(size=(2, 3, 7, 1)) * 5
    moved = random_anatomy(c2p=text.parts["c2p"] + shift)
    np.testing.assert_allclose(shares([moved]).content, shares([text]).content)


def test_shares_at_the_ends():
    nothing = np.zeros((2, 3, 7, 7))
    np.testing.assert_allclose(shares([random_anatomy(c2p=nothing, p2c=nothing)]).content, 1)
    np.testing.assert_allclose(shares([random_anatomy(c2c=nothing)]).position, 1)
    twice = random_anatomy().parts["c2c"]
    np.testing.assert_allclose(shares([random_anatomy(c2p=twice, p2c=nothing)]).content, 0.5)  # all in common: halved
    with pytest.raises(ValueError, match="no text"):
        shares([])


def test_profile_is_the_mean_of_a_diagonal():
    text = random_anatomy(4)
    by_distance = profile(text)
    assert by_distance.distances.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    attention = text.attention[1, 2]
    assert by_distance.attention[1, 2, 6] == pytest.approx(attention[3, 0])  # i - j = 3: the first token, seen last
    assert by_distance.attention[1, 2, 2] == pytest.approx(np.mean([attention[0, 1], attention[1, 2], attention[2, 3]]))


def test_patterns_find_diagonal_stripe_and_first_token():
    eye, column, first = np.eye(8), np.zeros((8, 8)), np.zeros((8, 8))
    column[:, 5] = 1
    first[:, 0] = 1
    found = patterns(Anatomy("drawn", ["t"] * 8, np.stack([eye, column, first])[None], {}))
    assert {name: int(values[0].argmax()) for name, values in found.items()} == {"diagonal": 0, "stripe": 1, "[CLS]": 2}


def test_only_the_first_tokens_of_a_long_text(tokenizer):
    subject = Subject("tiny", randomise(DebertaModel(small())), tokenizer)
    assert len(take_apart(subject, "new " * 50, longest=12).tokens) == 12
    with pytest.raises(ValueError, match="empty"):
        take_apart(subject, "  ")


@pytest.mark.parametrize(
    "given",
    [{}, {"pos_att_type": ["c2p"]}, {"relative_attention": False, "pos_att_type": [], "norm_rel_ebd": "none"}],
)
def test_cells_are_counted_before_they_are_made(given, tokenizer):
    subject = Subject("tiny", randomise(DebertaModel(small(**given))), tokenizer)
    encoded = encode(subject, TEXT)
    anatomy = look(subject, encoded)
    assert cells(subject, encoded) == anatomy.attention.size * (1 + len(anatomy.parts))


def test_absolute_positions_end(tokenizer):
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.RobertaConfig(vocab_size=50, max_position_embeddings=12, pad_token_id=1, **shape)
    subject = Subject("roberta", transformers.RobertaModel(config, add_pooling_layer=False), tokenizer)
    assert len(encode(subject, TEXT).tokens) == 10
    with pytest.raises(ValueError, match="roberta reads at most 10 tokens, and the text has 13"):
        take_apart(subject, TEXT, "the mall")


def test_inputs_go_to_the_models_device_and_results_come_back(tokenizer):
    seen = []

    class Elsewhere:
        device = torch.device("meta")
        config = SimpleNamespace(model_type="other", max_position_embeddings=512)

        def eval(self):
            return self

        def named_modules(self):
            return []

        def __call__(self, input_ids, **others):
            seen.append(input_ids.device.type)
            return SimpleNamespace(attentions=[torch.ones(1, 2, 10, 10, dtype=torch.bfloat16)])

    model = Elsewhere()
    model.base_model = model
    anatomy = take_apart(Subject("elsewhere", model, tokenizer), TEXT)
    assert seen == ["meta"]
    assert anatomy.attention.dtype == np.float32


def byte_tokenizer():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary_of_bytes(), []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return wrap(backend)


def vocabulary_of_bytes():
    letters = [*SPECIALS, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    return {letter: index for index, letter in enumerate(letters)}


def test_a_space_that_the_tokenizer_adds_is_shown_as_a_space():
    pieces = [*((name, 0.0) for name in SPECIALS), ("▁", -1.0), ("河", -2.0), ("边", -2.0)]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made, text = wrap(backend), "河 边"
    encoded = made(text, return_offsets_mapping=True, return_tensors="pt")
    assert token_texts(made, encoded, text) == ["[CLS]", " ", "河", " ", "边", "[SEP]"]


def test_tokens_are_the_characters_of_the_input():
    """BERT's pieces are in lower case and without accents; bytes are not characters. The input has both."""
    lower = word_tokenizer(["a", "fine", "fil", "##m", "cafe"])
    lower.backend_tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    config = small(vocab_size=300)
    anatomy = take_apart(Subject("bert", randomise(DebertaModel(config)), lower), "A fine  Film, café!")
    assert anatomy.tokens == ["[CLS]", "A", "fine", "Fil", "m", ",", "café", "!", "[SEP]"]
    assert (anatomy.text, anatomy.special, anatomy.dropped) == ("A fine  Film, café!", (0, 8), 0)
    bytewise = take_apart(Subject("bytes", randomise(DebertaModel(config)), byte_tokenizer()), "é 好", "x")
    assert bytewise.tokens == ["[CLS]", "é", "é", " ", "好", "好", "好", "[SEP]", "x", "[SEP]"]
    assert bytewise.text == "é 好\nx"
