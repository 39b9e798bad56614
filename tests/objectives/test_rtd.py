"""Replaced-token detection: sampling, loss counts, which loss updates which embeddings, and learning."""

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from scipy.stats import chisquare

from debertakit.heads import DebertaForMaskedLM, DebertaForReplacedTokenDetection
from debertakit.objectives.rtd import area_under_curve, sample
from debertakit.pretraining import state
from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import evaluate, make_run, pretrain, train_step
from debertakit.pretraining.recipes import recipe
from debertakit.pretraining.settings import override
from debertakit.text.corpus import prepare
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.training.log import read
from tests.pretraining.material import config, cut_short, same
from tests.pretraining.worker import torchrun

pytestmark = pytest.mark.usefixtures("exact_sums")

ELECTRA = ("model.embedding_size=32",)
TABLE = "deberta.embeddings.word_embeddings"


def run_of(corpus, tokenizer, *assignments, name="v3-tiny"):
    assignments = (*ELECTRA, *assignments) if name == "electra-tiny" else assignments
    return make_run(config(*assignments, name=name), corpus, tokenizer, World())


def part_of(run, step=0):
    return run.module.prepare(run.packing.batch(step), run.context, 0.0)


def backward(run, part, phase):
    """Gradients of one phase, by parameter name."""
    run.module.zero_grad(set_to_none=True)
    totals = torch.tensor(part.counts(), dtype=torch.float32)
    loss, _ = run.module(part, totals, phase)
    loss.backward()
    return {name: p.grad.clone() for name, p in run.module.named_parameters() if p.grad is not None}


def padded(ids, lengths, fill=0):
    rows = torch.full((len(lengths), int(lengths.max())), fill)
    for row, piece in zip(rows, ids.split(lengths.tolist()), strict=True):
        row[: len(piece)] = piece
    return rows


def losses_by_the_models_own_forward(run, part):
    """Compute both mean losses with the padded public forward and its labels, without code of the module."""
    lengths = part.text.lengths
    mask = padded(torch.ones_like(part.text.ids), lengths)
    hidden = torch.full_like(part.text.ids, -100)
    hidden[part.masked_tokens.rows] = part.text.ids[part.masked_tokens.rows]
    generator = run.module.generator(
        padded(part.masked.ids, lengths), attention_mask=mask, labels=padded(hidden, lengths, -100)
    )
    ids = part.text.ids.clone()
    ids[part.masked_tokens.rows] = part.sampled
    special = torch.isin(part.text.ids, torch.tensor(run.context.shards.vocabulary["special"]))
    labels = torch.where(special, -100, (ids != part.text.ids).long())
    detector = run.module.model(padded(ids, lengths), attention_mask=mask, labels=padded(labels, lengths, -100))
    return generator.loss, detector.loss


# ------------------------------------------------------------------------------------------------------- sampling


def test_words_are_drawn_by_their_probability():
    torch.manual_seed(0)
    logits = 2 * torch.randn(1, 12)
    ordinary = torch.tensor([1, 2, 4, 5, 6, 8, 9, 10])
    draws = torch.from_numpy(np.random.default_rng(0).random(20_000, np.float32))
    for temperature in (1.0, 2.5):
        drawn = sample(logits.expand(20_000, -1), draws, ordinary, temperature)
        expected = (logits[0].double()[ordinary] / temperature).softmax(0)
        counts = torch.bincount(drawn, minlength=12)[ordinary]
        assert counts.sum() == 20_000  # and nothing else was drawn
        assert chisquare(counts.numpy(), (expected * 20_000).numpy()).pvalue > 0.01


def test_special_words_and_rows_without_a_word_are_never_drawn(corpus, tokenizer):
    run = run_of(corpus, tokenizer, f"model.vocab_size={len(tokenizer) + 20}")
    allowed = set(range(len(tokenizer))) - set(tokenizer.all_special_ids)
    bias = run.module.generator.lm_predictions.lm_head.bias.data
    bias[[i for i in range(len(bias)) if i not in allowed]] = 100.0
    part = part_of(run)
    run.module(part, torch.ones(2))
    assert set(part.sampled.tolist()) <= allowed
    # at both ends of [0, 1), and where the generator has diverged
    ends = torch.tensor([0.0, 1 - 2**-24])
    for logits in (torch.zeros(2, 8), torch.full((2, 8), torch.nan), torch.tensor([[90.0] + 7 * [-90.0]] * 2)):
        assert set(sample(logits, ends, torch.tensor([1, 3]), 1.0).tolist()) <= {1, 3}


def test_labels_and_terms(corpus, tokenizer):
    run = run_of(corpus, tokenizer)
    part = part_of(run)
    text, rows = part.text.ids, part.masked_tokens.rows
    assert (part.masked.ids[rows] == tokenizer.mask_token_id).all()  # every hidden token is behind a [MASK]
    assert torch.equal(text[rows], part.masked_tokens.labels)
    part.sampled = text[rows].clone()
    part.sampled[::2] = (text[rows][::2] + 1).clamp(max=len(tokenizer) - 2)
    counted = [i for i, token in enumerate(text.tolist()) if token not in tokenizer.all_special_ids]
    assert part.counted.tolist() == counted
    other = {int(row) for row, new in zip(rows, part.sampled, strict=True) if new != text[row]}
    assert {i for i, label in zip(counted, part.labels().tolist(), strict=True) if label} == other
    assert part.counts() == [len(rows), len(counted)]


def test_the_draws_do_not_depend_on_how_a_step_is_cut(corpus, tokenizer):
    run = run_of(corpus, tokenizer, "data.step_tokens=512")
    batches = [run.packing.batch(3, i, 4) for i in range(4)]
    parts = [run.module.prepare(batch, run.context, 0.0) for batch in batches]
    assert torch.equal(torch.cat([part.draws for part in parts]), part_of(run, 3).draws)
    assert len(set(part_of(run, 3).draws.tolist())) > 10
    again = replace(batches[0], epochs=batches[0].epochs + 1)
    assert not torch.equal(run.module.prepare(again, run.context, 0.0).draws[:3], parts[0].draws[:3])


# ------------------------------------------------------------------------------------------------------- sharing


def test_losses_are_those_of_the_models_themselves(corpus, tokenizer):
    run = run_of(corpus, tokenizer, "rtd.sharing=nes")
    part = part_of(run)
    totals = torch.tensor(part.counts(), dtype=torch.float32)
    loss, figures = run.module(part, totals, "all")
    mlm, rtd = losses_by_the_models_own_forward(run, part)
    torch.testing.assert_close(figures[:, 0] / totals, torch.stack([mlm, rtd]).detach(), rtol=1e-5, atol=0)
    torch.testing.assert_close(loss, mlm + 50 * rtd, rtol=1e-5, atol=0)


def test_gdes_the_detection_loss_never_reaches_the_generators_table(corpus, tokenizer):
    run = run_of(corpus, tokenizer)
    part = part_of(run)
    alone = backward(run, part, "generator")
    joint = backward(run, part, "all")
    detector = backward(run, part, "discriminator")
    assert not any(name.startswith("generator.") for name in detector)
    assert detector[f"model.{TABLE}._weight"].abs().max() > 1e-3
    for name in alone:
        assert torch.equal(alone[name], joint[name]), name  # not a bit of the other loss
    assert not any(name.startswith("model.") for name in alone)
    # every word that the detector read pulls at its own residual, and no other
    touched = detector[f"model.{TABLE}._weight"].abs().sum(1).nonzero().squeeze(1)
    assert set(touched.tolist()) == set(part.replaced().ids.tolist())


def test_gdes_shares_every_table_that_the_input_has(corpus, tokenizer):
    run = run_of(corpus, tokenizer, "model.position_biased_input=true", "model.emd_steps=0")
    part = part_of(run)
    backward(run, part, "generator")
    gradients = backward(run, part, "discriminator")
    assert not any(name.startswith("generator.") for name in gradients)
    for table in ("word", "position"):
        assert gradients[f"model.deberta.embeddings.{table}_embeddings._weight"].abs().max() > 0


def test_es_both_losses_reach_the_one_table_in_a_joint_step(corpus, tokenizer):
    run = run_of(corpus, tokenizer, "rtd.sharing=es", "rtd.steps=joint")
    module, part = run.module, part_of(run)
    table = module.generator.get_input_embeddings().weight
    assert module.model.get_input_embeddings().weight is table
    got = backward(run, part, "all")[f"model.{TABLE}.weight"]
    mlm, rtd = losses_by_the_models_own_forward(run, part)
    of_mlm, of_rtd = (torch.autograd.grad(loss, table)[0] for loss in (mlm, rtd))
    assert min(of_mlm.abs().max(), of_rtd.abs().max()) > 1e-3
    torch.testing.assert_close(got, of_mlm + 50 * of_rtd, rtol=1e-4, atol=1e-5)


def test_es_both_losses_move_the_one_table_in_decoupled_steps(corpus, tokenizer):
    """Compare with AdamW by hand: first the generator's gradient, then the discriminator's at the updated table."""
    run = run_of(corpus, tokenizer, "rtd.sharing=es", "optimizer.clip=0", "optimizer.weight_decay=0.1")
    options, part = run.config.optimizer, part_of(run)
    before = copy.deepcopy(run.module)
    run.module(part, torch.ones(2), "generator")  # draws the words
    lr = options.lr / options.warmup_steps
    expected = run.module.generator.get_input_embeddings().weight.detach().clone()
    first, second = torch.zeros_like(expected), torch.zeros_like(expected)
    hand = replace(run, module=before)
    for time, which in ((1, 0), (2, 1)):
        table = before.generator.get_input_embeddings().weight
        table.data.copy_(expected)
        weight = (1.0, 50.0)[which]
        gradient = weight * torch.autograd.grad(losses_by_the_models_own_forward(hand, part)[which], table)[0]
        first = options.beta1 * first + (1 - options.beta1) * gradient
        second = options.beta2 * second + (1 - options.beta2) * gradient**2
        root = (second / (1 - options.beta2**time)).sqrt() + options.eps
        expected = expected * (1 - lr * options.weight_decay) - lr * first / (1 - options.beta1**time) / root
    train_step(run, 0.0)
    moved = run.module.generator.get_input_embeddings().weight
    assert torch.equal(moved, run.module.model.get_input_embeddings().weight)
    torch.testing.assert_close(moved.detach(), expected, rtol=0, atol=0.02 * lr)


def test_nes_two_tables_each_moved_by_its_own_loss(corpus, tokenizer):
    run = run_of(corpus, tokenizer, "rtd.sharing=nes")
    tables = [model.get_input_embeddings().weight for model in run.module.models.values()]
    assert tables[0].data_ptr() != tables[1].data_ptr()
    assert not torch.equal(*tables)
    part = part_of(run)
    by_generator, by_detector = backward(run, part, "generator"), backward(run, part, "discriminator")
    assert {name.split(".")[0] for name in by_generator} == {"generator"}
    assert {name.split(".")[0] for name in by_detector} == {"model"}


def test_the_detector_reads_the_updated_table_and_the_words_drawn_before(corpus, tokenizer, monkeypatch):
    run = run_of(corpus, tokenizer, "optimizer.lr=0.5")
    seen = []
    original = type(run.module).forward

    def watching(self, part, totals, phase="all"):
        result = original(self, part, totals, phase)
        table = self.generator.get_input_embeddings().weight.detach().clone()
        seen.append((phase, part.sampled.clone(), table))
        return result

    monkeypatch.setattr(type(run.module), "forward", watching)
    train_step(run, 0.0)
    assert [phase for phase, _, _ in seen] == ["generator", "discriminator"]
    assert torch.equal(seen[0][1], seen[1][1])
    assert not torch.equal(seen[0][2], seen[1][2])


def test_an_accumulated_step_is_the_whole_step(corpus, tokenizer):
    results = []
    for micro in (512, 128):
        run = run_of(corpus, tokenizer, "data.step_tokens=512", f"data.micro_tokens={micro}", "optimizer.eps=1e-3")
        assert run.config.data.parts(1) == 512 // micro
        results.append([train_step(run, 0.0) for _ in range(3)])
    for whole, cut in zip(*results, strict=True):
        assert cut == pytest.approx(whole, rel=1e-4)


# ------------------------------------------------------------------------------------------------------- figures


def test_area_under_the_curve_counts_pairs():
    draw = np.random.default_rng(0)
    scores, labels = draw.integers(0, 12, 200).astype(np.float32), draw.random(200) < 0.2
    pairs = scores[labels][:, None] - scores[~labels][None, :]
    expected = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    assert area_under_curve(torch.from_numpy(scores), torch.from_numpy(labels)) == pytest.approx(expected)
    assert area_under_curve(torch.ones(3), torch.zeros(3, dtype=torch.bool)) == 0.5


def test_validation_figures(corpus, tokenizer):
    run = run_of(corpus, tokenizer, "evaluate_tokens=256")
    run.module.model.mask_predictions.classifier.weight.data.mul_(50)  # some of both answers
    figures = evaluate(run)
    assert evaluate(run) == figures
    part = run.module.prepare(run.validation.batch(0), run.validation_context, 0.0)
    with torch.no_grad():
        run.module.eval()(part, torch.ones(2))
    found, labels = (part.scores > 0).numpy(), part.labels().numpy()
    assert figures["rtd_precision"] == pytest.approx(labels[found].mean())
    assert figures["rtd_recall"] == pytest.approx(found[labels].mean())
    assert figures["rtd_accuracy"] == pytest.approx((found == labels).mean())
    assert figures["replaced"] == pytest.approx((part.sampled != part.masked_tokens.labels).float().mean())
    assert figures["loss"] == pytest.approx(figures["mlm_loss"] + 50 * figures["rtd_loss"])
    assert "rtd_perplexity" not in figures


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("sharing", ["gdes", "es"])
def test_what_is_saved_is_what_was_trained(corpus, tokenizer, tmp_path, sharing):
    run = config("steps=3", f"rtd.sharing={sharing}", name="v3-tiny")
    pretrain(run, corpus, tokenizer, tmp_path)
    trained = make_run(run, corpus, tokenizer, World(), fresh=False)
    state.load(tmp_path / "checkpoints/step-00000003", trained.module, trained.optimizer, World())
    module = trained.module.eval()
    if sharing == "gdes":
        assert module.state_dict()[f"model.{TABLE}._weight"].abs().max() > 0
    ids = torch.tensor([tokenizer("the cat sees a small boat at night")["input_ids"]])
    logits = module.model(ids).logits
    ours = DebertaForReplacedTokenDetection.from_pretrained(tmp_path)
    torch.testing.assert_close(ours(ids).logits, logits, atol=1e-6, rtol=0)
    stock = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert type(stock).__name__ == "DebertaV2Model"
    last = stock(ids).last_hidden_state
    torch.testing.assert_close(ours.mask_predictions(last, last[:, :1]), logits, atol=1e-5, rtol=0)
    generator = DebertaForMaskedLM.from_pretrained(tmp_path / "generator")
    assert (generator.config.num_hidden_layers, generator.config.emd_steps) == (1, 2)
    torch.testing.assert_close(generator(ids).logits, module.generator(ids).logits, atol=0, rtol=0)
    assert not any(key.endswith("._weight") for key in load_file(tmp_path / "model.safetensors"))
    assert "FOLDER/generator fills masks" in (tmp_path / "README.md").read_text()


def test_electra_is_transformers_own(corpus, tokenizer, tmp_path):
    run = run_of(corpus, tokenizer, name="electra-tiny")
    generator, model = run.module.generator, run.module.model
    for table in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        tables = [getattr(each.electra.embeddings, table).weight for each in (generator, model)]
        assert tables[0] is tables[1]
    assert generator.generator_lm_head.weight is generator.electra.embeddings.word_embeddings.weight
    pretrain(config(*ELECTRA, "steps=2", name="electra-tiny"), corpus, tokenizer, tmp_path)
    stock, info = transformers.ElectraForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]  # noqa: PT018
    filler, info = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "generator", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]  # noqa: PT018
    assert torch.equal(filler.generator_lm_head.weight, stock.electra.embeddings.word_embeddings.weight)


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    """Each text uses the four words of one of eight topics, so a word from another topic is recognisable."""
    folder, draw = tmp_path_factory.mktemp("topics"), random.Random(0)
    words = [[f"{a}{b}" for b in ("ta", "no", "li", "ku")] for a in ("ba", "de", "fi", "go", "hu", "ja", "ke", "mo")]
    texts = [" ".join(draw.choices(draw.choice(words), k=22)) for _ in range(300)]
    (folder / "text.txt").write_text("\n\n".join(texts))
    tokenizer = train_tokenizer(folder / "text.txt", kind="wordpiece", vocab_size=90, progress=False)
    return prepare(folder / "text.txt", tokenizer, folder / "corpus", validation=0.15), tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lr", "tokens"), [("v3-tiny", 3e-3, 128), ("electra-tiny", 1e-2, 256)])
def test_200_steps_learn(topics, name, lr, tokens):
    """The temperature keeps a trained generator from writing only words that fit the topic."""
    sets = ("steps=200", f"data.step_tokens={tokens}", f"optimizer.lr={lr}", "optimizer.warmup_steps=10")
    run = run_of(*topics, *sets, "evaluate_tokens=2000", "rtd.temperature=5", name=name)
    before = evaluate(run)
    for _ in range(200):
        train_step(run, 0.0)
    after = evaluate(run)
    assert after["mlm_loss"] < before["mlm_loss"] - 1.0
    assert after["rtd_loss"] < 0.5 * 0.4  # less than half of what always answering with the base rate costs
    assert after["rtd_auc"] > 0.85 > 0.6 > before["rtd_auc"]
    assert after["rtd_recall"] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sets"),
    [("v3-tiny", ("rtd.warmup_steps=4",)), ("v3-tiny", ("rtd.sharing=es",)), ("electra-tiny", ELECTRA)],
)
def test_a_resumed_run_ends_with_the_same_bits(corpus, tokenizer, tmp_path, name, sets):
    dropout = ("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1")
    run = config(*dropout, *sets, "steps=9", "data.step_tokens=128", name=name)
    pretrain(run, corpus, tokenizer, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        cut_short(patch, at=8)
        with pytest.raises(KeyboardInterrupt):
            pretrain(run, corpus, tokenizer, tmp_path / "cut")
    torch.manual_seed(12345)  # whatever the process did in between
    pretrain(run, corpus, tokenizer, tmp_path / "cut", resume=True)
    for file in ("model.safetensors", "generator/model.safetensors"):
        assert same(*(load_file(tmp_path / run / file) for run in ("whole", "cut")))
    last = [tmp_path / run / "checkpoints/step-00000009" for run in ("whole", "cut")]
    if sets == ("rtd.warmup_steps=4",):
        assert same(*(load_file(folder / "heads.safetensors") for folder in last))
    moments = [torch.load(folder / "optimizer.pt", weights_only=True)["state"] for folder in last]
    assert all(torch.equal(moments[0][i]["exp_avg_sq"], moments[1][i]["exp_avg_sq"]) for i in moments[0])


def test_a_warm_up_moves_the_generators_own_weights_only(corpus, tokenizer):
    run = run_of(corpus, tokenizer, "rtd.warmup_steps=2")
    before = {name: p.detach().clone() for name, p in run.module.named_parameters()}

    def moved():
        return {name for name, p in run.module.named_parameters() if not torch.equal(p, before[name])}

    for _ in range(2):
        train_step(run, 0.0)
    table = f"generator.{TABLE}.weight"
    assert moved()
    assert all(name.startswith("generator.") for name in moved())
    assert table not in moved()
    assert "generator.deberta.embeddings.position_embeddings.weight" in moved()  # the detector has none
    train_step(run, 0.0)
    assert {table, f"model.{TABLE}._weight"} <= moved()


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_two_processes_do_what_one_does(material, corpus, tokenizer, tmp_path, parallel):
    sets = ("steps=3", "log_every=1", "evaluate_every=3", "optimizer.eps=1e-3", "data.micro_tokens=64")
    pretrain(config(*sets, name="v3-tiny"), corpus, tokenizer, tmp_path / "alone")
    torchrun(2, material, tmp_path / "both", *sets, f"parallel={parallel}", name="v3-tiny")
    logs = [read(tmp_path / name / "log.jsonl") for name in ("alone", "both")]
    for one, two in zip(*logs, strict=True):
        # validation is cut by rank: other batches of the same texts, so only the training steps are the same
        names = ("loss", "mlm", "rtd", "grad_norm") if one["kind"] == "train" else ()
        assert [two[name] for name in names] == pytest.approx([one[name] for name in names], rel=1e-4)
    assert logs[1][-1]["rtd_auc"] > 0
    for file in ("model.safetensors", "generator/model.safetensors"):
        one, two = (load_file(tmp_path / name / file) for name in ("alone", "both"))
        assert one.keys() == two.keys()
        for key in one:
            torch.testing.assert_close(two[key], one[key], rtol=1e-3, atol=1e-5)


# ------------------------------------------------------------------------------------------------------- settings


def test_settings_are_fields_like_others():
    changed = override(recipe("v3-tiny"), ["rtd.sharing=es", "rtd.weight=10", "rtd.warmup_steps=none"])
    assert (changed.rtd.sharing, changed.rtd.weight, changed.rtd.warmup_steps) == ("es", 10.0, None)
    for change, message in [
        ("rtd.sharring=es", "did you mean rtd.sharing"),
        ("rtd.sharing=some", "gdes"),
        ("rtd.weight=0", "must be > 0"),
        ("rtd.generator_width=2", "must be > 0 and <= 1"),
        ("masking.one_mask_per_span=true", "one_mask_per_span=false"),
        ("objectives.nsp=1", "mlm only"),
        ("rtd=none", "set one of its fields, rtd.FIELD"),
    ]:
        with pytest.raises(ValueError, match=message):
            override(recipe("v3-tiny"), [change])
    with pytest.raises(ValueError, match="no discriminator"):
        override(recipe("tiny"), ["rtd.sharing=es"])


def test_a_narrow_generator(corpus, tokenizer):
    run = run_of(corpus, tokenizer, "rtd.generator_width=0.5", "rtd.generator_layers=2")
    generator = run.module.generator.config
    assert (generator.hidden_size, generator.num_hidden_layers, generator.embedding_size) == (16, 2, 32)
    train_step(run, 0.0)
