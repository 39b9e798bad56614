"""Perplexity of a text under an autoregressive model, over overlapping windows.

    per token      exp(nll / tokens)                 nll = - sum over tokens of ln p(token | tokens before it)
    per word       exp(nll / words)                  words are separated by white space
    bits per byte  nll / (ln 2 * bytes in UTF-8)     comparable between vocabularies, like per word

A window is a start token and ``window`` tokens of the text, and windows end every ``stride`` tokens. Each token is
scored once, in the first window that contains it, so it is predicted from at least ``window - stride`` tokens, except
at the beginning of the text.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from debertakit.protocols import Tokenizer

BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Perplexity:
    per_token: float
    per_word: float
    bits_per_byte: float
    tokens: int


@torch.inference_mode()
def perplexity(
    model: PreTrainedModel, tokenizer: Tokenizer, text: str | Path, window: int | None = None, stride: int | None = None
) -> Perplexity:
    """Compute the perplexity of a text or a text file (a ``Path``). ``model``: any causal LM of transformers or ours.

    ``window`` defaults to ``max_position_embeddings``, ``stride`` to half of ``window``.
    """
    if isinstance(text, Path):
        text = text.read_text(encoding="utf-8")
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    if not len(ids):
        raise ValueError("the text is empty: no tokens to score")
    window = model.config.max_position_embeddings if window is None else window
    stride = max(window // 2, 1) if stride is None else stride
    if not 1 <= stride <= window:
        raise ValueError(f"stride={stride} must be between 1 and window={window}, or tokens would be skipped")
    model.eval()
    nll = sum(float(_score(model, block, scored)) for block, scored in _blocks(_framed(ids, tokenizer), window, stride))
    return Perplexity(
        per_token=math.exp(min(nll / len(ids), 700)),
        per_word=math.exp(min(nll / max(len(text.split()), 1), 700)),
        bits_per_byte=nll / (math.log(2) * len(text.encode())),
        tokens=len(ids),
    )


def _framed(ids: Tensor, tokenizer: Tokenizer) -> Tensor:
    start = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    if start is None:
        raise ValueError("this tokenizer has neither [CLS] nor a start token: the first token has no context")
    return torch.cat([ids.new_tensor([start]), ids])


def _blocks(framed: Tensor, window: int, stride: int) -> Iterator[tuple[Tensor, int]]:
    """Yield rows [n, width + 1] of start token and text, and the number of tokens to score at the end of each row."""
    start, ids = framed[:1], framed[1:]
    first = min(window, len(ids))
    yield framed[None, : first + 1], first
    ends = list(range(first + stride, len(ids) + 1, stride))
    rows = max(1, BATCH_TOKENS // (window + 1))
    for i in range(0, len(ends), rows):
        yield torch.stack([torch.cat([start, ids[end - window : end]]) for end in ends[i : i + rows]]), stride
    rest = len(ids) - (ends[-1] if ends else first)
    if rest:
        yield torch.cat([start, ids[-window:]])[None], rest


def _score(model: PreTrainedModel, block: Tensor, scored: int) -> Tensor:
    block = block.to(model.device)
    logits = model(input_ids=block[:, :-1], logits_to_keep=scored).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), block[:, -scored:].flatten(), reduction="sum")
