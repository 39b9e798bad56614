"""The loop: it learns, reproduces the golden loss curve, and stops cleanly when the loss is not finite."""

import dataclasses
import json
import math

import pytest
import torch

from debertakit.heads import DebertaForMaskedLM
from debertakit.pretraining import loop, state
from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import evaluate, make_run, pretrain, train_step
from debertakit.pretraining.recipes import recipe
from debertakit.pretraining.settings import override
from debertakit.text.corpus import prepare
from debertakit.text.packing import Packing
from debertakit.training.log import read
from debertakit.training.optim import Optimizer, decay_groups, learning_rate
from tests.pretraining.material import config, text
from tests.stock import needs_stock_masked_lm

# Losses of 50 steps, every fifth: reference attention, fp32, one thread. A change here changes training: know why.
GOLDEN = [5.099919, 4.901547, 4.76736, 4.630046, 4.25437, 4.448633, 4.246618, 4.433926, 4.10058, 4.068818]


def test_golden_loss_curve(corpus, tokenizer):
    run = make_run(config("steps=50", "optimizer.warmup_steps=10"), corpus, tokenizer, World())
    curve = [train_step(run, 0.0)["loss"] for _ in range(50)]
    assert curve[::5] == pytest.approx(GOLDEN, rel=1e-4)


@pytest.mark.slow
def test_overfits_twenty_sentences(tokenizer, tmp_path):
    sentences = list(dict.fromkeys(s.strip() for s in text(40).replace("\n", " ").split(".") if s.strip()))[:20]
    (tmp_path / "twenty.txt").write_text("\n\n".join(sentences), encoding="utf-8")
    twenty = prepare(tmp_path / "twenty.txt", tokenizer, tmp_path / "corpus", validation=0)
    fixed = ("masking.dynamic=false", "model.hidden_size=64", "optimizer.warmup_steps=10", "steps=120")
    run = make_run(config(*fixed, "optimizer.lr=5e-3"), twenty, tokenizer, World())
    assert run.validation is None
    assert evaluate(run) == {}
    for _ in range(120):
        train_step(run, 0.0)
    run.validation = Packing(twenty.train, 32, run.packing.epoch_tokens, shuffle=False)
    run.validation_context = run.context
    assert evaluate(run)["accuracy"] > 0.99


def test_a_run_leaves_a_model_a_log_a_curve_and_a_card(corpus, tokenizer, tmp_path):
    run = config("optimizer.lr=1e-2", "steps=20")
    figures = pretrain(run, corpus, tokenizer, tmp_path)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    records = read(tmp_path / "log.jsonl")
    first = next(r for r in records if r["kind"] == "train")
    assert figures["loss"] < first["loss"] - 0.3
    assert (tmp_path / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert "0.01" in (tmp_path / "README.md").read_text(encoding="utf-8")
    model = DebertaForMaskedLM.from_pretrained(tmp_path)
    assert model.config.emd_steps == 2
    from debertakit.pretraining.settings import load

    assert load(tmp_path / "run.json") == run


def test_tensorboard_gets_the_figures_of_the_log(corpus, tokenizer, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pretrain(config("steps=8", "tracker=tensorboard"), corpus, tokenizer, tmp_path)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    written = {event.step: event.value for event in events.Scalars("train/loss")}
    logged = {r["step"]: r["loss"] for r in read(tmp_path / "log.jsonl") if r["kind"] == "train"}
    assert written == pytest.approx(logged)
    assert events.Scalars("validation/perplexity")


def test_stock_transformers_loads_the_model(corpus, tokenizer, tmp_path):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    needs_stock_masked_lm()
    pretrain(config("steps=2", "objectives.nsp=1", "model.emd_steps=0"), corpus, tokenizer, tmp_path)
    model, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    inputs = AutoTokenizer.from_pretrained(tmp_path)("the cat [MASK] the house", return_tensors="pt")
    ours = DebertaForMaskedLM.from_pretrained(tmp_path).eval()
    theirs = model.eval()(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    torch.testing.assert_close(theirs, ours(inputs["input_ids"]).logits, rtol=1e-4, atol=1e-4)


def test_a_corpus_too_small_for_pairs_is_refused_before_it_is_trained_on(tokenizer, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"{'the cat sees the house ' * 20}{n}" for n in range(20)), encoding="utf-8")
    corpus = prepare(file, tokenizer, tmp_path / "corpus", validation=1)
    with pytest.raises(ValueError, match=r"needs two documents .* validation has 1 documents and"):
        pretrain(config("objectives.nsp=1"), corpus, tokenizer, tmp_path / "out")


@pytest.mark.parametrize("change", ["model.hidden_act=foo", "model.num_attention_heads=0"])
def test_a_model_that_transformers_cannot_make(corpus, tokenizer, tmp_path, change):
    with pytest.raises(ValueError, match="cannot build a model of family bert"):
        pretrain(override(recipe("bert-tiny"), [change]), corpus, tokenizer, tmp_path)


def poison(monkeypatch, bad):
    """Make the gradients NaN in these steps."""
    original = loop._backward

    def backward(run, parts, totals, phase):
        sums = original(run, parts, totals, phase)
        return sums * math.nan if run.progress.step in bad else sums

    monkeypatch.setattr(loop, "_backward", backward)


def test_a_step_that_is_not_finite_is_skipped(corpus, tokenizer, monkeypatch):
    poison(monkeypatch, {1})
    run = make_run(config(), corpus, tokenizer, World())
    train_step(run, 0.0)
    before = {name: p.clone() for name, p in run.module.named_parameters()}
    moments = [s["exp_avg"].clone() for s in run.optimizer.state.values()]
    assert math.isnan(train_step(run, 0.0)["loss"])
    assert run.progress.bad_steps == 1
    assert all(torch.equal(before[name], p) for name, p in run.module.named_parameters())
    assert all(torch.equal(a, s["exp_avg"]) for a, s in zip(moments, run.optimizer.state.values(), strict=True))
    train_step(run, 0.0)
    assert run.progress.bad_steps == 0
    assert any(not torch.equal(before[name], p) for name, p in run.module.named_parameters())


def test_a_gradient_that_is_not_finite_is_skipped(corpus, tokenizer, monkeypatch):
    run = make_run(config(), corpus, tokenizer, World())
    before = {name: p.clone() for name, p in run.module.named_parameters()}
    monkeypatch.setattr(loop, "clip_gradients", lambda *_: torch.tensor(math.inf))
    train_step(run, 0.0)
    assert run.progress.bad_steps == 1
    assert all(torch.equal(before[name], p) for name, p in run.module.named_parameters())


def test_it_stops_after_bad_steps_and_keeps_the_last_good_state(corpus, tokenizer, tmp_path, monkeypatch):
    poison(monkeypatch, {4, 5, 6})
    with pytest.raises(loop.Diverged, match=r"3 consecutive steps.*Saved step 4 and stopped"):
        pretrain(config("max_bad_steps=3"), corpus, tokenizer, tmp_path)
    step, folder = state.newest(tmp_path / "checkpoints")
    assert step == 4
    assert all(torch.isfinite(p).all() for p in DebertaForMaskedLM.from_pretrained(folder).parameters())
    monkeypatch.undo()
    pretrain(config("max_bad_steps=3", "optimizer.lr=1e-4"), corpus, tokenizer, tmp_path, resume=True)


def test_a_second_divergence_returns_to_the_same_step(corpus, tokenizer, tmp_path, monkeypatch):
    def tokens(out):
        return json.loads((state.newest(out / "checkpoints")[1] / "progress.json").read_text())["tokens"]

    clean = {}
    for steps in (4, 5):
        pretrain(config(f"steps={steps}"), corpus, tokenizer, tmp_path / f"clean-{steps}")
        clean[steps] = tokens(tmp_path / f"clean-{steps}")
    out = tmp_path / "run"
    poison(monkeypatch, set(range(4, 12)))
    for _ in range(3):
        with pytest.raises(loop.Diverged, match=r"3 consecutive steps.*Saved step 4 and stopped"):
            pretrain(config("max_bad_steps=3"), corpus, tokenizer, out, resume=True)
        step, folder = state.newest(out / "checkpoints")
        assert step == 4
        saved = json.loads((folder / "progress.json").read_text())
        assert (saved["step"], saved["bad_steps"]) == (4, 0)
    assert tokens(out) == clean[4]
    monkeypatch.undo()
    poison(monkeypatch, {5, 6, 7})  # again, one good step later
    with pytest.raises(loop.Diverged, match="Saved step 5 and stopped"):
        pretrain(config("max_bad_steps=3"), corpus, tokenizer, out, resume=True)
    assert tokens(out) == clean[5]


@pytest.mark.slow
def test_a_run_by_minutes_ends_on_time_with_its_schedule_at_zero_and_resumes(corpus, tokenizer, tmp_path):
    run = config("minutes=0.03", "log_every=1", "checkpoint_every=1000", "evaluate_every=1000")
    pretrain(run, corpus, tokenizer, tmp_path)
    progress = json.loads((state.newest(tmp_path / "checkpoints")[1] / "progress.json").read_text())
    assert 1.8 <= progress["elapsed"] < 4
    rates = [record["lr"] for record in read(tmp_path / "log.jsonl") if record["kind"] == "train"]
    assert rates[-1] < 0.3 * max(rates)
    pretrain(dataclasses.replace(run, minutes=0.04), corpus, tokenizer, tmp_path, resume=True)
    later = json.loads((state.newest(tmp_path / "checkpoints")[1] / "progress.json").read_text())
    assert later["step"] > progress["step"]
    assert later["elapsed"] >= 2.4


def test_gradient_checkpointing_changes_nothing(corpus, tokenizer):
    dropout = ("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1")
    runs = [
        make_run(config(*dropout, f"gradient_checkpointing={on}"), corpus, tokenizer, World()) for on in (True, False)
    ]
    curves = []
    for run in runs:
        torch.manual_seed(1)
        curves.append([train_step(run, 0.0)["loss"] for _ in range(3)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-6)


def test_validation_is_the_same_text_with_the_same_masks(corpus, tokenizer):
    run = make_run(config("masking.final_rate=0.5"), corpus, tokenizer, World())
    first = evaluate(run)
    generator = torch.get_rng_state()
    run.progress.step = 6
    assert evaluate(run) == first
    assert torch.equal(generator, torch.get_rng_state())  # evaluation must not change what training draws


def test_learning_rate():
    linear = Optimizer(lr=1.0, warmup_steps=4)
    assert [learning_rate(linear, s, s / 10) for s in (0, 1, 3, 5, 10)] == pytest.approx([0.25, 0.45, 0.7, 0.5, 0.0])
    cosine = Optimizer(lr=1.0, warmup_steps=0, schedule="cosine", final_share=0.1)
    assert [learning_rate(cosine, s, s / 10) for s in (0, 5, 10)] == pytest.approx([1.0, 0.5, 0.1])


def test_only_matrices_and_tables_decay(corpus, tokenizer):
    run = make_run(config("objectives.nsp=1"), corpus, tokenizer, World())
    decayed = {id(p) for p in decay_groups(run.module, 0.01)[0]["params"]}
    names = {name: id(p) in decayed for name, p in run.module.named_parameters()}
    assert all(decays != (name.endswith("bias") or "LayerNorm" in name) for name, decays in names.items())
    assert names["model.deberta.embeddings.word_embeddings.weight"]
    assert names["objectives.nsp.classifier.weight"]
