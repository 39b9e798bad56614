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

MOST_MASKS, MOST_TOKENS = 512, 16_384
"""Limits of one text, because time and memory grow with their product: each candidate shows the whole text, and the
logits of a mask are as wide as the vocabulary. ``long="whole"`` lifts the limit on tokens."""


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

    def confidence(self) -> float:
        """Of the least certain mask."""
        return min(mask[0].probability for mask in self.masks)


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
        longest = max(self.max_length, MOST_TOKENS) if ours else self.max_length
        for row in rows:
            if row.tokens > longest and self.long != "whole":
                raise ValueError(f"a text of {row.tokens:,} tokens; fill reads {longest:,}")
            if self.masks(row) > MOST_MASKS:
                raise ValueError(f"a text with {self.masks(row):,} masks; fill takes {MOST_MASKS}")
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
        return [Filled(self._masks(item["text"], output)) for item, output in zip(items, outputs, strict=True)]

    def _masks(self, text: str, output: np.ndarray) -> list[list[Candidate]]:
        """Put each candidate into the user's own text, which decoded tokens would change."""
        mask = self.tokenizer.mask_token
        around = text.split(mask)
        filled = []
        for number, pieces in enumerate(output, 1):
            before, after = mask.join(around[:number]), mask.join(around[number:])
            candidates = []
            for piece, probability in pieces:
                word = self._word(int(piece))
                candidates.append(Candidate(word, int(piece), float(probability), f"{before}{word}{after}"))
            filled.append(candidates)
        return filled

    def _word(self, piece: int) -> str:
        """A token as text, or its name in the vocabulary if it is not text, for example a single byte."""
        name = self.tokenizer.convert_ids_to_tokens([piece])[0]
        word = self.tokenizer.decode([piece]).strip().removeprefix("##")
        return word if word and "\ufffd" not in word else name
