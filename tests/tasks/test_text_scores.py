"""BLEU and ROUGE against values worked out by hand, and for texts that are not English."""

import pytest
from rouge_score.tokenizers import DefaultTokenizer

from debertakit.tasks.text_scores import Words, resampled_score, text_scores


def test_rouge_by_hand():
    figures, _ = text_scores("rouge", ["the cat sat"], ["the cat ran home"])
    assert figures["rouge1"] == pytest.approx(100 * 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert figures["rouge2"] == pytest.approx(100 * 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))


def test_bleu_of_the_same_text():
    figures, signatures = text_scores("bleu", ["a b c d e"], ["a b c d e"])
    assert figures["bleu"] == pytest.approx(100)
    assert "tok:13a" in signatures["bleu"]


def test_words_are_rouge_scores_own_in_english():
    text = "The runners' re-entry (2nd) cost $3.50, they_said: Running!"
    assert Words().tokenize(text) == DefaultTokenizer(use_stemmer=True).tokenize(text)
    assert Words().tokenize("Die Mädchen") == ["die", "mädchen"]


def test_chinese_is_scored_by_character():
    same, half = ["北京是中国的首都。"], ["北京是美丽的城市。"]
    for metric, perfect in (("bleu", "bleu"), ("rouge", "rougeL")):
        assert text_scores(metric, same, same)[0][perfect] == pytest.approx(100)
    assert "tok:zh" in text_scores("bleu", same, same)[1]["bleu"]
    assert text_scores("rouge", half, same)[0]["rouge1"] == pytest.approx(100 * 4 / 8)


def test_an_unknown_metric():
    with pytest.raises(ValueError, match="unknown metric 'meteor'; choose from bleu, rouge"):
        text_scores("meteor", [], [])


@pytest.mark.parametrize("language", ["english", "chinese"])
@pytest.mark.parametrize("name", ["bleu", "rouge1", "rougeL"])
def test_a_resampled_score_is_the_score_of_the_sample(name, language):
    """Repeated texts and empty texts included."""
    texts = ["the cat sat on the mat", "a dog", "", "two men walk along the long road today"]
    references = ["the cat sat on a mat", "the dog barks", "nothing", "two men walk down the long road today"]
    if language == "chinese":
        texts, references = (
            ["我们喜欢读书", "今天天气很好", "", "他昨天去了北京大学"],
            ["我们爱读书", "今天天气好", "没有", "他昨天去北京大学了"],
        )
    score = resampled_score(name, references)
    for sample in ([0, 1, 2, 3], [3, 3, 0, 1], [1, 2, 1, 2]):
        chosen, wanted = [texts[i] for i in sample], [references[i] for i in sample]
        exact = text_scores("rouge" if name.startswith("rouge") else name, chosen, wanted)[0][name]
        assert score(chosen, wanted) == pytest.approx(exact)
