"""Measure how much of a head's attention comes from content and how much from position.

DeBERTa's scores are a sum of parts, s = c2c + c2p + p2c (attention/reference.py). The softmax ignores a constant added
to all keys of a query, so only the variation over keys counts. This variation splits exactly into parts. With
covariances over the keys j of a query i, summed over all queries,

    share(part) = sum_i cov_j(part(i, .), s(i, .)) / sum_i var_j(s(i, .))

cov(part, s) is the part's variance plus its covariances with the other parts. Shares sum to 1, do not change when a
constant is added to a row, and are negative if a part works against the sum. Content is c2c. Position is the rest: the
parts that vanish if the model is not given distances. (c2p uses the content of the query and p2c the content of the
key, so "position" does not mean "without content".)

The profile of a head is its mean attention and mean position score at each distance i - j. Models without disentangled
attention (BERT, RoBERTa) have only attention and the attention profile.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedModel

from debertakit.attention.projections import project
from debertakit.attention.reference import score_parts
from debertakit.loading import describe, longest_input
from debertakit.model import DebertaModel, relative_table
from debertakit.padding import Recorder, pack_input
from debertakit.protocols import Tokenizer


@dataclass(frozen=True)
class Subject:
    """A model to explain, with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: Tokenizer

    @classmethod
    def load(cls, name: str | Path) -> "Subject":
        """Load from a folder or hub name: DeBERTa with our class, other encoders with transformers."""
        saved = describe(name)
        options = {} if saved.ours else {"attn_implementation": "eager"}  # other implementations return no attentions
        return cls(Path(name).name, saved.network("", **options), saved.tokenizer())


@dataclass(frozen=True)
class Anatomy:
    """Attention of every head of a model on one text. Arrays are [layers, heads, queries, keys]."""

    model: str
    tokens: list[str]
    attention: np.ndarray
    parts: dict[str, np.ndarray]
    """Scaled c2c, c2p, p2c (and p2p if used), which sum to the scores. Empty without relative positions."""
    text: str = ""
    """The input itself; a pair is joined by a line break."""
    special: tuple[int, ...] = ()
    """Positions of the tokens that the tokenizer added, such as [CLS] and [SEP]."""
    dropped: int = 0
    """Number of tokens that were truncated."""

    @property
    def position(self) -> np.ndarray | None:
        """Sum of all parts except c2c."""
        parts = [part for name, part in self.parts.items() if name != "c2c"]
        return np.sum(parts, axis=0) if parts else None


@dataclass(frozen=True)
class EncodedText:
    """An encoded text. ``text``, ``tokens``, ``special`` and ``dropped`` are those of ``Anatomy``."""

    text: str
    tokens: list[str]
    special: tuple[int, ...]
    dropped: int
    inputs: dict[str, torch.Tensor]


def take_apart(subject: Subject, text: str, pair: str | None = None, longest: int | None = None) -> Anatomy:
    """Record every head on a text or a pair, truncated to ``longest`` tokens if given."""
    return look(subject, encode(subject, text, pair, longest))


def encode(subject: Subject, text: str, pair: str | None = None, longest: int | None = None) -> EncodedText:
    """Tokenizer step of ``take_apart``."""
    if not text.strip():
        raise ValueError("the text is empty")
    whole = len(subject.tokenizer(text, pair)["input_ids"])
    encoded = subject.tokenizer(
        text,
        pair,
        return_tensors="pt",
        return_offsets_mapping=True,
        truncation=longest is not None,
        max_length=longest,
    )
    tokens = token_texts(subject.tokenizer, encoded, text, pair)
    special = tuple(place for place, sequence in enumerate(encoded.sequence_ids(0)) if sequence is None)
    most, ends_there = longest_input(subject.model, subject.tokenizer)
    if ends_there and len(tokens) > most:
        raise ValueError(f"{subject.name} reads at most {most} tokens, and the text has {len(tokens)}")
    inputs = {name: values for name, values in encoded.items() if name != "offset_mapping"}
    shown = text if pair is None else f"{text}\n{pair}"
    return EncodedText(shown, tokens, special, whole - len(tokens), inputs)


@torch.no_grad()
def look(subject: Subject, encoded: EncodedText) -> Anatomy:
    """Model step of ``take_apart``, on the model's device."""
    backbone = subject.model.base_model.eval()
    inputs = {name: values.to(backbone.device) for name, values in encoded.inputs.items()}
    if isinstance(backbone, DebertaModel):
        attention, parts = _deberta_parts(backbone, inputs)
    else:
        attention, parts = torch.cat(backbone(**inputs, output_attentions=True).attentions), {}
    arrays = {name: part.float().cpu().numpy() for name, part in parts.items()}
    return Anatomy(
        subject.name,
        encoded.tokens,
        attention.float().cpu().numpy(),
        arrays,
        encoded.text,
        encoded.special,
        encoded.dropped,
    )


def cells(subject: Subject, encoded: EncodedText) -> int:
    """Size of the ``Anatomy`` of a text in numbers, without computing it."""
    config = subject.model.config
    parts = 0
    if isinstance(subject.model.base_model, DebertaModel) and config.relative_attention and config.pos_att_type:
        parts = 1 + len(config.pos_att_type)  # c2c and the position terms
    return config.num_hidden_layers * config.num_attention_heads * len(encoded.tokens) ** 2 * (1 + parts)


def _deberta_parts(
    backbone: DebertaModel, encoded: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
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
    for hidden, layer in zip(hidden_states, backbone.encoder.layer, strict=False):  # the last state feeds no layer
        att = layer.attention.self
        q, k, _ = project(att, packed.pack(hidden))
        parts = score_parts(q, k, table.project(att), packed.layout, config.attention_scale)
        layers.append(parts.named())
    return torch.cat(attentions), {name: torch.cat([parts[name] for parts in layers]) for name in layers[0]}


def token_texts(tokenizer: Tokenizer, encoded: BatchEncoding, text: str, pair: str | None = None) -> list[str]:
    """Return the characters of the input that each token stands for, and the names of special tokens.

    ``encoded`` needs offsets. Vocabulary pieces would lose case, accents and spaces, and a byte is not a character.
    Pieces that are bytes of one character all show this character. A lone "▁" is a space, also where SentencePiece adds
    one before the text, whose offsets are those of the first character.
    """
    texts = (text, pair or "")
    names = tokenizer.convert_ids_to_tokens(list(map(int, encoded["input_ids"][0])))
    places = zip(names, encoded.sequence_ids(0), encoded["offset_mapping"][0], strict=True)
    return [
        name if sequence is None else " " if name == "▁" else texts[sequence][int(start) : int(end)]
        for name, sequence, (start, end) in places
    ]


@dataclass(frozen=True)
class Shares:
    """Share of each part in the variation of the scores, per head: [layers, heads]."""

    parts: dict[str, np.ndarray]

    @property
    def content(self) -> np.ndarray:
        return self.parts["c2c"]

    @property
    def position(self) -> np.ndarray:
        return np.sum([share for name, share in self.parts.items() if name != "c2c"], axis=0)


def shares(anatomies: Iterable[Anatomy]) -> Shares:
    """Compute shares over one text or a corpus, by the equation in the module docstring."""
    with_total: dict[str, np.ndarray] = {}
    for anatomy in anatomies:
        if not anatomy.parts:
            raise ValueError(f"{anatomy.model} has no disentangled attention, so its scores have no position part")
        parts = {name: centred(part) for name, part in anatomy.parts.items()}
        total = np.sum(list(parts.values()), axis=0)
        for name, part in parts.items():
            # Mean over keys, so that rows of long and short texts have equal weight.
            with_total[name] = with_total.get(name, 0.0) + (part * total).mean(-1).sum(-1)
    if not with_total:
        raise ValueError("no text to compute shares from")
    variance = np.sum(list(with_total.values()), axis=0)
    return Shares({name: value / np.maximum(variance, 1e-30) for name, value in with_total.items()})


def centred(part: np.ndarray) -> np.ndarray:
    """Subtract each row's mean."""
    part = part.astype(np.float64)
    return part - part.mean(-1, keepdims=True)


@dataclass(frozen=True)
class Profile:
    """Means per head and distance i - j: [layers, heads, distances]."""

    distances: np.ndarray
    attention: np.ndarray
    position: np.ndarray | None
    """Mean position score (the sum of c2p and p2c, with row means subtracted), or None without position parts."""


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


def striking(anatomy: Anatomy) -> tuple[int, int, int, int]:
    """Choose the cell that the explorer shows first: (layer, head, query, key).

    The head with the largest product of two values: the attention to the most attended other token, averaged over
    queries, and position's share of the scores (1 for models without position parts). Special tokens do not count.
    Query and key: the cell of this head with the most attention.
    """
    length = len(anatomy.tokens)
    ordinary = np.array([place not in anatomy.special for place in range(length)])
    if ordinary.sum() < 2:
        ordinary[:] = True
    others = anatomy.attention * (ordinary[:, None] & ordinary & ~np.eye(length, dtype=bool))
    strength = others.max(-1).sum(-1) / ordinary.sum()
    if anatomy.parts:
        strength = strength * shares([anatomy]).position.clip(0.0, 1.0)
    layer, head = np.unravel_index(int(strength.argmax()), strength.shape)
    query, key = np.unravel_index(int(others[layer, head].argmax()), (length, length))
    return int(layer), int(head), int(query), int(key)


def patterns(anatomy: Anatomy) -> dict[str, np.ndarray]:
    """Strength of the patterns of the paper's appendix A.9 in each head, as mean attention: [layers, heads].

    diagonal: to the token itself and its two neighbours
    [CLS]:    to the first token
    stripe:   to the other token that receives the most attention
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
