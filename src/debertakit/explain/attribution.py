"""Attribute a classifier's prediction to its tokens with captum's integrated gradients.

Let x be the word embeddings of the text, x' those of the same text with every token but the special tokens replaced by
padding, and f the logit of a label. Then

    score(token) = sum over its embedding of (x - x') * integral_0^1 df(x' + a (x - x')) / dx da

Completeness: the scores sum to f(x) - f(x'), up to the error of the numeric integral (``Attribution.error``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from debertakit.explain.parts import token_texts
from debertakit.installation import install
from debertakit.protocols import Tokenizer


@dataclass(frozen=True)
class Attribution:
    tokens: list[str]
    scores: list[float]
    """Positive scores support the label; negative scores oppose it."""
    label: str
    change: float
    """f(x) - f(x'), which the sum of the scores approximates."""

    @property
    def error(self) -> float:
        return sum(self.scores) - self.change


def attribute(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    *,
    label: int | None = None,
    steps: int = 64,
    max_length: int | None = None,
) -> Attribution:
    """Score the tokens for a label (None: the most probable) of our or transformers' sequence classifier.

    Texts are truncated to ``max_length`` tokens; None: no limit.
    """
    try:
        from captum.attr import IntegratedGradients
    except ImportError:
        raise ImportError(f"attributions need captum: {install('explain')}") from None
    if not text.strip():
        raise ValueError("the text is empty")
    model.eval()
    encoded = tokenizer(
        text,
        pair,
        truncation=max_length is not None,
        max_length=max_length,
        return_tensors="pt",
        return_special_tokens_mask=True,
        return_offsets_mapping=True,
    )
    ids = encoded["input_ids"]
    special = encoded["special_tokens_mask"].bool()
    table = model.get_input_embeddings()
    with torch.no_grad():
        words = table(ids)
        blank = table(torch.where(special, ids, torch.full_like(ids, tokenizer.pad_token_id)))

    segments = {key: value for key, value in encoded.items() if key == "token_type_ids"}

    def logits(embedded: torch.Tensor) -> torch.Tensor:
        batch = {key: value.expand(len(embedded), -1) for key, value in segments.items()}
        return model(inputs_embeds=embedded, **batch).logits

    with torch.no_grad():
        of_text, of_blank = logits(words)[0], logits(blank)[0]
    if label is None:
        label = int(of_text.argmax())
    if not 0 <= label < len(of_text):
        raise ValueError(f"this classifier has no label {label}; it has 0 to {len(of_text) - 1}")
    scores = IntegratedGradients(logits).attribute(words, blank, target=label, n_steps=steps, internal_batch_size=16)
    return Attribution(
        token_texts(tokenizer, encoded, text, pair),
        scores[0].sum(-1).tolist(),
        str(model.config.id2label.get(label, label)),
        float(of_text[label] - of_blank[label]),
    )
