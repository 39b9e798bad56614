"""Fill-mask: predict the token at each [MASK]."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from debertakit.inference.predictor import Input, Predictor
from debertakit.inference.results import Candidate, Filled, Result
from debertakit.model import DebertaPreTrainedModel, pack_input
from debertakit.tasks.features import TokenRow

__all__ = ["Candidate", "MaskFiller", "fill_mask"]


def fill_mask(text: str, model: Any, tokenizer: Any, top: int = 5) -> list[list[Candidate]]:
    """Return the ``top`` most probable tokens for each mask in ``text``, from left to right."""
    return MaskFiller(model, tokenizer, top=top)(text).masks


class MaskFiller(Predictor):
    """Predict the most probable tokens at each mask. DeBERTa models use their mask decoder."""

    def __init__(self, model: Any, tokenizer: Any, *, top: int = 5, **options: Any):
        if tokenizer.mask_token is None:
            raise ValueError("this tokenizer has no mask token")
        if top < 1:
            raise ValueError(f"top is {top}; it must be >= 1")
        if options.get("long") not in (None, "whole"):
            raise ValueError(f"long={options['long']!r}: fill reads every text whole, because a mask needs its context")
        super().__init__(model, tokenizer, **options)
        self.top = top

    def check(self, item: Any) -> Input:
        item = super().check(item)
        if self.tokenizer.mask_token not in item["text"]:
            raise ValueError(f"the text has no {self.tokenizer.mask_token} to fill")
        return item

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

    def forward(self, batch: dict[str, Any], rows: Sequence[TokenRow]) -> list[np.ndarray]:
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

    def decide(self, items: Sequence[Input], rows: Sequence[TokenRow], outputs: Sequence[np.ndarray]) -> list[Result]:
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
