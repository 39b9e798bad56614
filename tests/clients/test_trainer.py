"""The Trainer of transformers on every head, with data that was padded beforehand."""

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from tests.clients.material import NO_DROPOUT, client
from tests.stock import HEADS, VARIANTS, assert_same, inputs, labels, pair

# Our question answering leaves padding out of its loss, stock does not (docs/clients.md).
SAME_LOSS = [
    (variant, kind) for variant in VARIANTS for kind in HEADS if (variant, kind) != ("own", "ForQuestionAnswering")
]

client("accelerate")
datasets = client("datasets")


def rows(kind, padding="right"):
    """A dataset of padded rows, with a column that no model accepts."""
    columns = {key: value.tolist() for key, value in {**inputs(kind, padding), **labels(kind)}.items()}
    return datasets.Dataset.from_dict({**columns, "note": ["a", "b", "c"]})


def trainer(model, kind, folder, padding="right", **options):
    arguments = TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=3, per_device_eval_batch_size=2, learning_rate=1e-2,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", seed=3, **options,
    )  # fmt: skip
    data = rows(kind, padding)
    return Trainer(model, arguments, train_dataset=data, eval_dataset=data)


def arrays(predictions):
    return list(predictions) if isinstance(predictions, tuple) else [predictions]


@pytest.mark.parametrize("kind", HEADS)
def test_the_trainer_keeps_the_columns_that_it_keeps_for_stock(kind, tmp_path):
    """The Trainer reads the signature of `forward` and silently drops columns that are missing there."""
    kept = []
    for model in pair("own", kind):
        batch = next(iter(trainer(model, kind, tmp_path).get_train_dataloader()))
        kept.append(set(batch))
    assert kept[0] == kept[1]
    assert "attention_mask" in kept[0]
    assert "note" not in kept[0]


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_predictions_on_padded_data_equal_stock(variant, kind, tmp_path):
    model, stock = pair(variant, kind)
    found, expected = (trainer(each, kind, tmp_path).predict(rows(kind)) for each in (model, stock))
    real = inputs(kind)["attention_mask"].bool().numpy()
    whole = kind in ("ForSequenceClassification", "ForMultipleChoice")
    for ours, theirs in zip(arrays(found.predictions), arrays(expected.predictions), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(*((ours, theirs) if whole else (ours[real], theirs[real])), atol=2e-5, rtol=1e-4)
    for ours, theirs in zip(arrays(found.label_ids), arrays(expected.label_ids), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("variant", "kind"), SAME_LOSS)
def test_evaluation_loss_on_padded_data_equals_stock(variant, kind, tmp_path):
    found, expected = (trainer(each, kind, tmp_path).evaluate() for each in pair(variant, kind))
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], abs=2e-5)


@pytest.mark.parametrize(("variant", "kind"), SAME_LOSS[: len(HEADS)])  # all of ours, and one accelerated
def test_two_steps_end_with_the_weights_of_stock(variant, kind, tmp_path):
    model, stock = pair(variant, kind, **NO_DROPOUT)
    start = {name: weight.detach().clone() for name, weight in stock.named_parameters()}
    for each in (model, stock):
        trainer(each, kind, tmp_path, optim="sgd", max_grad_norm=0.0).train()
    moved = {name: weight.detach() - start[name] for name, weight in stock.named_parameters()}
    for name, weight in model.named_parameters():
        assert_same(weight.detach() - start[name], moved[name], tolerance=1e-5)
    assert max(change.abs().max() for change in moved.values()) > 1e-4


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_checkpointing_changes_no_step(variant, reentrant, tmp_path):
    kind = "ForSequenceClassification"
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    found = []
    for extra in ({}, options):
        model, _ = pair(variant, kind, **NO_DROPOUT)
        trainer(model, kind, tmp_path, **extra).train()
        found.append([weight.detach() for weight in model.parameters()])
    assert_same(*found)


@pytest.mark.parametrize("kind", ["ForMaskedLM", "ForSequenceClassification"])
def test_bf16_training_lowers_the_loss(kind, tmp_path):
    model, _ = pair("own", kind, initializer_range=0.1, **NO_DROPOUT)
    model = type(model)(model.config)
    before = trainer(model, kind, tmp_path).evaluate()["eval_loss"]
    trainer(model, kind, tmp_path, bf16=True).train()
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert trainer(model, kind, tmp_path).evaluate()["eval_loss"] < before


@pytest.mark.parametrize("kind", HEADS)
def test_accumulated_steps_equal_one_large_step(kind, tmp_path):
    """`num_items_in_batch` reaches the loss: two small batches count their labels together."""
    found = []
    for size, accumulated in ((3, 1), (1, 3)):
        model, _ = pair("own", kind, **NO_DROPOUT)
        one = trainer(model, kind, tmp_path, optim="sgd", max_grad_norm=0.0, gradient_accumulation_steps=accumulated)
        one.args.per_device_train_batch_size = one._train_batch_size = size
        one.args.max_steps = 1
        one.train()
        found.append([weight.detach() for weight in model.parameters()])
    assert_same(*found)
