"""SentenceTransformer and CrossEncoder: encoding, ranking, training, saving."""

import numpy as np
import pytest
import torch

from debertakit import DebertaForSequenceClassification, DebertaModel, accelerate, undo
from tests.clients.material import PAIRS, TEXTS, client, save
from tests.stock import VARIANTS

client("sentence_transformers")
client("datasets")
client("accelerate")

from datasets import Dataset  # noqa: E402
from sentence_transformers import CrossEncoder, SentenceTransformer, SentenceTransformerTrainer  # noqa: E402
from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments  # noqa: E402
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments  # noqa: E402
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss  # noqa: E402
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss  # noqa: E402


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save("Model", tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    return save("ForSequenceClassification", tmp_path_factory.mktemp("ranker"), num_labels=1)


def sentence_model(folder, variant="stock"):
    model = SentenceTransformer(str(folder), device="cpu")
    if variant == "own":
        model[0].model = DebertaModel.from_pretrained(folder)
    return accelerate(model) if variant == "accelerated" else model


def cross_encoder(folder, variant="stock", **options):
    model = CrossEncoder(str(folder), device="cpu", **options)
    if variant == "own":
        model[0].model = DebertaForSequenceClassification.from_pretrained(folder)
    return accelerate(model) if variant == "accelerated" else model


def close(found, expected, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_embeddings_equal_stock(encoder, variant):
    stock, model = sentence_model(encoder), sentence_model(encoder, variant)
    for options in ({}, {"batch_size": 2, "normalize_embeddings": True}, {"precision": "float32"}):
        close(model.encode(TEXTS, **options), stock.encode(TEXTS, **options))
    close(model.encode(TEXTS[0]), stock.encode(TEXTS)[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_token_embeddings_equal_stock(encoder, variant):
    stock, model = sentence_model(encoder), sentence_model(encoder, variant)
    found = model.encode(TEXTS, output_value="token_embeddings")
    for ours, theirs in zip(found, stock.encode(TEXTS, output_value="token_embeddings"), strict=True):
        close(ours, theirs)


def test_an_accelerated_encoder_is_the_same_object_and_can_be_undone(encoder):
    model = sentence_model(encoder)
    before = model.encode(TEXTS)
    assert accelerate(model) is model
    assert undo(model) is model
    assert np.array_equal(model.encode(TEXTS), before)


def test_half_precision_by_the_old_keyword(encoder):
    model = SentenceTransformer(str(encoder), device="cpu", model_kwargs={"torch_dtype": torch.bfloat16})
    before = model.encode(TEXTS)
    close(accelerate(model).encode(TEXTS), before, tolerance=5e-2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_ends_with_the_embeddings_of_stock(encoder, variant, tmp_path):
    """With SGD: Adam makes a step of full size from a gradient that is nothing but rounding."""
    pairs = Dataset.from_dict({"anchor": TEXTS[:4], "positive": TEXTS[1:]})
    found = []
    for each in (variant, "stock"):
        model = sentence_model(encoder, each)
        arguments = TrainingArguments(
            str(tmp_path / each), max_steps=2, per_device_train_batch_size=2, learning_rate=10, optim="sgd",
            report_to=[],
            use_cpu=True, disable_tqdm=True, save_strategy="no", seed=3,
        )  # fmt: skip
        before = model.encode(TEXTS)
        SentenceTransformerTrainer(
            model, arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
        ).train()
        found.append(model.encode(TEXTS))
        assert np.abs(found[-1] - before).max() > 1e-2  # and not what an earlier evaluation kept
    close(*found, tolerance=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_model_loads_in_plain_sentence_transformers(encoder, variant, tmp_path):
    model = sentence_model(encoder, variant)
    model.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert type(again[0].model).__module__.startswith("transformers.")
    close(again.encode(TEXTS), model.encode(TEXTS))


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_and_ranking_equal_stock(ranker, variant):
    stock, model = cross_encoder(ranker), cross_encoder(ranker, variant)
    close(model.predict(PAIRS), stock.predict(PAIRS))
    close(model.predict(PAIRS, batch_size=2, activation_fn=torch.nn.Identity()),
          stock.predict(PAIRS, batch_size=2, activation_fn=torch.nn.Identity()))  # fmt: skip
    ours, theirs = (each.rank(TEXTS[1], TEXTS, return_documents=True) for each in (model, stock))
    assert [hit["corpus_id"] for hit in ours] == [hit["corpus_id"] for hit in theirs]
    close([hit["score"] for hit in ours], [hit["score"] for hit in theirs])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cross_encoder_of_several_labels_equals_stock(variant, tmp_path):
    folder = save("ForSequenceClassification", tmp_path, num_labels=3)
    stock, model = cross_encoder(folder), cross_encoder(folder, variant)
    close(model.predict(PAIRS, apply_softmax=True), stock.predict(PAIRS, apply_softmax=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_a_cross_encoder_ends_with_the_scores_of_stock(ranker, variant, tmp_path):
    rows = Dataset.from_dict({"a": TEXTS[:4], "b": TEXTS[1:], "label": [1.0, 0.0, 0.0, 1.0]})
    found = []
    for each in (variant, "stock"):
        model = cross_encoder(ranker, each)
        arguments = CrossEncoderTrainingArguments(
            str(tmp_path / each), max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[],
            use_cpu=True, disable_tqdm=True, save_strategy="no", seed=3,
        )  # fmt: skip
        before = model.predict(PAIRS)
        CrossEncoderTrainer(model, arguments, train_dataset=rows, loss=BinaryCrossEntropyLoss(model)).train()
        found.append(model.predict(PAIRS))
        assert np.abs(found[-1] - before).max() > 1e-3
    close(*found, tolerance=1e-3)
