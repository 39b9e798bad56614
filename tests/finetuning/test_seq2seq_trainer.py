"""Training on pairs of texts: batches, the loss, the schedule, the time limit and models of transformers."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from debertakit.data.pairs import Pair
from debertakit.finetuning.seq2seq import score_texts, train_pairs
from debertakit.finetuning.seq2seq_trainer import BudgetBatches, PairCollator, PairRows, Seq2SeqTrainer, warmup_steps
from debertakit.heads import IGNORED
from tests.finetuning.pairs import OPTIONS, PEER, make_model, make_pairs, make_tokenizer


@pytest.fixture(scope="module")
def pairs():
    return make_pairs()


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return make_tokenizer(pairs)


def epoch_of(rows, order, number):
    order.set_epoch(number)
    return [rows[indices] for indices in order]


def read_log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_pair_comes_once_an_epoch_within_the_budget(pairs, tokenizer):
    rows = PairRows.encode(pairs, tokenizer, OPTIONS)
    order = BudgetBatches([row.tokens for row in rows.rows], 128, seed=0)
    first, second = (epoch_of(rows, order, number) for number in (0, 1))
    for epoch in (first, second):
        assert len(epoch) == len(order)
        sources = sorted(row.source for batch in epoch for row in batch)
        assert sources == sorted(tokenizer([pair.source for pair in pairs])["input_ids"])
        sizes = [sum(row.tokens for row in batch) for batch in epoch]
        assert max(sizes) <= 128 + 15  # the budget and at most a pair more
        assert sorted(sizes)[1] > 100
    assert first != second
    again = BudgetBatches([row.tokens for row in rows.rows], 128, seed=0)
    assert epoch_of(rows, again, 1) == second


def test_a_pair_longer_than_the_budget_is_a_batch():
    assert [len(batch) for batch in BudgetBatches([100] * 4, 64, 0)] == [1] * 4


def test_labels_are_the_text_and_its_end(tokenizer):
    rows = PairRows.encode([Pair("red cat", "katze rot"), Pair("red", "rot")], tokenizer, OPTIONS)
    batch = PairCollator(tokenizer.pad_token_id)([rows[[0, 1]]])
    assert tokenizer.decode(batch["labels"][0]) == "katze rot [SEP]"
    assert tokenizer.decode(batch["input_ids"][0]) == "[CLS] red cat [SEP]"
    assert (batch["labels"][1] == IGNORED).tolist() == [False, False, True]
    assert batch["attention_mask"].sum(-1).tolist() == [4, 3]


def test_the_loss_is_smoothed_and_the_dev_loss_is_not(pairs, tokenizer, tmp_path):
    rows = PairRows.encode(pairs[:8], tokenizer, OPTIONS)
    model = make_model(tokenizer)
    trainer = Seq2SeqTrainer(model, rows, rows, tokenizer, replace(OPTIONS, label_smoothing=0.3), 0, tmp_path)
    batch = trainer.data_collator([rows[list(range(8))]])
    model.eval()
    labels = batch["labels"]
    out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels)
    logits, targets = out.logits[labels != IGNORED], labels[labels != IGNORED]
    plain, spread = F.cross_entropy(logits, targets), -logits.log_softmax(-1).mean()
    trained = trainer.compute_loss(model, trainer._prepare_inputs(batch))
    assert trained.item() == pytest.approx((0.7 * plain + 0.3 * spread).item(), rel=1e-5)
    assert trainer.dev_figures() == pytest.approx(
        {"loss": plain.item(), "perplexity": math.exp(plain.item())}, rel=1e-4
    )


def test_the_order_follows_the_epoch_of_a_resumed_run(pairs, tokenizer, tmp_path):
    """With several processes, the Trainer sets the epoch of a new run, but not of one that resumes within an epoch."""
    rows = PairRows.encode(pairs, tokenizer, OPTIONS)
    trainer = Seq2SeqTrainer(make_model(tokenizer), rows, rows, tokenizer, OPTIONS, 0, tmp_path)
    trainer.state.epoch = 1.5
    trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
    orders = []
    for epoch in (0, 1):
        fresh = BudgetBatches(trainer.order.sizes, OPTIONS.step_tokens, 0)
        fresh.set_epoch(epoch)
        orders.append(list(fresh))
    assert list(trainer.order) == orders[1] != orders[0]


def test_a_short_run_leaves_its_warm_up(pairs, tokenizer, tmp_path):
    options = replace(OPTIONS, warmup=400, epochs=4, evaluate_every=10)
    trainer = train_pairs(make_model(tokenizer), tokenizer, pairs, pairs[:5], options, 0, tmp_path)
    rates = [line["lr"] for line in read_log(tmp_path) if line["kind"] == "train"]
    assert len(rates) == trainer.state.global_step
    assert max(rates) > 0.8 * 5e-3
    assert rates[-1] < 0.1 * 5e-3
    assert warmup_steps(replace(options, warmup=0.05), 200) == 10
    assert warmup_steps(replace(options, warmup=400, minutes=1.0), 10**9) == 400


def test_a_run_ends_after_its_minutes(pairs, tokenizer, tmp_path, monkeypatch):
    options = replace(OPTIONS, minutes=1.0, evaluate_every=1000)
    monkeypatch.setattr(Seq2SeqTrainer, "elapsed", property(lambda trainer: 12.0 * trainer.state.global_step))
    trainer = train_pairs(make_model(tokenizer), tokenizer, pairs, pairs[:5], options, 0, tmp_path)
    assert trainer.state.global_step == 5
    assert [(line["step"], line["kind"]) for line in read_log(tmp_path)][-1] == (5, "dev")
    with pytest.raises(ValueError, match=r"warmup is 0\.1; with minutes, it must be a number of steps"):
        replace(options, warmup=0.1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="minutes works in one process only"):
        train_pairs(make_model(tokenizer), tokenizer, pairs, pairs[:5], options, 0, tmp_path)


def test_early_stopping_keeps_the_best_weights(pairs, tokenizer, tmp_path):
    model = make_model(tokenizer)
    options = replace(OPTIONS, lr=0.5, epochs=50, evaluate_every=2, early_stopping=2)  # the rate is far too high
    trainer = train_pairs(model, tokenizer, pairs, pairs[:5], options, 0, tmp_path)
    assert trainer.state.global_step < 50
    losses = [line["loss"] for line in read_log(tmp_path) if line["kind"] == "dev"]
    assert trainer.dev_figures()["loss"] == pytest.approx(min(losses), rel=1e-5)
    assert losses[-1] > min(losses)


def test_a_gradient_that_is_not_finite_updates_nothing(pairs, tokenizer, tmp_path, monkeypatch):
    kept, compute = [], Seq2SeqTrainer.compute_loss

    def broken(trainer, model, *args, **kwargs):
        kept.append(model.get_input_embeddings().weight.detach().clone())
        return compute(trainer, model, *args, **kwargs) * (float("nan") if trainer.state.global_step == 1 else 1.0)

    monkeypatch.setattr(Seq2SeqTrainer, "compute_loss", broken)
    model = make_model(tokenizer)
    train_pairs(model, tokenizer, pairs, pairs[:5], replace(OPTIONS, epochs=1), 0, tmp_path / "once")
    assert not torch.equal(kept[0], kept[1])
    assert torch.equal(kept[1], kept[2])  # the second step was skipped
    assert not torch.equal(kept[2], kept[3])
    assert all(weight.isfinite().all() for weight in model.state_dict().values())
    monkeypatch.setattr(Seq2SeqTrainer, "compute_loss", lambda *a, **k: compute(*a, **k) * float("inf"))
    with pytest.raises(ValueError, match=r"not finite for 10 consecutive steps \(last: 10\); start again with a lower"):
        train_pairs(
            make_model(tokenizer), tokenizer, pairs, pairs[:5], replace(OPTIONS, epochs=20), 0, tmp_path / "all"
        )


def test_a_model_of_transformers_trains_the_same_way(pairs, tokenizer, tmp_path):
    model = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **PEER))
    trainer = train_pairs(model, tokenizer, pairs, pairs[:10], OPTIONS, 0, tmp_path)
    assert trainer.state.global_step == 2 * len(trainer.order)
    assert len(score_texts(model.eval(), tokenizer, pairs[:4], OPTIONS, "rouge").texts) == 4


def test_it_learns_the_language_and_writes_it(pairs, tokenizer, tmp_path):
    model = make_model(tokenizer)
    options = replace(OPTIONS, epochs=40, label_smoothing=0.0, evaluate_every=100)
    trainer = train_pairs(model, tokenizer, pairs[:20], pairs[:20], options, 0, tmp_path)
    assert trainer.dev_figures()["perplexity"] < 1.3
    scores = score_texts(model.eval(), tokenizer, pairs[:20], options, "bleu")
    assert scores.figures["bleu"] > 80
    assert scores.signatures["bleu"].startswith("nrefs:1|case:mixed")
    assert len(scores.texts) == 20
