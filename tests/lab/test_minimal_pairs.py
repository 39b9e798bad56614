"""Minimal pairs: scores equal a slow computation with stock transformers, ties are wrong, files are checked."""

import json

import pytest
import torch
import transformers
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.heads import DebertaForMaskedLM, DebertaForSequenceClassification
from debertakit.lab.language_models import LanguageModel, text_scores
from debertakit.lab.minimal_pairs import MinimalPair, PairScores, read_pairs, score_pairs
from tests.models import randomise, small, word_tokenizer
from tests.stock import own, stock_twin

WORDS = "the cat cats dog dogs sees see likes a house red old every child".split()
SENTENCES = ["the cat sees a house", "the cats see the old red house", "every child likes dogs", "cat", "the zebra see"]


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(WORDS)


@torch.inference_mode()
def slow_score(model, tokenizer, sentence: str) -> float:
    """One sequence, one mask, one forward pass at a time."""
    ids = tokenizer(sentence)["input_ids"]
    total = 0.0
    for place, token in enumerate(ids):
        if token in tokenizer.all_special_ids:
            continue
        masked = torch.tensor([ids])
        masked[0, place] = tokenizer.mask_token_id
        total += float(model(input_ids=masked).logits[0, place].log_softmax(-1)[token])
    return total


def sentence_scores(model, tokenizer, sentences: list[str]) -> list[float]:
    return text_scores(LanguageModel("masked", model, tokenizer), sentences)


def write(file, *rows) -> str:
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(file)


def row(good: str, bad: str, **more: str) -> dict[str, str]:
    return {"sentence_good": good, "sentence_bad": bad, **more}


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v3-base"])
def test_scores_equal_one_mask_at_a_time_in_stock_transformers(tokenizer, name, monkeypatch):
    model = own("ForMaskedLM", name, vocab_size=len(tokenizer))
    stock = stock_twin(model)
    expected = [slow_score(stock, tokenizer, sentence) for sentence in SENTENCES]
    assert sentence_scores(model, tokenizer, SENTENCES) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert sentence_scores(stock, tokenizer, SENTENCES) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    monkeypatch.setattr("debertakit.lab.language_models.BATCH_TOKENS", 9)  # sequences of a sentence in several batches
    assert sentence_scores(model, tokenizer, SENTENCES) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_mask_decoder_is_used(tokenizer):
    model = randomise(DebertaForMaskedLM(small(vocab_size=len(tokenizer), emd_steps=2)))
    expected = [slow_score(model, tokenizer, sentence) for sentence in SENTENCES]
    assert sentence_scores(model, tokenizer, SENTENCES) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_a_bert_is_scored_the_same_way(tokenizer):
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **shape)
    model = randomise(transformers.BertForMaskedLM(config))
    expected = [slow_score(model, tokenizer, sentence) for sentence in SENTENCES]
    assert sentence_scores(model, tokenizer, SENTENCES) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    with pytest.raises(ValueError, match="22 tokens; this model reads 16"):
        sentence_scores(model, tokenizer, ["the cat " * 10])


def test_a_table_per_paradigm_where_ties_are_wrong(tokenizer, tmp_path):
    model = randomise(DebertaForMaskedLM(small(vocab_size=len(tokenizer))))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    good, bad = sorted(SENTENCES[:2], key=lambda text: sentence_scores(model, tokenizer, [text])[0], reverse=True)
    file = write(
        tmp_path / "b.jsonl",
        *(row(good, bad, UID="agreement"), row(bad, good, UID="agreement"), row(good, good, UID="tie")),
    )
    more = write(tmp_path / "order.jsonl", row(good, bad))  # no UID: the name of the file
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "model"), "--pairs", file, "--pairs", more])
    assert result.exit_code == 0, result.output
    table = [line.split() for line in result.stdout.splitlines()]
    assert table[1:] == [
        ["agreement", "50.0%", "2"],
        ["order", "100.0%", "1"],
        ["tie", "0.0%", "1"],
        ["mean", "50.0%", "4"],
    ]
    first = CliRunner().invoke(app, ["evaluate", str(tmp_path / "model"), "--pairs", file, "--limit", "1"])
    assert "agreement  100.0%       1" in first.stdout


def test_the_mean_is_over_paradigms():
    assert PairScores({"a": (1, 1), "b": (0, 99)}).mean == 0.5


def test_a_folder_is_all_its_files(tmp_path):
    write(tmp_path / "b.jsonl", row("x", "y"))
    write(tmp_path / "a.jsonl", row("u", "v", UID="other"))
    assert read_pairs([tmp_path]) == [MinimalPair("u", "v", "other"), MinimalPair("x", "y", "b")]


def test_mistakes_are_one_line(tokenizer, tmp_path):
    for content in ("not json", '{"sentence_good": "x"}', '{"sentence_good": "x", "sentence_bad": 3}', "[1]"):
        (tmp_path / "bad.jsonl").write_text(f"{json.dumps(row('x', 'y'))}\n{content}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: expected JSON"):
            read_pairs([tmp_path / "bad.jsonl"])
    with pytest.raises(ValueError, match=r"missing\.jsonl: not a readable"):
        read_pairs([tmp_path / "missing.jsonl"])
    DebertaForSequenceClassification(small(vocab_size=len(tokenizer))).save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    file = write(tmp_path / "pairs.jsonl", row("the cat", "a cat"))
    with pytest.raises(ValueError, match="is no language model: it has a SequenceClassification head"):
        score_pairs(tmp_path / "tuned", [tmp_path / "pairs.jsonl"])
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "tuned"), "--pairs", file, "--stride", "3"])
    assert str(result.exception) == "--stride is not an option of --pairs"
