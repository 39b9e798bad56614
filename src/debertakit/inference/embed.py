"""Predictor for text embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from debertakit.inference.predictor import Input, InputField, Network, Predictor, Result
from debertakit.loading import SavedModel
from debertakit.protocols import Tokenizer
from debertakit.tasks.decisions import averaged
from debertakit.tasks.features import TokenRow


@dataclass(frozen=True)
class Embedding(Result):
    embedding: list[float]

    def headline(self) -> str:
        return f"{len(self.embedding)} numbers"


class Embedder(Predictor[Embedding]):
    """Embed a text as a unit vector: the mean of its last hidden states, or the hidden state of [CLS]."""

    task = "embed"
    head = ""
    fields = (InputField("text", example="A man plays the guitar."),)

    def __init__(
        self, model: Network, tokenizer: Tokenizer, *, pooling: Literal["mean", "cls"] = "mean", **options: Any
    ):
        super().__init__(model, tokenizer, **options)
        if pooling not in ("mean", "cls"):
            raise ValueError(f"unknown pooling {pooling!r}; choose mean or cls")
        self.pooling = pooling

    @classmethod
    def options_from(cls, saved: SavedModel, given: dict[str, Any]) -> dict[str, Any]:
        options = super().options_from(saved, given)
        return options if "pooling" in given else {"pooling": saved.pooling, **options}

    def forward(self, batch: dict[str, Tensor], rows: Sequence[TokenRow]) -> list[np.ndarray]:
        hidden = self.model(**batch).last_hidden_state.float()
        if self.pooling == "cls":
            return list(hidden[:, 0].cpu().numpy())
        mask = batch["attention_mask"][..., None].to(hidden.dtype)
        return list((hidden * mask).sum(1).cpu().numpy())  # a sum weights windows by their number of tokens

    def decide(
        self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]
    ) -> list[Embedding]:
        pooled = averaged(rows, outputs, len(items))
        unit = pooled / np.linalg.norm(pooled, axis=-1, keepdims=True).clip(1e-12)
        return [Embedding(vector.tolist()) for vector in unit]
