import copy
import math
from itertools import combinations

import numpy as np
import pytest
import torch
import transformers

from debertakit.acceleration import accelerate
from debertakit.attention import cpu
from debertakit.attention import linear as onednn
from debertakit.attention.positions import TERMS
from debertakit.attention.projections import _cache, freeze
from debertakit.config import DebertaConfig
from debertakit.model import DebertaModel
from tests.models import randomise, small
from tests.numpy_deberta import NumpyDeberta


def stock_twin(model: DebertaModel, config: DebertaConfig):
    stock = transformers.DebertaV2Model(transformers.DebertaV2Config.from_dict(config.to_dict())).eval()
    stock.load_state_dict(model.state_dict())
    return stock


def test_hidden_states_equal_numpy():
    config = small(emd_steps=0)
    model = randomise(DebertaModel(config))
    ids = torch.randint(1, 101, (1, 11))
    expected = NumpyDeberta({f"deberta.{k}": v for k, v in model.state_dict().items()}, config).hidden(
        ids[0].numpy(), 2
    )
    torch.testing.assert_close(model(ids).last_hidden_state[0].double(), torch.from_numpy(expected), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v2-xlarge", "deberta-v3-base"])
def test_a_sentence_does_not_depend_on_its_batch(name):
    model = randomise(DebertaModel(small(name)))
    texts = [torch.randint(1, 101, (n,)) for n in (1, 4, 9, 30)]
    ids, mask = torch.zeros(4, 30, dtype=torch.long), torch.zeros(4, 30, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
    together = model(ids, attention_mask=mask).last_hidden_state
    for row, text in enumerate(texts):
        alone = model(text[None]).last_hidden_state[0]
        torch.testing.assert_close(together[row, : len(text)], alone, atol=1e-5, rtol=0)
        assert together[row, len(text) :].abs().sum() == 0


@pytest.mark.parametrize("length", [1, 513, 4096])
def test_lengths_from_one_to_4096(length):
    model = randomise(DebertaModel(small(num_hidden_layers=1)), 0.05)
    with torch.no_grad():
        out = model(torch.randint(1, 101, (1, length))).last_hidden_state
    assert out.shape == (1, length, 32)
    assert out.isfinite().all()


def test_attentions_and_hidden_states_on_request():
    config = small(emd_steps=0)
    model = randomise(DebertaModel(config))
    ids, mask = torch.randint(1, 101, (3, 8)), torch.ones(3, 8, dtype=torch.long)
    mask[1, 5:] = 0
    mask[2, :2] = 0
    ours = model(ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    theirs = stock_twin(model, config)(ids, attention_mask=mask, output_attentions=True)
    assert len(ours.hidden_states) == 3
    real = (mask[:, :, None] * mask[:, None, :]).bool()[:, None].expand(-1, 2, -1, -1)
    for a, b in zip(ours.attentions, theirs.attentions, strict=True):
        torch.testing.assert_close(a[real], b[real], atol=1e-5, rtol=0)
        assert a[~real].abs().sum() == 0
    assert model(ids).attentions is None


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v3-base"])
def test_gradient_checkpointing_changes_no_gradient(name):
    model = DebertaModel(small(name)).train()
    ids = torch.randint(1, 101, (2, 12))
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(1)  # dropout on: the recomputed pass must draw the same masks
        model(ids).last_hidden_state.square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.skipif(not cpu.available(), reason=cpu.reason() or "built")  # the kernel computes the hash
def test_position_projections_are_kept_until_a_weight_changes():
    model = randomise(DebertaModel(small()))
    att, ids = model.encoder.layer[0].attention.self, torch.randint(1, 101, (1, 6))
    fresh = lambda: copy.deepcopy(model)(ids).last_hidden_state  # noqa: E731  (a copy has no cache)
    with torch.no_grad():
        first = model(ids).last_hidden_state
        kept = _cache[att]
        model(ids)
        assert _cache[att] is kept
        att.key_proj.weight.mul_(1.5)
        torch.testing.assert_close(model(ids).last_hidden_state, fresh(), atol=0, rtol=0)
        assert not torch.allclose(first, model(ids).last_hidden_state)
        for change in (
            lambda: model.encoder.rel_embeddings.weight.add_(0.3),
            lambda: model.encoder.LayerNorm.weight.add_(0.3),
            lambda: model.double(),
            lambda: model.float(),
            lambda: model.load_state_dict({k: v * 1.1 for k, v in model.state_dict().items()}),
            # Changes that torch does not record: a merged adapter writes through .data.
            lambda: att.key_proj.weight.data.add_(0.1),
            lambda: att.query_proj.bias.data[0].add_(0.1),
            lambda: model.encoder.rel_embeddings.weight.data.copy_(model.encoder.rel_embeddings.weight.flip(0)),
        ):
            change()
            torch.testing.assert_close(model(ids).last_hidden_state, fresh(), atol=0, rtol=0)
    model(ids).last_hidden_state.sum().backward()
    assert att.key_proj.weight.grad is not None  # with gradients, the cache is not used


def test_a_frozen_model_trusts_its_cached_projections():
    model = randomise(DebertaModel(small()))
    att, ids = model.encoder.layer[0].attention.self, torch.randint(1, 101, (1, 6))
    freeze(model)
    with torch.no_grad():
        model(ids)
        cached = _cache[att]
        att.key_proj.weight.data.add_(0.1)
        model(ids)
        assert _cache[att] is cached  # stale: a frozen model does not check its weights
        expected = copy.deepcopy(model).double()(ids).last_hidden_state
        torch.testing.assert_close(model.double()(ids).last_hidden_state, expected, atol=0, rtol=0)


def test_hooks_on_a_projection_are_not_passed_by():
    """Hooks may change the output of a projection without changing its weights."""
    model = randomise(DebertaModel(small()))
    ids = torch.randint(1, 101, (1, 6))
    with torch.no_grad():
        before = model(ids).last_hidden_state
        key = model.encoder.layer[0].attention.self.key_proj
        hook = key.register_forward_hook(lambda _, __, output: 2 * output)
        doubled = model(ids).last_hidden_state
        hook.remove()
        assert torch.equal(model(ids).last_hidden_state, before)
        key.weight.mul_(2), key.bias.mul_(2)
        torch.testing.assert_close(model(ids).last_hidden_state, doubled, atol=1e-5, rtol=0)


@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_position_projections_are_forgotten_at_an_optimisers_step(how):
    """A fused step does not increment the version of the weights, and may come right after an evaluation."""
    model = randomise(DebertaModel(small()))
    ids = torch.randint(1, 101, (1, 6))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, **{how: True})
    model(ids).last_hidden_state.square().mean().backward()
    with torch.no_grad():
        model(ids)
    optimiser.step()
    with torch.no_grad():
        after, fresh = model(ids).last_hidden_state, copy.deepcopy(model)(ids).last_hidden_state
    torch.testing.assert_close(after, fresh, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_stays_finite_where_stock_overflows(dtype):
    """The mDeBERTa overflow: large projections, 512 tokens, scores above 65504."""
    config = small(num_hidden_layers=1, emd_steps=0)
    model = DebertaModel(config).eval()
    with torch.no_grad():
        for projection in ("query_proj", "key_proj"):
            getattr(model.encoder.layer[0].attention.self, projection).weight.normal_(0, 15.0)
    ids = torch.randint(1, 101, (1, 512))
    with torch.no_grad(), torch.autocast("cpu", dtype):
        assert model(ids).last_hidden_state.isfinite().all()
        theirs = stock_twin(model, config)(ids).last_hidden_state
    if dtype == torch.float16:
        assert not theirs.isfinite().all()


def test_factorised_embeddings_and_segments():
    config = small(embedding_size=12, type_vocab_size=2, emd_steps=0)
    model = randomise(DebertaModel(config))
    ids, segments = torch.randint(1, 101, (2, 7)), torch.randint(0, 2, (2, 7))
    theirs = stock_twin(model, config)(ids, token_type_ids=segments).last_hidden_state
    torch.testing.assert_close(model(ids, token_type_ids=segments).last_hidden_state, theirs, atol=1e-5, rtol=0)


def test_absolute_positions_at_the_input():
    absolute = {"position_biased_input": True, "relative_attention": False, "pos_att_type": (), "norm_rel_ebd": "none"}
    config = small(emd_steps=0, **absolute)
    model = randomise(DebertaModel(config))
    ids = torch.randint(1, 101, (2, 7))
    torch.testing.assert_close(
        model(ids).last_hidden_state, stock_twin(model, config)(ids).last_hidden_state, atol=1e-5, rtol=0
    )
    with pytest.raises(ValueError, match="512 absolute positions"):
        model(torch.ones(1, 600, dtype=torch.long))


def test_content_times_position_attention_as_a_config():
    """Content attention times position attention, renormalised, equals one attention with scores c2c + p2p."""
    config = small(pos_att_type=["p2p"], num_hidden_layers=1, emd_steps=0)
    model = randomise(DebertaModel(config))
    ids = torch.randint(1, 101, (1, 9))
    found = model(ids, output_attentions=True)
    att, encoder = model.encoder.layer[0].attention.self, model.encoder
    hidden = model(ids, output_hidden_states=True).hidden_states[0][0]
    heads = lambda x: x.unflatten(-1, (2, 16)).transpose(0, 1)  # noqa: E731
    table = encoder.LayerNorm(encoder.rel_embeddings.weight)
    q, k, pos_q, pos_k = (
        heads(projection(x)) for x in (hidden, table) for projection in (att.query_proj, att.key_proj)
    )
    scale = (2 * 16) ** -0.5
    content = (q @ k.transpose(-1, -2) * scale).softmax(-1)
    row = config.relative_positions.rows(torch.arange(9)[:, None] - torch.arange(9)).long()
    position = ((pos_q * pos_k).sum(-1) * scale)[:, row].softmax(-1)
    product = content * position
    product = product / product.sum(-1, keepdim=True)
    torch.testing.assert_close(found.attentions[0][0], product, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("terms", [t for n in range(4) for t in combinations(TERMS, n)], ids="+".join)
@pytest.mark.parametrize("layout", ["v1", "own position projections", "shared"])
def test_each_set_of_position_terms_reads_its_own_weights_at_its_scale(layout, terms):
    """Compare the attention of one layer with loops in numpy over the weights."""
    heads, d, length = 2, 16, 7
    name = "deberta-base" if layout == "v1" else "deberta-v3-base"
    shared = {} if layout == "v1" else {"share_att_key": layout == "shared"}
    config = small(name, pos_att_type=terms, num_hidden_layers=1, emd_steps=0, **shared)
    model = randomise(DebertaModel(config))
    output = model(torch.randint(1, 101, (1, length)), output_attentions=True, output_hidden_states=True)
    weights = {key: value.double().numpy() for key, value in model.encoder.state_dict().items()}

    def project(x, part):
        at = f"layer.0.attention.self.{part}"
        return (x @ weights[f"{at}.weight"].T + weights.get(f"{at}.bias", 0)).reshape(len(x), heads, -1)

    hidden = output.hidden_states[0][0].detach().double().numpy()
    table = model.encoder.rel_embeddings.weight
    table = (table if layout == "v1" else model.encoder.LayerNorm(table)).detach().double().numpy()
    if layout == "v1":
        q, k, _ = np.split(project(hidden, "in_proj"), 3, axis=-1)
        q = q + weights["layer.0.attention.self.q_bias"].reshape(heads, d)
        to_key, to_query = "pos_proj", "pos_q_proj"
    else:
        q, k = project(hidden, "query_proj"), project(hidden, "key_proj")
        to_key, to_query = ("key_proj", "query_proj") if layout == "shared" else ("pos_key_proj", "pos_query_proj")
    pos_k = project(table, to_key) if {"c2p", "p2p"} & set(terms) else None
    pos_q = project(table, to_query) if {"p2c", "p2p"} & set(terms) else None
    span = len(table) // 2
    for h in range(heads):
        for i in range(length):
            scores = np.zeros(length)
            for j in range(length):
                r = i - j + span  # short distances are exact in both generations
                scores[j] = q[i, h] @ k[j, h]
                scores[j] += q[i, h] @ pos_k[r, h] if "c2p" in terms else 0.0
                scores[j] += pos_q[r, h] @ k[j, h] if "p2c" in terms else 0.0
                scores[j] += pos_q[r, h] @ pos_k[r, h] if "p2p" in terms else 0.0
            expected = np.exp(scores / math.sqrt(d * (1 + len(terms))))
            expected /= expected.sum()
            found = output.attentions[0][0, h, i].detach().double().numpy()
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_p2p_changes_the_result_and_trains():
    model = randomise(DebertaModel(small(pos_att_type="c2p|p2c|p2p")))
    ids = torch.randint(1, 101, (1, 9))
    out = model(ids).last_hidden_state
    out.sum().backward()
    assert model.encoder.rel_embeddings.weight.grad.abs().sum() > 0
    without = DebertaModel(small())
    without.load_state_dict(model.state_dict())
    assert not torch.allclose(out, without.eval()(ids).last_hidden_state)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": torch.tensor([[1, 101]])}, "holds 101, outside the vocabulary of 101"),
        ({"input_ids": torch.tensor([[1, -1]])}, "holds -1"),
        ({"input_ids": torch.ones(1, 0, dtype=torch.long)}, "empty"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 4)}, "attention_mask"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 3, 3)}, "attention_mask"),
        ({"input_ids": torch.ones(3, dtype=torch.long)}, "input_ids should be"),
        ({}, "either input_ids or inputs_embeds"),
    ],
)
def test_bad_input_is_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        DebertaModel(small())(**inputs)


@pytest.mark.parametrize("reentrant", [False, True])
def test_both_kinds_of_checkpointing_give_the_same_gradients(reentrant):
    """All layers share the relative table, so each checkpointed layer must take the table as an input for gradients."""
    model = DebertaModel(small(num_hidden_layers=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).train()
    embedded = torch.randn(2, 12, 32, requires_grad=True)
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.zero_grad()
        model(inputs_embeds=embedded).last_hidden_state.square().mean().backward()
        grads.append(model.encoder.rel_embeddings.weight.grad.clone())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("padded", [False, True])
def test_returned_states_and_attentions_keep_their_gradients(padded):
    model = randomise(DebertaModel(small()))
    ids, mask = torch.randint(1, 101, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    if padded:
        mask[0, :3] = 0
    output = model(ids, mask, output_hidden_states=True, output_attentions=True)
    kept = [*output.hidden_states, *output.attentions]
    for tensor in kept:
        tensor.retain_grad()
    output.last_hidden_state.square().sum().backward()
    assert all(tensor.grad.abs().sum() > 0 for tensor in kept)


@pytest.mark.slow
def test_export_keeps_padding_and_gives_the_same():
    model = randomise(DebertaModel(small()))
    ids, mask = torch.randint(1, 101, (2, 10)), torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    batch, length = torch.export.Dim("batch", min=2, max=16), torch.export.Dim("length", min=4, max=64)
    shapes = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    exported = torch.export.export(
        model, (), {"input_ids": ids, "attention_mask": mask}, dynamic_shapes=shapes, strict=False
    ).module()
    ids, mask = torch.randint(1, 101, (3, 21)), torch.ones(3, 21, dtype=torch.long)
    mask[0, 15:] = 0
    ours = model(ids, attention_mask=mask).last_hidden_state
    theirs = exported(input_ids=ids, attention_mask=mask)["last_hidden_state"]
    torch.testing.assert_close(theirs[mask.bool()], ours[mask.bool()], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_compiled_model_gives_the_same():
    model = randomise(DebertaModel(small()))
    compiled = torch.compile(model, backend="aot_eager")
    for length in (9, 14):
        ids, mask = torch.randint(1, 101, (2, length)), torch.ones(2, length, dtype=torch.long)
        mask[1, 5:] = 0
        expected = model(ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(compiled(ids, attention_mask=mask).last_hidden_state, expected, atol=1e-5, rtol=0)
    compiled(ids, attention_mask=mask).last_hidden_state.sum().backward()
    assert model.encoder.rel_embeddings.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("stock", [False, True])
def test_products_through_onednn_change_nothing_but_rounding(stock, monkeypatch):
    torch.manual_seed(0)
    config = small(hidden_size=256, intermediate_size=512, num_hidden_layers=2)
    model = randomise(DebertaModel(config))
    if stock:
        model = accelerate(transformers.DebertaV2Model(transformers.DebertaV2Config.from_dict(config.to_dict())).eval())
    ids = torch.randint(5, 101, (2, 9))
    products = []
    monkeypatch.setattr(onednn, "_product", lambda *a, real=onednn._product: (products.append(a), real(*a))[1])

    def run(choice):
        monkeypatch.setenv("DEBERTAKIT_LINEAR", choice)
        onednn._uses_onednn.cache_clear()
        model.zero_grad()
        out = model(ids).last_hidden_state
        out.square().sum().backward()
        with torch.no_grad():
            inference = model(ids).last_hidden_state
        return out, inference, model.get_parameter("encoder.layer.0.attention.self.query_proj.weight").grad

    expected = run("torch")
    assert not products
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("no oneDNN")
    for ours, theirs in zip(run("onednn"), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert len(products) > 2 * 6 * 3  # forward, two gradients, and inference
    onednn._uses_onednn.cache_clear()
