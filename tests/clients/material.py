"""Small checkpoints and texts for the clients."""

from pathlib import Path
from typing import Any

import pytest

from debertakit import accelerate
from tests.stock import own, stock_twin
from tests.tiny import tokenizer

NEEDED = "pip install 'debertakit[clients]'"
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXTS = [
    "the film was good",
    "anna lives in paris and bob saw the great film in london",
    "it was bad",
    "we saw that one awful day here , and it was poor and sad and bad .",
    "yes",
]
PAIRS = [(TEXTS[1], text) for text in TEXTS]


def client(name: str) -> Any:
    """Import the package, or skip the test with a hint how to install it."""
    return pytest.importorskip(name, reason=f"{name} is not installed; {NEEDED}")


def save(kind: str, folder: Path, **fields: Any) -> Path:
    """Save a checkpoint of the stock class with its tokenizer."""
    words = tokenizer()
    shape = {"vocab_size": len(words), "max_position_embeddings": 64, "position_buckets": 16, **NO_DROPOUT}
    stock_twin(own(kind, **{**shape, **fields})).save_pretrained(folder)
    words.model_max_length = 64
    words.save_pretrained(folder)
    return folder


def replace(model: Any, variant: str, ours: Any, folder: Path, place: Any) -> Any:
    """Put debertakit into `model`: accelerate it, or set our class at `place` (an object and an attribute)."""
    if variant == "accelerated":
        return accelerate(model)
    setattr(*place, ours.from_pretrained(folder))
    return model
