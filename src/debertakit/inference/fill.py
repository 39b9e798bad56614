"""Fill-mask: what stands behind [MASK]?"""

from dataclasses import dataclass
from typing import Any

import torch

from debertakit.heads import DebertaForMaskedLM
from debertakit.model import pack_input


@dataclass(frozen=True)
class Candidate:
    token: str
    """The word piece, as text."""
    token_id: int
    probability: float
    text: str
    """The whole text with this piece in place; other masks stay."""


@torch.inference_mode()
def fill_mask(text: str, model: DebertaForMaskedLM, tokenizer: Any, top: int = 5) -> list[list[Candidate]]:
    """For each mask in ``text``, from left to right, the ``top`` most probable pieces."""
    if not text.strip():
        raise ValueError("the text is empty")
    if tokenizer.mask_token is None:
        raise ValueError("this tokenizer has no mask token")
    ids = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
    masks = (ids[0] == tokenizer.mask_token_id).nonzero().squeeze(-1)
    if not len(masks):
        raise ValueError(f"the text holds no {tokenizer.mask_token} to fill")
    model.eval()
    logits, _ = model.predict(pack_input(model.config, ids, None), rows=masks)
    usable = min(len(tokenizer), logits.shape[-1])  # the released tables are longer than their vocabularies
    best = logits.float().softmax(-1)[:, :usable].topk(min(top, usable))
    filled = []
    for mask, probabilities, pieces in zip(masks.tolist(), best.values.tolist(), best.indices.tolist(), strict=True):
        candidates = []
        for probability, piece in zip(probabilities, pieces, strict=True):
            whole = ids[0].clone()
            whole[mask] = piece
            shown = tokenizer.decode(_without_frame(whole.tolist(), tokenizer), skip_special_tokens=False)
            candidates.append(Candidate(tokenizer.decode([piece]).strip(), piece, probability, shown.strip()))
        filled.append(candidates)
    return filled


def _without_frame(ids: list[int], tokenizer: Any) -> list[int]:
    """Leave out [CLS] and [SEP], keep masks."""
    return [piece for piece in ids if piece not in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
