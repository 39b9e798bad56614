import math

import pytest

from debertakit.heads import DebertaForMaskedLM
from debertakit.lab.floors import NGram
from debertakit.lab.language_models import LanguageModel
from debertakit.lab.words import HiddenWord, choose_words, score_words, word_spans
from debertakit.text.tokenizer_training import train_tokenizer
from tests.models import randomise, small
from tests.pretraining.material import text as documents

TEXTS = documents(40).split("\n\n")


@pytest.fixture(scope="module")
def tokenizers():
    return [train_tokenizer(TEXTS, kind, 400, progress=False) for kind in ("wordpiece", "bpe", "unigram")]


def test_the_same_words_in_every_vocabulary(tokenizers):
    hidden = choose_words(TEXTS, tokenizers, 30, max_length=32)
    assert len(hidden) == 30
    assert hidden == choose_words(TEXTS, tokenizers, 30, max_length=32)
    for each in hidden:
        assert each.start > 0  # a causal model has something to read
        assert each.word.isalnum()
        for tokenizer in tokenizers:
            assert len(tokenizer(each.text)["input_ids"]) <= 32
            encoded = tokenizer(each.text, return_offsets_mapping=True)
            spans = [(a, b) for a, b in encoded["offset_mapping"] if a < each.end and b > each.start]
            covered = each.text[min(a for a, _ in spans) : max(b for _, b in spans)]
            assert covered.strip() == each.word


def test_bits_do_not_depend_on_the_other_words(tokenizers):
    hidden = choose_words(TEXTS, tokenizers, 12, max_length=32)
    model = randomise(DebertaForMaskedLM(small(vocab_size=len(tokenizers[0]))))
    together = score_words(LanguageModel("masked", model, tokenizers[0]), hidden)
    alone = [score_words(LanguageModel("masked", model, tokenizers[0]), [each])[0] for each in hidden]
    assert [each.bits for each in together] == pytest.approx([each.bits for each in alone], rel=1e-4)
    assert all(each.bits > 0 for each in together)


def test_too_little_text_is_one_line(tokenizers):
    with pytest.raises(ValueError, match="no words to hide"):
        choose_words(["too short"], tokenizers, 5, 32)


def test_chinese_words():
    pytest.importorskip("rjieba")
    text = "我们在北京大学学习，用GPT3写作。"
    words = [text[a:b] for a, b in word_spans(text)]
    assert "北京大学" in words
    assert "".join(words) == "我们在北京大学学习用GPT3写作"


def test_witten_bell_by_hand():
    model = NGram(["the cat sat", "the cat ran"], 3)
    spelled = model._spelled("cat")
    one = (2 + 4 * spelled) / (6 + 4)  # 6 words, 4 different ones
    two = (2 + 1 * one) / (2 + 1)  # after "the": cat, cat
    assert model.probability("cat", ()) == pytest.approx(one)
    assert model.probability("cat", ("the",)) == pytest.approx(two)
    assert model.probability("cat", ("xyz", "the")) == pytest.approx(two)  # unknown history: the shorter one
    assert model.probability("sat", ("the", "cat")) == pytest.approx(
        (1 + 2 * model.probability("sat", ("cat",))) / (2 + 2)
    )
    hidden = HiddenWord("the cat sat", 4, 7)
    assert model.score_words([hidden])[0].right
    assert model.score_words([hidden])[0].bits == pytest.approx(-math.log2(two))
    unigram = model.shortened(1)
    assert unigram.score_words([hidden])[0].bits == pytest.approx(-math.log2(one))


def test_probabilities_sum_to_one_and_the_best_is_the_best():
    model = NGram(TEXTS, 3)
    words = list(model.after[()])
    for history in [(), ("the",), ("sees", "the"), ("never", "seen")]:
        known = sum(model.probability(word, history) for word in words)
        assert 0.5 < known < 1  # the rest is for words that were never seen
        best = max(model.probability(word, history) for word in words)
        assert model.probability(model.best(history), history) == best
    letters = [c for c in model.spelling if c != "\n"]
    ends = math.exp(model.spelling["\n"])
    assert sum(math.exp(model.spelling[c]) for c in letters) + ends < 1  # one share is for unseen characters
