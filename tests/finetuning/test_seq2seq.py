"""Training on pairs of texts: files, batches, exact resume, scores."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import MarianConfig, MarianMTModel
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.finetuning import seq2seq
from debertakit.finetuning.seq2seq import Batches, Pair, Settings, evaluate, read_pairs, train
from debertakit.generation.command import load_writer
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
from debertakit.heads import IGNORED, DebertaForMaskedLM
from debertakit.pretraining.optim import Optimizer
from debertakit.text.training import train_tokenizer
from tests.conftest import small

WORDS = {"red": "rot", "blue": "blau", "old": "alt", "cat": "katze", "dog": "hund", "house": "haus", "sees": "sieht"}


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    """A language in which every word has one translation, and word order is turned round."""
    draw = torch.Generator().manual_seed(0)
    english = list(WORDS)
    rows = [
        torch.randint(len(english), (int(torch.randint(1, 6, (), generator=draw)),), generator=draw).tolist()
        for _ in range(60)
    ]
    return [Pair(" ".join(english[i] for i in row), " ".join(WORDS[english[i]] for i in row[::-1])) for row in rows]


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return train_tokenizer([text for pair in pairs for text in pair], "wordpiece", 60, progress=False)


def fresh(tokenizer, dropout: float = 0.0) -> DebertaForSeq2SeqLM:
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    encoder = small(vocab_size=len(tokenizer), emd_steps=0, hidden_size=64, num_attention_heads=4, **rates)
    return DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=encoder, decoder_layers=1))


RUNS = ("whole", "cut")
SETTINGS = Settings(
    epochs=2, step_tokens=128, optimizer=Optimizer(lr=5e-3, warmup_steps=4), beams=2, max_target=12,
    log_every=4, evaluate_every=6, checkpoint_every=4,
)  # fmt: skip


def test_every_pair_comes_once_an_epoch_within_the_budget(pairs, tokenizer):
    batches = Batches.of(pairs, tokenizer, SETTINGS)
    first, second = ([batches.batch(e * len(batches) + i) for i in range(len(batches))] for e in (0, 1))
    for epoch in (first, second):
        rows = [row[mask.bool()].tolist() for batch in epoch for row, mask in zip(*batch[:2], strict=True)]
        assert sorted(rows) == sorted(tokenizer([pair.source for pair in pairs])["input_ids"])
        sizes = [int(batch.attention_mask.sum() + (batch.labels != IGNORED).sum()) for batch in epoch]
        assert max(sizes) <= 128 + 15  # the budget and at most a pair more
        assert sorted(sizes)[1] > 100
    assert any(not torch.equal(a.input_ids, b.input_ids) for a, b in zip(first, second, strict=True))
    again = Batches.of(pairs, tokenizer, SETTINGS).batch(len(batches) + 1)
    assert torch.equal(again.input_ids, second[1].input_ids)


def test_labels_are_the_text_and_its_end(tokenizer):
    batch = Batches.of([Pair("red cat", "katze rot")], tokenizer, SETTINGS).batch(0)
    assert tokenizer.decode(batch.labels[0]) == "katze rot [SEP]"
    assert tokenizer.decode(batch.input_ids[0]) == "[CLS] red cat [SEP]"


def test_a_run_that_was_cut_off_goes_on_exactly(pairs, tokenizer, tmp_path, monkeypatch):
    whole = fresh(tokenizer, dropout=0.1)
    train(whole, tokenizer, pairs, pairs[:5], SETTINGS, tmp_path / "whole")
    cut = fresh(tokenizer, dropout=0.1)
    kept = seq2seq._save

    def save_and_die(*arguments):
        kept(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(seq2seq, "_save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        train(cut, tokenizer, pairs, pairs[:5], SETTINGS, tmp_path / "cut")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="holds a run already"):
        train(cut, tokenizer, pairs, pairs[:5], SETTINGS, tmp_path / "cut")
    again = fresh(tokenizer, dropout=0.1)
    train(again, tokenizer, pairs, pairs[:5], SETTINGS, tmp_path / "cut", resume=True)
    for key, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    logs = [[json.loads(line) for line in (tmp_path / run / "log.jsonl").read_text().splitlines()] for run in RUNS]
    assert [(line["kind"], line["step"]) for line in logs[0]] == [(line["kind"], line["step"]) for line in logs[1]]


def test_it_learns_the_language_and_writes_it(pairs, tokenizer, tmp_path):
    model = fresh(tokenizer)
    settings = replace(SETTINGS, epochs=40, label_smoothing=0.0, log_every=50, evaluate_every=100)
    figures = train(model, tokenizer, pairs[:20], pairs[:20], settings, tmp_path)
    assert figures["perplexity"] < 1.3
    scores = evaluate(DebertaForSeq2SeqLM.from_pretrained(tmp_path).eval(), tokenizer, pairs[:20], settings, "bleu")
    assert scores.figures["bleu"] > 80
    assert scores.signatures["bleu"].startswith("nrefs:1|case:mixed")
    assert len(scores.texts) == 20


def test_a_model_of_transformers_goes_through_the_same_loop(pairs, tokenizer, tmp_path):
    half = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in (("layers", 1), ("ffn_dim", 32))}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = MarianConfig(vocab_size=len(tokenizer), d_model=32, **half, **heads, **special, forced_eos_token_id=None)
    model = MarianMTModel(config)
    figures = train(model, tokenizer, pairs, pairs[:10], SETTINGS, tmp_path)
    assert figures["steps"] == 2 * len(Batches.of(pairs, tokenizer, SETTINGS))
    assert len(evaluate(model, tokenizer, pairs[:4], SETTINGS, "rouge").texts) == 4


def test_the_command_grows_a_decoder_trains_and_scores(pairs, tokenizer, tmp_path):
    DebertaForMaskedLM(small(vocab_size=len(tokenizer))).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    for side in (0, 1):
        (tmp_path / f"side{side}.txt").write_text("\n".join(pair[side] for pair in pairs), encoding="utf-8")
    given = ["finetune", "--model", tmp_path / "encoder", "--out", tmp_path / "out", "--task", "translation"]
    files = ["--source", tmp_path / "side0.txt", "--target", tmp_path / "side1.txt", "--epochs", "1"]
    found = CliRunner().invoke(app, list(map(str, [*given, *files])))
    assert found.exit_code == 0, found.exception
    assert "bleu" in found.stdout
    assert "nrefs:1" in found.stdout
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert set(results["dev"]) == {"bleu", "chrf"}
    assert len((tmp_path / "out/written.txt").read_text(encoding="utf-8").splitlines()) == 6  # a tenth was held out
    assert len(load_writer(tmp_path / "out").decoder.layer) == 2
    wrong = CliRunner().invoke(app, list(map(str, [*given, "--source", tmp_path / "side0.txt"])))
    assert "needs --source and --target" in str(wrong.exception)


def test_scores_by_hand():
    figures, _ = seq2seq.summary_scores(["the cat sat"], ["the cat ran home"])
    assert figures["rouge1"] == pytest.approx(100 * 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert figures["rouge2"] == pytest.approx(100 * 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    figures, _ = seq2seq.translation_scores(["a b c d e"], ["a b c d e"])
    assert figures["bleu"] == pytest.approx(100)
    with pytest.raises(ValueError, match="unknown metric 'meteor'; choose from bleu, rouge"):
        evaluate(None, None, [], SETTINGS, "meteor")


def test_files_of_pairs(tmp_path):
    (tmp_path / "a.en").write_text("one\n\n three  four \n", encoding="utf-8")
    (tmp_path / "a.de").write_text("eins\nzwei\ndrei vier\n", encoding="utf-8")
    assert read_pairs(tmp_path / "a.en", tmp_path / "a.de") == [Pair("one", "eins"), Pair("three four", "drei vier")]
    (tmp_path / "b.de").write_text("eins\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a.en has 3 lines and .*b.de 1: they are not parallel"):
        read_pairs(tmp_path / "a.en", tmp_path / "b.de")
    (tmp_path / "a.jsonl").write_text('{"body": "x y", "subject": "z"}\n{"body": 3}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"a.jsonl, line 2: not a JSON object with 'body' and 'subject'"):
        read_pairs(tmp_path / "a.jsonl", fields=("body", "subject"))
