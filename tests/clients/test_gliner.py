"""GLiNER with a DeBERTa encoder inside: entities, fused layers, packed inference, training, saving."""

import pytest
import torch

from debertakit import DebertaModel, accelerate
from tests.clients.material import TEXTS, client, save
from tests.models import randomise

client("gliner")

from gliner import GLiNER, InferencePackingConfig  # noqa: E402

LABELS = ["name", "place", "film"]
# Five words each, of more or fewer pieces: gliner 0.2.24 finds entities of its token models in padded words, and fails.
FIVE_WORDS = [
    "anna saw films in paris",
    "unknown films here and there",
    "bob lives in rome here",
    "it was goodly badly unknown",
]
KINDS = {
    "span": {"span_mode": "markerV0"},
    "token": {"span_mode": "token_level"},
    "fused layers": {"span_mode": "markerV0", "fuse_layers": True},
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save("Model", tmp_path_factory.mktemp("encoder"))


def gliner(encoder, kind, variant="stock"):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "max_width": 4, "dropout": 0.0, "max_len": 48, "num_rnn_layers": 1}
    model = randomise(GLiNER.from_config({"model_name": str(encoder), **shape, **KINDS[kind]}))
    layer = model.model.token_rep_layer.bert_layer
    if kind == "fused layers":  # the weights of the layers shall depend on the mean over all positions
        fuser = layer.layers_fuser
        for part, value in ((fuser.squeeze.weight, 3.0), (fuser.W1.weight, 1.0), (fuser.W1.bias, 5.0)):
            torch.nn.init.constant_(part, value)
    if variant == "own":
        ours = DebertaModel(DebertaModel.config_class.from_dict(layer.model.config.to_dict())).eval()
        ours.load_state_dict(layer.model.state_dict())
        layer.model = ours
    return accelerate(model) if variant == "accelerated" else model


def entities(model, **options):
    """All entities with their scores."""
    texts = FIVE_WORDS if model.config.span_mode == "token_level" else TEXTS
    found = model.inference(texts, LABELS, threshold=0.0, flat_ner=False, **options)
    return [{(e["start"], e["end"], e["label"]): e["score"] for e in text} for text in found]


def assert_equal(found, expected):
    assert sum(map(len, expected)) > 20
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("variant", ["own", "accelerated"])
@pytest.mark.parametrize("kind", ["span", "token"])
def test_entities_equal_stock(encoder, kind, variant):
    stock, model = gliner(encoder, kind), gliner(encoder, kind, variant)
    assert_equal(entities(model), entities(stock))
    assert_equal(entities(model, batch_size=2), entities(stock, batch_size=2))


def test_fused_layers_equal_stock(encoder):
    """The fused layers are weighted by a mean over all positions, padding included."""
    stock, model = gliner(encoder, "fused layers"), gliner(encoder, "fused layers", "accelerated")
    padded, alone = entities(stock), entities(stock, batch_size=1)
    assert any(abs(padded[-1][key] - alone[-1].get(key, 0)) > 1e-4 for key in padded[-1])  # padding matters in stock
    assert_equal(entities(model), padded)


@pytest.mark.parametrize("kind", ["span", "token"])
def test_packed_inference_equals_stock(encoder, kind):
    """Many texts in one row under a mask of pairs, which only the stock encoder understands."""
    stock, model = gliner(encoder, kind), gliner(encoder, kind, "accelerated")
    packing = InferencePackingConfig(max_length=64)
    assert_equal(entities(model, packing_config=packing), entities(stock, packing_config=packing))


def test_a_training_step_has_the_gradients_of_stock(encoder):
    examples = [
        {"tokenized_text": text.split(), "ner": [[0, 0, "name"], [min(3, len(text.split()) - 1)] * 2 + ["place"]]}
        for text in TEXTS[:3]
    ]
    stock = gliner(encoder, "span")
    collate = stock.data_collator_class(stock.config, data_processor=stock.data_processor, prepare_labels=True)
    batch = {key: value for key, value in collate(examples).items() if isinstance(value, torch.Tensor)}
    found = []
    for model in (gliner(encoder, "span", "accelerated"), stock):
        loss = model.model(**batch).loss
        loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    ours, theirs = found
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)


def test_a_saved_model_loads_in_plain_gliner(encoder, tmp_path):
    model = gliner(encoder, "span", "accelerated")
    model.save_pretrained(tmp_path)
    again = GLiNER.from_pretrained(str(tmp_path), local_files_only=True).eval()
    assert "forward" not in vars(again.model.token_rep_layer.bert_layer.model.encoder)
    assert_equal(entities(again), entities(model))
