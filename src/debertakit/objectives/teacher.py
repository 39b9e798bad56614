"""The teacher of distillation: a frozen encoder.

It is not an ``nn.Module``, so that it is neither trained nor written to checkpoints.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from debertakit.attention.projections import project
from debertakit.loading import describe, longest_input
from debertakit.model import DebertaModel
from debertakit.objectives.backbones import Padded
from debertakit.objectives.base import View
from debertakit.protocols import Tokenizer

QueriesKeysValues = tuple[Tensor, Tensor, Tensor]
"""Each [T, width]."""


@dataclass(frozen=True, eq=False)
class Teacher:
    name: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    student_tokenizer: Tokenizer
    pooling: str = "mean"
    """How a sentence vector is computed: mean or cls."""

    @classmethod
    def load(cls, name: str, student_tokenizer: Tokenizer) -> "Teacher":
        saved = describe(name)
        model = saved.network("")
        model.requires_grad_(False)
        return cls(name, model, saved.tokenizer(), student_tokenizer, saved.pooling)

    @property
    def width(self) -> int:
        return self.model.config.hidden_size

    @property
    def longest(self) -> int:
        return longest_input(self.model, self.tokenizer)[0]

    def check_pieces(self, objective: str) -> None:
        """Raise if the teacher cannot read the student's ids."""
        if not same_pieces(self.tokenizer, self.student_tokenizer):
            raise ValueError(
                f"objectives.{objective} needs a teacher with the student's vocabulary: pass --tokenizer {self.name}, "
                "or use objectives.vectors"
            )

    def check_length(self, max_length: int) -> None:
        longest, fixed = longest_input(self.model, self.tokenizer)
        if fixed and max_length > longest:
            raise ValueError(f"data.max_length={max_length}: the teacher {self.name} reads at most {longest} tokens")

    @torch.no_grad()
    def hidden_rows(self, view: View) -> tuple[Tensor, Tensor]:
        """Return the output and the input of the last layer, each [T, width]."""
        model = self.model.to(view.ids.device)
        if isinstance(model, DebertaModel):
            encoded = model.encode(view.packed())
            return encoded.last, encoded.below
        padded = Padded.of(view, self.tokenizer.pad_token_id or 0)
        states = model(padded.ids, attention_mask=padded.mask, output_hidden_states=True).hidden_states
        last, below = (state.flatten(0, 1)[padded.places] for state in (states[-1], states[-2]))
        return last, below

    @torch.no_grad()
    def queries_keys_values(self, view: View) -> QueriesKeysValues:
        """Queries, keys and values of the last layer."""
        _, below = self.hidden_rows(view)
        return queries_keys_values(self.model, below)

    @torch.no_grad()
    def sentence_vectors(self, view: View) -> Tensor:
        """Vector of each sequence, [n, width], from its text: the teacher may have another tokenizer."""
        model = self.model.to(view.ids.device)
        ids = view.ids.split(view.lengths.tolist())
        texts = [self.student_tokenizer.decode(each.tolist(), skip_special_tokens=True) for each in ids]
        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")
        inputs = {name: batch[name].to(view.ids.device) for name in ("input_ids", "attention_mask")}
        hidden = model(**inputs).last_hidden_state.float()
        if self.pooling == "cls":
            return hidden[:, 0]
        mask = inputs["attention_mask"][..., None].to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1)


def queries_keys_values(encoder: PreTrainedModel, below: Tensor) -> QueriesKeysValues:
    """Queries, keys and values of the last layer, from its input ``below`` [T, hidden]."""
    attention: Any = getattr(last_layer(encoder).attention, "self", None)
    if isinstance(encoder, DebertaModel):
        query, key, value = (each.flatten(1) for each in project(attention, below))
    elif all(hasattr(attention, name) for name in ("query", "key", "value")):
        query, key, value = attention.query(below), attention.key(below), attention.value(below)
    else:
        raise ValueError(f"objectives.relations cannot read a {encoder.config.model_type} model: use objectives.hidden")
    return query, key, value


def last_layer(encoder: PreTrainedModel) -> torch.nn.Module:
    layers = getattr(getattr(encoder, "encoder", None), "layer", None)
    if not layers or not hasattr(layers[-1], "attention"):
        raise ValueError(f"objectives.relations cannot read a {encoder.config.model_type} model: use objectives.hidden")
    return layers[-1]


def same_pieces(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether two tokenizers give every id the same meaning."""
    return one.backend_tokenizer.get_vocab() == other.backend_tokenizer.get_vocab()
