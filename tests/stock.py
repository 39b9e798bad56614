"""Pairs of models with the same random weights: transformers' stock class, and ours or the accelerated stock class."""

import copy
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor

import debertakit
from debertakit import accelerate
from tests.models import randomise, small

KINDS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
HEADS = KINDS[1:]
VARIANTS = ("own", "accelerated")
LENGTH = 12


def own(kind: str, name: str = "deberta-v3-base", **fields: Any) -> Any:
    """Build our class with fixed random weights and no mask decoder, so that it computes the same as the stock one."""
    if kind == "ForQuestionAnswering":
        fields.setdefault("num_labels", 2)
    config = small(name, **{"emd_steps": 0, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomise(getattr(debertakit, f"Deberta{kind}")(config))


def needs_stock_masked_lm() -> None:
    """Skip the test with transformers 5.8 to 5.19, which cannot load their own masked LM with `legacy=False`."""
    if Version(transformers.__version__) < Version("5.20"):
        pytest.skip(f"transformers {transformers.__version__} cannot load its own masked LM; 5.20 can")


def stock_class(model: Any) -> Any:
    if isinstance(model, debertakit.DebertaForMaskedLM):
        needs_stock_masked_lm()
    prefix = "Deberta" if model.config.model_type == "deberta" else "DebertaV2"
    return getattr(transformers, prefix + type(model).__name__.removeprefix("Deberta"))


def stock_twin(model: Any) -> Any:
    """Build the stock model with the weights of our model."""
    cls = stock_class(model)
    twin = cls(cls.config_class.from_dict(model.config.to_dict()))
    twin.load_state_dict(model.state_dict())
    return twin.train(model.training)


def pair(variant: str, kind: str = "ForSequenceClassification", name: str = "deberta-v3-base", **fields: Any) -> Any:
    """Return (model under test, stock model) with equal weights."""
    model = own(kind, name, **fields)
    stock = stock_twin(model)
    return (model if variant == "own" else accelerate(copy.deepcopy(stock))), stock


def inputs(kind: str = "ForSequenceClassification", padding: str = "right") -> dict[str, Tensor]:
    """Three sequences (three choices each for multiple choice) of at most LENGTH tokens."""
    draw = torch.Generator().manual_seed(1)
    shape = (3, 3, LENGTH) if kind == "ForMultipleChoice" else (3, LENGTH)
    ids = torch.randint(5, 101, shape, generator=draw)
    mask = torch.ones(shape, dtype=torch.long)
    if padding != "none":
        mask[1, ..., 7:] = 0
        mask[2, ..., 3:] = 0
    if padding == "left":
        mask = mask.flip(-1)
    if padding == "holes":
        mask[0, ..., 4:6] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def labels(kind: str) -> dict[str, Tensor]:
    if kind == "Model":
        return {}
    if kind == "ForQuestionAnswering":
        return {"start_positions": torch.tensor([1, 2, 0]), "end_positions": torch.tensor([5, 4, 2])}
    if kind in ("ForSequenceClassification", "ForMultipleChoice"):
        return {"labels": torch.tensor([0, 2, 1])}
    batch = inputs(kind)
    return {"labels": (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)}


def scalar(output: Any) -> Tensor:
    """Return the loss, or the mean square of the output of a bare encoder."""
    loss = getattr(output, "loss", None)
    return output.last_hidden_state.square().mean() if loss is None else loss


def main_outputs(kind: str, output: Any, mask: Tensor) -> list[Tensor]:
    """Return the main output tensors of a head, without padding rows."""
    if kind in ("ForSequenceClassification", "ForMultipleChoice"):
        return [output.logits]
    names = ("start_logits", "end_logits") if kind == "ForQuestionAnswering" else ("logits",)
    names = ("last_hidden_state",) if kind == "Model" else names
    return [output[name][mask.bool()] for name in names]


def assert_same(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Assert that tensors, or equally long sequences of tensors, are equal up to rounding."""
    if isinstance(expected, Tensor):
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=1e-4)
        return
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert_same(a, e, tolerance)
