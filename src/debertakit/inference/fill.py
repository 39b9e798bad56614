"""Fill-mask: predict the token at each [MASK]."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from debertakit.inference.options import FillOptions
from debertakit.inference.predictor import Input, InputField, Network, Predictor, Result
from debertakit.model import DebertaPreTrainedModel
from debertakit.padding import pack_input
from debertakit.protocols import Tokenizer
from debertakit.tasks.features import TokenRow


@dataclass(frozen=True)
class Candidate:
    token: str
    """The token as text."""
    token_id: int
    probability: float
    text: str
    """The whole text with this mask filled. Other masks stay."""


@dataclass(frozen=True)
class Filled(Result):
    masks: list[list[Candidate]]
    """The most probable tokens for each mask, from left to right."""

    def headline(self) -> str:
        return ";".join(mask[0].token for mask in self.masks)


def fill_mask(text: str, model: Network, tokenizer: Tokenizer, top: int = FillOptions.top) -> list[list[Candidate]]:
    """Return the ``top`` most probable tokens for each mask in ``text``, from left to right."""
    return MaskFiller(model, tokenizer, top=top)(text).masks


class MaskFiller(Predictor[Filled]):
    """Predict the most probable tokens at each mask. DeBERTa models use their mask decoder."""

    task = "fill"
    head = "MaskedLM"
    fields = (InputField("text", example="Paris is the [MASK] of France."),)

    def __init__(self, model: Network, tokenizer: Tokenizer, *, top: int = FillOptions.top, **options: Any):
        if tokenizer.mask_token is None:
            raise ValueError("this tokenizer has no mask token")
        if top < 1:
            raise ValueError(f"top is {top}; it must be >= 1")
        if options.get("long") not in (None, "whole"):
            raise ValueError(f"long={options['long']!r}: fill reads every text whole, because a mask needs its context")
        super().__init__(model, tokenizer, **options)
        self.top = top

    def check(self, item: object) -> Input:
        checked = super().check(item)
        if self.tokenizer.mask_token not in checked["text"]:
            raise ValueError(f"the text has no {self.tokenizer.mask_token} to fill")
        return checked

    def encode(self, items: Sequence[Input]) -> list[TokenRow]:
        """Encode whole texts, without truncation or windows: a mask is predicted from the whole text."""
        rows = [
            TokenRow(i, [ids]) for i, ids in enumerate(self.tokenizer([item["text"] for item in items])["input_ids"])
        ]
        ours = isinstance(self.model, DebertaPreTrainedModel) and not self.model.config.position_biased_input
        for row in rows:
            if row.tokens > self.max_length and not ours and self.long != "whole":
                raise ValueError(f"a text of {row.tokens} tokens; this model reads {self.max_length}")
        return rows

    def masks(self, row: TokenRow) -> int:
        return row.ids[0].count(self.tokenizer.mask_token_id)

    def forward(self, batch: dict[str, Tensor], rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Return [masks, top, 2] for each row: token id and probability."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        masked = ids == self.tokenizer.mask_token_id
        if isinstance(self.model, DebertaPreTrainedModel):
            places = masked[mask.bool()].nonzero().squeeze(-1)  # rows of the packed batch
            logits = self.model.predict(pack_input(self.model.config, ids, mask), rows=places)
        else:
            logits = self.model(**batch).logits[masked]
        usable = min(len(self.tokenizer), logits.shape[-1])  # released tables are larger than their vocabularies
        found = logits.float().softmax(-1)[:, :usable].topk(min(self.top, usable))
        both = torch.stack([found.indices.double(), found.values.double()], -1).cpu()
        return [part.numpy() for part in both.split(masked.sum(1).tolist())]

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Filled]:
        return [Filled(self._masks(row.ids[0], output)) for row, output in zip(rows, outputs, strict=True)]

    def _masks(self, ids: list[int], output: np.ndarray) -> list[list[Candidate]]:
        places = [place for place, piece in enumerate(ids) if piece == self.tokenizer.mask_token_id]
        frame = (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id)
        filled = []
        for place, pieces in zip(places, output, strict=True):
            candidates = []
            for piece, probability in pieces:
                whole = [*ids[:place], int(piece), *ids[place + 1 :]]
                shown = self.tokenizer.decode([x for x in whole if x not in frame], skip_special_tokens=False)
                word = self.tokenizer.decode([int(piece)]).strip()
                candidates.append(Candidate(word, int(piece), float(probability), shown.strip()))
            filled.append(candidates)
        return filled
