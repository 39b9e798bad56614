"""From padded batches [batch, length] to packed rows and back.

``pack_input`` checks the arguments of ``forward`` and removes the padding. ``PackedInput`` knows where each row came
from. ``Recorder`` collects the hidden states and attentions of all layers in padded form.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from debertakit.attention.graphs import fixed_shapes
from debertakit.attention.layout import Layout
from debertakit.config import DebertaConfig

IGNORED = -100  # label of tokens that the loss ignores


@dataclass
class PackedInput:
    """Packed input of the encoder."""

    words: Tensor  # ids [T] or embedded words [T, embedding_size]
    layout: Layout
    positions: Tensor  # [T] absolute positions, for position tables; distances use the layout
    segments: Tensor | None
    kept: Tensor | None  # flat indices of the rows in the padded batch; None: all, in order
    shape: tuple[int, int]  # batch, length
    mask: Tensor | None = None  # bool [batch, length]; graphs only: they move padding to the end and keep it
    places: Tensor | None = None  # [batch * length]; graphs only: the row of each padded position

    def pad(self, rows: Tensor) -> Tensor:
        """[T, ...] -> [batch, length, ...], zeros at padding."""
        if self.kept is None:
            return rows.unflatten(0, self.shape)
        if self.mask is not None:
            padded = rows[self.places].unflatten(0, self.shape)
            return padded.masked_fill(~self.mask[(...,) + (None,) * (padded.dim() - 2)], 0.0)
        padded = rows.new_zeros(self.shape[0] * self.shape[1], *rows.shape[1:])
        return padded.index_copy(0, self.kept, rows).unflatten(0, self.shape)

    def pack(self, padded: Tensor) -> Tensor:
        """[batch, length, ...] -> [T, ...]."""
        flat = padded.flatten(0, 1)
        return flat if self.kept is None else flat[self.kept]

    def pack_labels(self, name: str, labels: Tensor) -> Tensor:
        """Labels [batch, length] -> [T], IGNORED at padding."""
        if tuple(labels.shape) != self.shape:
            raise ValueError(f"{name} should be [batch, length] = {list(self.shape)}, got {list(labels.shape)}")
        return self.pack(labels if self.mask is None else labels.masked_fill(~self.mask, IGNORED))

    def columns(self) -> tuple[Tensor, ...] | None:
        """Return the source columns of each sequence's rows, or None if no padding was removed."""
        if self.kept is None or self.mask is not None:
            return None
        return torch.tensor_split(self.kept % self.shape[1], self.layout.q_offsets[1:-1].long().cpu())


def pack_input(
    config: DebertaConfig,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
) -> PackedInput:
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("pass either input_ids or inputs_embeds")
    words = input_ids if input_ids is not None else inputs_embeds
    assert words is not None
    if words.dim() != (2 if input_ids is not None else 3):
        what = "input_ids" if input_ids is not None else "inputs_embeds"
        raise ValueError(
            f"{what} should be [batch, length{'' if input_ids is not None else ', width'}], got {list(words.shape)}"
        )
    shape = (words.shape[0], words.shape[1])
    if shape[1] == 0:
        raise ValueError("the text is empty: no tokens to encode")
    _check_ids("input_ids", input_ids, config.vocab_size)
    if config.type_vocab_size > 0:
        _check_ids("token_type_ids", token_type_ids, config.type_vocab_size)
    if attention_mask is not None and tuple(attention_mask.shape) != shape:
        raise ValueError(
            f"attention_mask should be [batch, length] = {list(shape)} like the input, got {list(attention_mask.shape)}"
        )

    graph = fixed_shapes()
    kept = mask = places = None
    if attention_mask is None or (not graph and bool(attention_mask.all())):
        layout = Layout.rectangular(*shape, words.device)
    elif graph:
        mask = attention_mask.bool()
        layout, columns, rows = Layout.from_mask_in_place(mask)
        starts = torch.arange(shape[0], device=columns.device)[:, None] * shape[1]
        kept, places = (starts + columns).flatten(), (starts + rows).flatten()
    else:
        layout, kept = Layout.from_mask(attention_mask)
    packed = PackedInput(words, layout, layout.q_positions, None, kept, shape, mask, places)
    packed.words = packed.pack(words)
    if position_ids is not None:
        packed.positions = packed.pack(position_ids.expand(shape))
    if config.position_biased_input and not graph and shape[1] > config.max_position_embeddings:
        raise ValueError(
            f"{shape[1]} tokens do not fit the {config.max_position_embeddings} absolute positions of this model"
        )
    if token_type_ids is not None and config.type_vocab_size > 0:
        packed.segments = packed.pack(token_type_ids)
    return packed


def _check_ids(name: str, ids: Tensor | None, size: int) -> None:
    """Raise on ids outside the vocabulary. CPU only: on a GPU the check would cost a synchronisation."""
    if ids is None or ids.device.type != "cpu" or fixed_shapes() or not ids.numel():
        return
    low, high = torch.aminmax(ids)
    if low < 0 or high >= size:
        bad = int(low) if low < 0 else int(high)
        raise ValueError(f"{name} holds {bad}, outside the vocabulary of {size} (0 to {size - 1})")


class Recorder:
    """Records padded hidden states and attention probabilities of every layer.

    The next layer reads the recorded tensors, so that ``retain_grad()`` works on them.
    """

    def __init__(self, packed: PackedInput, hidden_states: bool, attentions: bool):
        self.packed = packed
        self.hidden_states: list[Tensor] | None = [] if hidden_states else None
        self.attentions: list[Tensor] | None = [] if attentions else None
        self.key_length = packed.shape[1]
        self.queries = self.keys = packed.columns() if attentions else None
        """Columns of each sequence's queries and keys. Cached decoding has more keys and overrides them."""

    @property
    def active(self) -> bool:
        return self.hidden_states is not None or self.attentions is not None

    def hidden(self, rows: Tensor) -> Tensor:
        """Record hidden states [T, hidden] and return them."""
        if self.hidden_states is None:
            return rows
        self.hidden_states.append(self.packed.pad(rows))
        return self.packed.pack(self.hidden_states[-1]) if torch.is_grad_enabled() else rows

    def attention(self, probs: Tensor) -> Tensor:
        """Record probabilities [n, heads, max_q, max_k] as [batch, heads, length, length] and return them.

        Rows and columns of padding are zero.
        """
        assert self.attentions is not None
        if self.queries is None or self.keys is None:
            self.attentions.append(probs)
            return probs
        padded = self.blank_attention(probs)
        cells = [(q[:, None], k) for q, k in zip(self.queries, self.keys, strict=True)]
        for b, (rows, columns) in enumerate(cells):
            padded[b, :, rows, columns] = probs[b, :, : len(rows), : len(columns)]
        self.attentions.append(padded)
        if not torch.is_grad_enabled():
            return probs
        packed = torch.zeros_like(probs)
        for b, (rows, columns) in enumerate(cells):
            packed[b, :, : len(rows), : len(columns)] = padded[b, :, rows, columns]
        return packed

    def blank_attention(self, probs: Tensor) -> Tensor:
        """Return [batch, heads, length, length] filled with the values for padding."""
        return probs.new_zeros(len(probs), probs.shape[1], self.packed.shape[1], self.key_length)

    def last_hidden_state(self, last: Tensor) -> Tensor:
        """Return the last layer's rows [T, hidden] as [batch, length, hidden]: the recorded tensor if there is one."""
        return self.hidden_states[-1] if self.hidden_states else self.packed.pad(last)

    def outputs(self) -> dict[str, tuple[Tensor, ...] | None]:
        return {
            "hidden_states": None if self.hidden_states is None else tuple(self.hidden_states),
            "attentions": None if self.attentions is None else tuple(self.attentions),
        }
