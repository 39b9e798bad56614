"""Training on pairs of texts: files, batches, exact resume, scores."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.data.pairs import Pair
from debertakit.finetuning import seq2seq
from debertakit.finetuning.seq2seq import Batches, Settings, evaluate, finetune_pairs, recorded_precision, train
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
from debertakit.generation.writing import _inputs, load_writer
from debertakit.heads import IGNORED, DebertaForMaskedLM
from debertakit.loading import load_for_training, load_tokenizer_of
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.training.optim import Optimizer
from tests.conftest import randomise, small

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
    log_every=4, evaluate_every=6, checkpoint_every=4, precision="fp32",
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


def test_training_in_bf16_on_any_machine(pairs, tokenizer, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DEBERTAKIT_BF16", "1")
    settings = replace(SETTINGS, precision="auto", epochs=1)
    half = fresh(tokenizer)
    train(half, tokenizer, pairs, pairs[:5], settings, tmp_path / "half")
    assert "precision: bf16\n" in capsys.readouterr().err
    assert recorded_precision(tmp_path / "half") == "bf16"
    full = fresh(tokenizer)
    figures = train(full, tokenizer, pairs, pairs[:5], replace(settings, precision="fp32"), tmp_path / "full")
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in half.state_dict().values())
    assert not torch.equal(half.get_input_embeddings().weight, full.get_input_embeddings().weight)
    last = json.loads((tmp_path / "half/log.jsonl").read_text().splitlines()[-1])
    assert last["loss"] == pytest.approx(figures["loss"], rel=0.02)


def test_a_run_resumes_in_its_precision_only(pairs, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("DEBERTAKIT_BF16", "1")
    settings = replace(SETTINGS, precision="auto", epochs=1)
    train(fresh(tokenizer), tokenizer, pairs, pairs[:5], settings, tmp_path)

    def again(precision):
        resumed = replace(settings, precision=precision)
        train(fresh(tokenizer), tokenizer, pairs, pairs[:5], resumed, tmp_path, resume=True)

    with pytest.raises(ValueError, match="was started in bf16 and cannot resume in fp32"):
        again("fp32")
    monkeypatch.setenv("DEBERTAKIT_BF16", "0")
    again("auto")
    assert recorded_precision(tmp_path) == "bf16"
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "precision"}))
    monkeypatch.setenv("DEBERTAKIT_BF16", "1")
    again("auto")  # version 1 knew fp32 only
    assert recorded_precision(tmp_path) == "fp32"
    with pytest.raises(ValueError, match="unknown precision 'fp8'"):
        replace(settings, precision="fp8")


def test_it_learns_the_language_and_writes_it(pairs, tokenizer, tmp_path):
    model = fresh(tokenizer)
    settings = replace(SETTINGS, epochs=40, label_smoothing=0.0, log_every=50, evaluate_every=100)
    figures = train(model, tokenizer, pairs[:20], pairs[:20], settings, tmp_path)
    assert figures["perplexity"] < 1.3
    scores = evaluate(DebertaForSeq2SeqLM.from_pretrained(tmp_path).eval(), tokenizer, pairs[:20], settings, "bleu")
    assert scores.figures["bleu"] > 80
    assert scores.signatures["bleu"].startswith("nrefs:1|case:mixed")
    assert len(scores.texts) == 20


HALF = {"layers": 1, "ffn_dim": 32, "attention_heads": 2}
PEER = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in HALF.items()} | {
    "d_model": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip


def absolute(tokenizer):
    encoder = small(vocab_size=len(tokenizer), emd_steps=0, position_biased_input=True)
    return DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=encoder, decoder_layers=1))


@pytest.mark.parametrize(
    "make",
    [
        absolute,
        lambda tokenizer: BartForConditionalGeneration(BartConfig(vocab_size=len(tokenizer), **PEER)),
        lambda tokenizer: MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **PEER)),
    ],
    ids=["deberta-d", "bart", "marian"],
)
def test_sources_are_padded_where_encoders_with_absolute_positions_expect_it(pairs, tokenizer, make):
    model, sources = randomise(make(tokenizer)), [pair.source for pair in pairs[:12]]
    inputs = _inputs(model, tokenizer, sources, None)
    together = model.get_encoder()(**inputs).last_hidden_state
    for source, mask, states in zip(sources, inputs["attention_mask"].bool(), together, strict=True):
        alone = model.get_encoder()(**_inputs(model, tokenizer, [source], None)).last_hidden_state[0]
        torch.testing.assert_close(states[mask], alone, rtol=1e-4, atol=1e-4)


def test_a_model_of_transformers_goes_through_the_same_loop(pairs, tokenizer, tmp_path):
    model = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **PEER))
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
    for more, message in (
        (("--source", tmp_path / "side0.txt"), "needs --source and --target"),
        ((*files, "--lora", "8"), "--lora is not an option of --task translation"),
        ((*files, "--seeds", "3"), "--seeds is not an option"),
        ((*files, "--minutes", "-1"), "minutes=-1.0: above 0"),
        ((*files, "--resume", "--lr", "1"), "begun with other settings: optimizer was"),
    ):
        wrong = CliRunner().invoke(app, list(map(str, [*given, *more])))
        assert message in str(wrong.exception)
    wrong = CliRunner().invoke(app, ["finetune", "--model", "m", "--out", "o", "--task", "rte", "--minutes", "3"])
    assert "--minutes is not an option of tasks other than translation" in str(wrong.exception)

    scored = CliRunner().invoke(
        app,
        list(map(str, ["evaluate", tmp_path / "out", "--task", "translation", *files[:4], "--out", tmp_path / "t"])),
    )
    assert "on 60 pairs" in scored.stdout
    assert "nrefs:1" in scored.stdout
    assert len((tmp_path / "t/written.txt").read_text(encoding="utf-8").splitlines()) == 60


def test_lengths_and_rates_of_the_command_arrive(pairs, tokenizer, tmp_path):
    """And a decoder begins and ends with the tokens of its tokenizer."""
    DebertaForMaskedLM(small(vocab_size=len(tokenizer))).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    table = "".join(f"{pair.source},{pair.target}\n" for pair in pairs)
    (tmp_path / "pairs.csv").write_text(f"body,subject\n{table}", encoding="utf-8")
    given = ["finetune", "--model", tmp_path / "encoder", "--out", tmp_path / "out", "--task", "summarisation"]
    given += ["--train", tmp_path / "pairs.csv", "--text", "body", "--label", "subject", "--max-length", "5"]
    given += ["--max-target", "4", "--weight-decay", "0.5", "--decoder-layers", "1", "--lr", "2e-3", "--epochs", "1"]
    found = CliRunner().invoke(app, list(map(str, given)))
    assert found.exit_code == 0, found.exception
    settings = json.loads((tmp_path / "out/settings.json").read_text())
    assert (settings["max_source"], settings["max_target"]) == (5, 4)
    assert (settings["optimizer"]["weight_decay"], settings["optimizer"]["lr"]) == (0.5, 2e-3)
    model = load_writer(tmp_path / "out")
    assert len(model.decoder.layer) == 1
    assert model.config.decoder_start_token_id == tokenizer.cls_token_id
    assert model.config.eos_token_id == tokenizer.sep_token_id


def test_a_short_run_leaves_its_warm_up(pairs, tokenizer, tmp_path):
    settings = replace(SETTINGS, optimizer=replace(SETTINGS.optimizer, warmup_steps=400), log_every=1, epochs=4)
    train(fresh(tokenizer), tokenizer, pairs, pairs[:5], settings, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert max(line.get("lr", 0) for line in lines) > 0.8 * 5e-3


def test_one_pair_and_long_pairs(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="one pair alone"):
        finetune_pairs("nowhere", tmp_path, "translation", [Pair("red", "rot")])
    batches = Batches([[1] * 50] * 4, [[1] * 50] * 4, 64, 0, 0)
    assert [len(batches.batch(i).labels) for i in range(len(batches))] == [1] * 4


def test_the_encoder_of_a_deberta_d_takes_any_head(tokenizer, tmp_path):
    whole = fresh(tokenizer)
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_for_training(tmp_path, "single-label", ("no", "yes"))
    assert type(model).__name__ == "DebertaForSequenceClassification"
    assert model.config.id2label == {0: "no", 1: "yes"}
    ids = tokenizer("red cat", return_tensors="pt")["input_ids"]
    ours, theirs = model.eval().deberta(ids), whole.eval().encoder(ids)
    assert torch.equal(ours.last_hidden_state, theirs.last_hidden_state)
    assert load_tokenizer_of(tmp_path)("red cat")["input_ids"] == ids[0].tolist()
