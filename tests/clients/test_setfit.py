"""SetFit: a sentence encoder with a small classifier, trained on a few texts."""

import numpy as np
import pytest

from debertakit import DebertaModel, accelerate, undo
from tests.clients.material import TEXTS, client, save

client("setfit")
client("sentence_transformers")
datasets = client("datasets")

from sentence_transformers import SentenceTransformer  # noqa: E402
from setfit import SetFitModel, Trainer, TrainingArguments  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save("Model", tmp_path_factory.mktemp("encoder"))


def classifier(folder, variant="stock"):
    body = SentenceTransformer(str(folder), device="cpu")
    if variant == "own":
        body[0].model = DebertaModel.from_pretrained(folder)
    head = LogisticRegression().fit(body.encode(TEXTS), [0, 0, 1, 1, 0])
    model = SetFitModel(model_body=body, model_head=head, labels=["good", "bad"])
    return accelerate(model) if variant == "accelerated" else model


@pytest.mark.parametrize("variant", ["own", "accelerated"])
def test_probabilities_equal_stock(folder, variant):
    stock, model = classifier(folder), classifier(folder, variant)
    found, expected = (np.asarray(each.predict_proba(TEXTS, as_numpy=True)) for each in (model, stock))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert list(model.predict(TEXTS)) == list(stock.predict(TEXTS))


def test_a_whole_setfit_model_is_accelerated_in_place(folder):
    """SetFitModel is not an nn.Module, but its body is one."""
    model = classifier(folder)
    before = model.predict_proba(TEXTS, as_numpy=True)
    assert accelerate(model) is model
    encoder = model.model_body[0].model.encoder
    assert "forward" in vars(encoder)
    np.testing.assert_allclose(model.predict_proba(TEXTS, as_numpy=True), before, atol=2e-5)
    assert undo(model) is model
    assert "forward" not in vars(encoder)


@pytest.mark.parametrize("variant", ["own", "body"])
def test_training_ends_with_the_probabilities_of_stock(folder, variant, tmp_path):
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 0, 1, 1, 0]})
    found = []
    for each in (variant, "stock"):
        model = classifier(folder, each)
        if each == "body":
            accelerate(model.model_body)
        arguments = TrainingArguments(
            str(tmp_path / each), batch_size=2, max_steps=2, body_learning_rate=1e-2, report_to="none",
            save_strategy="no", seed=3,
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=data).train()
        found.append(np.asarray(model.predict_proba(TEXTS, as_numpy=True)))
    np.testing.assert_allclose(*found, atol=1e-3)
