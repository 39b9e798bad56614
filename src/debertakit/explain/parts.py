"""How much of a head is content and how much is position.

DeBERTa's scores are a sum of parts, s = c2c + c2p + p2c (attention/reference.py). The softmax over the keys of a query
ignores what all of them share, so only the variation over keys counts. That variation splits exactly: with
covariances over the keys j of a query i, summed over all queries,

    share(part) = sum_i cov_j(part(i, .), s(i, .)) / sum_i var_j(s(i, .))

cov(part, s) holds the part's own variance and half of what it has in common with each other part. Shares sum to 1,
do not change when a row is shifted, and are negative where a part works against the sum. Content is c2c; position is
the rest: what goes away if the model is not told distances. (c2p asks with the content of the query, p2c with that of
the key, so "position" does not mean "without content".)

The profile of a head is its mean attention, and mean position score, at each distance i - j. Models without
disentangled attention (BERT, RoBERTa) have attention and its profile alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from debertakit.attention.projections import project
from debertakit.attention.reference import score_parts
from debertakit.config import MODEL_TYPES
from debertakit.finetuning.models import longest_input
from debertakit.model import DebertaModel, Recorder, pack_input, relative_table


@dataclass(frozen=True)
class Subject:
    """A model to look into, with its tokenizer."""

    name: str
    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, name: str | Path) -> "Subject":
        """From a folder or hub name: DeBERTa as ours, any other encoder as transformers has it."""
        from transformers import AutoModel, AutoTokenizer, PreTrainedConfig

        from debertakit.text.tokenizers import load_tokenizer

        try:
            model_type = PreTrainedConfig.get_config_dict(name)[0].get("model_type")
            if model_type in MODEL_TYPES:
                return cls(Path(name).name, DebertaModel.from_pretrained(name), load_tokenizer(name))
            model = AutoModel.from_pretrained(name, attn_implementation="eager", dtype=torch.float32)
            return cls(Path(name).name, model, AutoTokenizer.from_pretrained(name))
        except OSError as error:
            raise ValueError(f"no model within reach called {str(name)!r}: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True)
class Anatomy:
    """Every head of a model over one text. Arrays are [layers, heads, queries, keys]."""

    model: str
    tokens: list[str]
    attention: np.ndarray
    parts: dict[str, np.ndarray]
    """c2c, c2p, p2c (p2p where a model has it), scaled: they sum to the scores. Empty without relative positions."""

    @property
    def position(self) -> np.ndarray | None:
        """The sum of all parts but c2c."""
        parts = [part for name, part in self.parts.items() if name != "c2c"]
        return np.sum(parts, axis=0) if parts else None


@dataclass(frozen=True)
class Encoded:
    """A text as a model reads it."""

    tokens: list[str]
    inputs: dict[str, torch.Tensor]


def take_apart(subject: Subject, text: str, pair: str | None = None, longest: int | None = None) -> Anatomy:
    """Look into every head over a text or a pair; only its first ``longest`` tokens, if given."""
    return look(subject, encode(subject, text, pair, longest))


def encode(subject: Subject, text: str, pair: str | None = None, longest: int | None = None) -> Encoded:
    """The tokenizer's half of ``take_apart``."""
    if not text.strip():
        raise ValueError("the text is empty")
    encoded = subject.tokenizer(text, pair, return_tensors="pt", truncation=longest is not None, max_length=longest)
    pieces = encoded["input_ids"][0].tolist()
    most, ends_there = longest_input(subject.model, subject.tokenizer)
    if ends_there and len(pieces) > most:
        raise ValueError(f"{subject.name} has absolute positions for {most} tokens, and the text has {len(pieces)}")
    return Encoded([readable(subject.tokenizer, piece) for piece in pieces], dict(encoded))


@torch.no_grad()
def look(subject: Subject, encoded: Encoded) -> Anatomy:
    """The model's half of ``take_apart``, on the device that it is on."""
    backbone = subject.model.base_model.eval()
    inputs = {name: values.to(backbone.device) for name, values in encoded.inputs.items()}
    if isinstance(backbone, DebertaModel):
        attention, parts = _deberta_parts(backbone, inputs)
    else:
        attention, parts = torch.cat(backbone(**inputs, output_attentions=True).attentions), {}
    arrays = {name: part.float().cpu().numpy() for name, part in parts.items()}
    return Anatomy(subject.name, encoded.tokens, attention.float().cpu().numpy(), arrays)


def cells(subject: Subject, encoded: Encoded) -> int:
    """Numbers in the ``Anatomy`` of a text, known before it is made."""
    config = subject.model.config
    parts = 0
    if isinstance(subject.model.base_model, DebertaModel) and config.relative_attention and config.pos_att_type:
        parts = 1 + len(config.pos_att_type)  # c2c and these
    return config.num_hidden_layers * config.num_attention_heads * len(encoded.tokens) ** 2 * (1 + parts)


def _deberta_parts(backbone: Any, encoded: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    config = backbone.config
    segments = encoded.get("token_type_ids") if config.type_vocab_size > 0 else None
    packed = pack_input(config, encoded["input_ids"], None, segments)
    recorder = Recorder(packed, hidden_states=True, attentions=True)
    backbone.encode(packed, recorder=recorder)
    hidden_states, attentions = recorder.hidden_states or [], recorder.attentions or []
    table = relative_table(backbone.encoder, config, packed.layout)
    if table is None:
        return torch.cat(attentions), {}
    layers = []
    for hidden, layer in zip(hidden_states, backbone.encoder.layer, strict=False):  # the last one feeds no layer
        att = layer.attention.self
        q, k, _ = project(att, packed.pack(hidden))
        parts = score_parts(q, k, table.project(att), packed.layout, config.attention_scale)
        layers.append(parts.named())
    return torch.cat(attentions), {name: torch.cat([parts[name] for parts in layers]) for name in layers[0]}


def readable(tokenizer: Any, piece: int) -> str:
    """A token as text; sentencepiece's and GPT-2's marks of a space become one."""
    token = tokenizer.convert_ids_to_tokens(piece)
    shown = tokenizer.decode([piece]) if not token.startswith(("##", "▁")) else token.replace("▁", " ")
    return shown or token


@dataclass(frozen=True)
class Shares:
    """Per head, [layers, heads]: the share of each part in the variation of the scores."""

    parts: dict[str, np.ndarray]

    @property
    def content(self) -> np.ndarray:
        return self.parts["c2c"]

    @property
    def position(self) -> np.ndarray:
        return np.sum([share for name, share in self.parts.items() if name != "c2c"], axis=0)


def shares(anatomies: Iterable[Anatomy]) -> Shares:
    """Over one text or a corpus; the equation stands at the top of this file."""
    with_total: dict[str, np.ndarray] = {}
    for anatomy in anatomies:
        if not anatomy.parts:
            raise ValueError(f"{anatomy.model} has no disentangled attention: its scores are content alone")
        parts = {name: centred(part) for name, part in anatomy.parts.items()}
        total = np.sum(list(parts.values()), axis=0)
        for name, part in parts.items():
            # The mean over keys: a long text's row weighs as much as a short one's.
            with_total[name] = with_total.get(name, 0.0) + (part * total).mean(-1).sum(-1)
    if not with_total:
        raise ValueError("no text to take shares over")
    variance = np.sum(list(with_total.values()), axis=0)
    return Shares({name: value / np.maximum(variance, 1e-30) for name, value in with_total.items()})


def centred(part: np.ndarray) -> np.ndarray:
    """Each row without what all its keys share."""
    part = part.astype(np.float64)
    return part - part.mean(-1, keepdims=True)


@dataclass(frozen=True)
class Profile:
    """Per head and distance i - j, [layers, heads, distances]."""

    distances: np.ndarray
    attention: np.ndarray
    position: np.ndarray | None
    """c2p + p2c, rows centred; None for models without them."""


def profile(anatomy: Anatomy) -> Profile:
    length = len(anatomy.tokens)
    distances = np.arange(1 - length, length)
    position = anatomy.position

    def by_distance(matrices: np.ndarray) -> np.ndarray:
        diagonals = [np.diagonal(matrices, -x, axis1=-2, axis2=-1).mean(-1) for x in distances]  # i - j = x
        return np.stack(diagonals, axis=-1)

    return Profile(
        distances, by_distance(anatomy.attention), None if position is None else by_distance(centred(position))
    )


def patterns(anatomy: Anatomy) -> dict[str, np.ndarray]:
    """How strongly each head shows the patterns of the paper's appendix A.9: mean attention, [layers, heads].

    diagonal: to the token itself and its two neighbours; [CLS]: to the first token; stripe: to whichever other token
    is looked at most.
    """
    attention = anatomy.attention
    rows = np.arange(len(anatomy.tokens))
    near = np.abs(rows[:, None] - rows) <= 1
    looked_at = attention.mean(-2)
    return {
        "diagonal": (attention * near).sum(-1).mean(-1),
        "stripe": looked_at[..., 1:].max(-1) if len(rows) > 1 else np.zeros(attention.shape[:2]),
        "[CLS]": looked_at[..., 0],
    }
