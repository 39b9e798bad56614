"""Every recipe of the family, made small: it learns from real text, resumes exactly, and saves stock checkpoints."""

import copy
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from debertakit.pretraining import state
from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import evaluate, make_run, train_step
from debertakit.pretraining.recipes import RECIPES, recipe
from debertakit.pretraining.settings import override
from tests.models import randomise
from tests.stock import needs_stock_masked_lm

STEPS, SAVED = 200, 197
# models that only debertakit has
OWN = ["tiny-ar", "tiny-ar-ap", "tiny-ar-absolute", "tiny-mt", "tiny-d", "tiny-prefix", "tiny-plm", "tiny-emd-unshared"]
# no new code beyond that of the others (their parts have own tests), (tiny-entities) another corpus, or a detector:
# tests/objectives/test_rtd.py trains and resumes those
LEFT_OUT = {"tiny-ar-emd", "tiny-unilm", "tiny-position", "tiny-emd-none", "tiny-emd-embeddings", "tiny-entities"}
LEFT_OUT |= {"tiny-product", "tiny-no-emd-c2p", "tiny-no-emd-p2c", "v3-tiny", "electra-tiny"}
EVERY = [name for name in RECIPES if "tiny" in name and name not in LEFT_OUT]
STOCK = [name for name in EVERY if name not in OWN]
CLASSES = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "albert": "AlbertForPreTraining",
    "xlnet": "XLNetLMHeadModel",
    "gpt2": "GPT2LMHeadModel",
}
# Nats below the first loss that 200 small steps reach on held-out text: about two thirds of what was measured.
MARGIN = {"spanbert-tiny": 0.8, "roberta-tiny": 0.6}  # SpanBERT has two losses over the words


def shrunk(name: str, *more: str, layers: int = 2) -> Any:
    config = recipe(name)
    if config.family == "xlnet":
        shape = [f"n_layer={layers}", "d_model=64", "n_head=2", "d_inner=128", "dropout=0.1"]
    elif config.family == "gpt2":
        shape = [f"n_layer={layers}", "n_embd=64", "n_head=2", "n_inner=128", "resid_pdrop=0.1"]
    else:
        shape = [f"num_hidden_layers={layers}", "hidden_size=64", "num_attention_heads=2", "intermediate_size=128"]
        shape += ["hidden_dropout_prob=0.1", *(["decoder_layers=1"] if config.family == "deberta-d" else [])]
    data = ["data.max_length=32", "data.step_tokens=128", "data.micro_tokens=128", "evaluate_tokens=1024"]
    # the margins are below the loss of a uniform guess
    pace = [f"steps={STEPS}", "optimizer.warmup_steps=10", "precision=fp32", "unigram_bias=false"]
    return override(config, [*(f"model.{field}" for field in shape), *data, *pace, *more])


@dataclass
class Trained:
    config: Any
    tokenizer: Any
    before: dict[str, float]
    after: dict[str, float]
    module: Any
    """After the last step."""
    optimizer: Any
    folder: Path
    """The checkpoint of step SAVED."""
    again: Any
    """A run that went on from it."""


@pytest.fixture(scope="session")
def trained(materials, tmp_path_factory):
    @cache
    def train(name: str) -> Trained:
        config = shrunk(name, layers=2 if name.startswith(("albert", "v2")) else 1)
        corpus, tokenizer = materials("bpe" if config.data.tokenizer == "bpe" else "wordpiece")
        run = make_run(config, corpus, tokenizer, World())
        before = evaluate(run)
        for step in range(STEPS):
            if step == SAVED:
                root = tmp_path_factory.mktemp(name)
                written = config.to_json()
                folder = state.save(root, run.module, run.optimizer, run.progress, World(), tokenizer, written)
            train_step(run, 0.0)
        after = evaluate(run)
        torch.manual_seed(99)
        again = make_run(config, corpus, tokenizer, World())
        again.progress = state.load(folder, again.module, again.optimizer, World())
        while again.progress.step < STEPS:
            train_step(again, 0.0)
        return Trained(config, tokenizer, before, after, run.module, run.optimizer, folder, again)

    return train


def each(names):
    """Group the tests by recipe, so that one worker trains each recipe once. Only `tiny` is in the fast half."""
    params = [name if name == "tiny" else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("name", params, scope="module")


@each(EVERY)
def test_it_learns(trained, name):
    result = trained(name)
    assert result.after["loss"] < result.before["loss"] - MARGIN.get(name, 0.4)


@each(EVERY)
def test_it_resumes_exactly(trained, name):
    result = trained(name)
    ours, theirs = result.module.state_dict(), result.again.module.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    moments = [optimizer.state_dict()["state"] for optimizer in (result.optimizer, result.again.optimizer)]
    assert all(torch.equal(moments[0][i]["exp_avg_sq"], moments[1][i]["exp_avg_sq"]) for i in moments[0])


@each(STOCK)
def test_every_parameter_learns(trained, name):
    """DDP waits for the gradient of every parameter."""
    result = trained(name)
    run = result.again
    part = run.module.prepare(run.packing.batch(0), run.context, 0.0)
    loss, _ = run.module(part, torch.tensor(part.counts(), dtype=torch.float32))
    loss.backward()
    missing = [key for key, p in run.module.named_parameters() if p.requires_grad and p.grad is None]
    run.optimizer.zero_grad(set_to_none=True)
    assert not missing


@each(STOCK)
def test_stock_transformers_computes_the_same(trained, name):
    """Loaded under its own class, sequence by sequence, against our padded and packed passes."""
    result = trained(name)
    if result.config.family == "deberta":
        needs_stock_masked_lm()
    config = json.loads((result.folder / "config.json").read_text())
    stock, expected = load(result.folder, config["architectures"][0])
    if result.config.family != "deberta":
        spanbert = result.config.objectives.sbo > 0
        assert type(stock).__name__ == ("BertForMaskedLM" if spanbert else CLASSES[result.config.family])
    module = saved_module(result)
    part = module.prepare(result.again.packing.batch(0), result.again.context, 0.0)
    (view,) = part.views.values()
    rows = torch.arange(len(view.ids)) if view.order is None else torch.from_numpy(view.masked.positions)
    with torch.no_grad():
        _, hidden = module.backbone.hidden_rows(view, None, rows)
        words = module.backbone.word_logits(hidden)
    found = expected(view, rows)
    torch.testing.assert_close(words, found, rtol=1e-4, atol=1e-4)
    if module.backbone.has_pair_head:
        with torch.no_grad():
            pairs = module.backbone.pair_logits(hidden[view.starts])
        torch.testing.assert_close(pairs, torch.cat([expected.pairs(ids, s) for ids, s in sequences(view)]))
        assert not (result.folder / "heads.safetensors").exists()
    # the encoder alone, and the tokenizer, as most people load them
    base, info = transformers.AutoModel.from_pretrained(result.folder, output_loading_info=True)
    assert not {key for key in info["missing_keys"] if "pooler" not in key}
    tokenizer = transformers.AutoTokenizer.from_pretrained(result.folder)
    text = "The statement is executed when the condition is true"
    assert tokenizer(text)["input_ids"] == result.tokenizer(text)["input_ids"]
    inputs = tokenizer(text, "and then the loop ends", return_tensors="pt")
    assert base.eval()(**inputs).last_hidden_state.shape[1] == inputs["input_ids"].shape[1]


def load(folder, architecture):
    """The stock model, and a function to its word logits of a packed view's rows."""
    model, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not {key for key in info["unexpected_keys"] if "position_embeddings" not in key}  # the mask decoder's
    model.eval()

    @torch.no_grad()
    def words(view, rows):
        logits = []
        for s, (ids, segments) in enumerate(sequences(view)):
            if view.order is None:
                kwargs = {} if segments is None else {"token_type_ids": segments}
                logits.append(model(ids, **kwargs)[0][0])
                continue
            low = int(view.starts[s])
            order = view.order[low : low + ids.shape[1]].tolist()
            places = [i for i, o in enumerate(order) if o]
            unseen = [[float(j > 0 and j >= i) for j in order] for i in order]
            mapping = [[float(i == place) for i in range(len(order))] for place in places]
            if places:
                output = model(
                    ids,
                    perm_mask=torch.tensor([unseen]),
                    target_mapping=torch.tensor([mapping]),
                    token_type_ids=torch.zeros_like(ids),
                )
                logits.append(output.logits[0])
        return torch.cat(logits)

    @torch.no_grad()
    def pairs(ids, segments):
        return model(ids, token_type_ids=segments)[1]

    words.pairs = pairs
    return model, words


def sequences(view):
    lengths = view.lengths.tolist()
    segments = [None] * len(lengths) if view.segments is None else [s[None] for s in view.segments.split(lengths)]
    return [(ids[None], s) for ids, s in zip(view.ids.split(lengths), segments, strict=True)]


def saved_module(result):
    """A copy of the module as saved at step SAVED. The tests share ``result``, so it must not change."""
    module, optimizer = copy.deepcopy((result.again.module, result.again.optimizer))
    state.load(result.folder, module, optimizer, World())
    return module.eval()


@pytest.mark.slow
def test_albert_shares_what_it_says(trained, materials):
    counts = {}
    for share in ("all", "ffn", "attention", "none"):
        corpus, tokenizer = materials("wordpiece")
        model = make_run(shrunk("albert-tiny", f"model.share={share}"), corpus, tokenizer, World()).module.model
        counts[share] = sum(p.numel() for p in model.parameters())
    assert counts["all"] < counts["attention"]
    assert counts["all"] < counts["ffn"]
    assert counts["attention"] + counts["ffn"] == counts["all"] + counts["none"]  # each one half of the difference
    halves = {"albert-tiny-attention": {"attention"}}
    halves["albert-tiny-ffn"] = {"ffn", "ffn_output", "full_layer_layer_norm"}
    for name, shared in halves.items():
        weights = load_file(trained(name).folder / "model.safetensors")
        first = {key: value for key, value in weights.items() if "albert_layer_groups.0." in key}
        assert first
        for key, value in first.items():
            part = key.split("albert_layers.0.")[1].split(".")[0]
            assert torch.equal(value, weights[key.replace("groups.0.", "groups.1.")]) == (part in shared), key


@pytest.mark.slow
def test_roberta_counts_positions_from_behind_the_padding(trained):
    run = trained("roberta-tiny").again
    seen = []
    hook = run.module.model.roberta.embeddings.position_embeddings.register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    view = run.module.prepare(run.packing.batch(0), run.context, 0.0).views["masked"]
    run.module.backbone.hidden_rows(view, None, torch.tensor([0]))
    hook.remove()
    pad = run.module.model.config.pad_token_id
    for row, length in zip(seen[0], view.lengths.tolist(), strict=True):
        assert row[:length].tolist() == list(range(pad + 1, pad + 1 + length))
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained("roberta-tiny").folder)
    assert "token_type_ids" not in tokenizer("a", "b")


def test_xlnet_reads_a_thousand_tokens(materials):
    more = ("data.max_length=1024", "data.step_tokens=1024", "data.micro_tokens=1024", "data.mode=blocks")
    corpus, tokenizer = materials("wordpiece")
    run = make_run(shrunk("xlnet-tiny", *more, layers=1), corpus, tokenizer, World())
    assert int(run.packing.batch(0).lengths.max()) == 1024
    first = train_step(run, 0.0)
    assert first["loss"] < 7


def test_padding_changes_nothing(materials):
    """A sequence gives the same rows alone and padded in a batch, with weights that make every token matter."""
    corpus, tokenizer = materials("wordpiece")
    for name in ("bert-tiny", "albert-tiny"):
        run = make_run(shrunk(name), corpus, tokenizer, World())
        module = randomise(run.module, std=0.2).eval()
        view = module.prepare(run.packing.batch(0), run.context, 0.0).views["masked"]
        assert len(set(view.lengths.tolist())) > 1
        with torch.no_grad():
            _, rows = module.backbone.hidden_rows(view, None, torch.arange(len(view.ids)))
            alone = torch.cat(
                [module.model.base_model(ids, token_type_ids=s).last_hidden_state[0] for ids, s in sequences(view)]
            )
        torch.testing.assert_close(rows, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bert-tiny", "model.hiden_size=3", "did you mean model.hidden_size"),
        ("albert-tiny", "model.num_hidden_groups=2", "unknown field model.num_hidden_groups"),
        ("albert-tiny", "model.share=some", "model.share"),
        ("bert-tiny", "data.mode=blocks", "data.mode=documents"),
        ("xlnet-tiny", "masking.one_mask_per_span=true", "one_mask_per_span=false"),
        ("xlnet-tiny", "parallel=fsdp2", "family=deberta"),
    ],
)
def test_what_cannot_be_is_refused(name, change, message):
    with pytest.raises(ValueError, match=message):
        override(recipe(name), [change])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bert-tiny", "objectives.arlm=1", "BertForPreTraining cannot be trained on arlm"),
        ("xlnet-tiny", "objectives.mlm=1", "XLNetLMHeadModel cannot be trained on mlm"),
        ("bert-tiny", "objectives.position=1", "copy its answer"),
        ("roberta-tiny", "model.max_position_embeddings=32", "31 positions"),
    ],
)
def test_what_cannot_be_built_is_refused(materials, name, change, message):
    corpus, tokenizer = materials("wordpiece")
    with pytest.raises(ValueError, match=message):
        make_run(shrunk(name, change), corpus, tokenizer, World())


def test_a_wrong_field_in_a_recipe_is_refused(materials):
    corpus, tokenizer = materials("wordpiece")
    config = shrunk("albert-tiny")
    with pytest.raises(ValueError, match=r"unknown field model\.hiden_act"):
        make_run(replace(config, model={**config.model, "hiden_act": "gelu"}), corpus, tokenizer, World())
