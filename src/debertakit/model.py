"""The encoder: embeddings, layers, and the packed forward pass.

Internally, the tokens of all sequences are concatenated without padding, [total_tokens, hidden]. A ``Layout`` records
which rows belong to which sequence. Padded tensors [batch, length] exist only in ``forward``. Each layer is post-norm:

    a = LayerNorm(x + dropout(dense(attention(x))))
    y = LayerNorm(a + dropout(dense(gelu(dense(a)))))

Modules use the parameter names of Microsoft and transformers. The computation is in ``encode`` and ``run_layer``, plain
functions that also accept stock transformers modules (see acceleration.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from debertakit.attention import disentangled_attention
from debertakit.attention.graphs import fixed_shapes
from debertakit.attention.layout import Layout
from debertakit.attention.positions import KEY_TERMS, QUERY_TERMS
from debertakit.attention.projections import RelativeTable, project, project_memory, project_queries
from debertakit.checkpoints import PretrainedLoading
from debertakit.config import DebertaConfig

IGNORED = -100  # label of tokens that the loss ignores


class DebertaEmbeddings(nn.Module):
    """Word embeddings plus optional segments and absolute positions, followed by projection, LayerNorm and dropout.

    The absolute position table exists if the input or the Enhanced Mask Decoder uses it.
    """

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.position_embeddings: Any = (
            nn.Embedding(config.max_position_embeddings, config.embedding_size)
            if config.position_biased_input or config.emd_steps > 0
            else None
        )
        self.token_type_embeddings: Any = (
            nn.Embedding(config.type_vocab_size, config.embedding_size) if config.type_vocab_size > 0 else None
        )
        self.embed_proj = (
            nn.Linear(config.embedding_size, config.hidden_size, bias=False)
            if config.embedding_size != config.hidden_size
            else None
        )
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.position_biased_input = config.position_biased_input

    def forward(
        self,
        words: Tensor,  # ids [T] or embedded words [T, embedding_size]
        positions: Tensor,  # [T]
        segments: Tensor | None = None,  # [T]
    ) -> Tensor:
        summed = words if words.is_floating_point() else self.word_embeddings(words)
        if self.position_biased_input:
            summed = summed + self.position_embeddings(positions)
        if self.token_type_embeddings is not None:
            segments = torch.zeros_like(positions) if segments is None else segments
            summed = summed + self.token_type_embeddings(segments)
        if self.embed_proj is not None:
            summed = self.embed_proj(summed)
        return self.dropout(self.LayerNorm(summed))

    def absolute(self, positions: Tensor) -> Tensor:
        """Return raw absolute positions [T, hidden] for the mask decoder. Positions past the table use its last row."""
        rows = self.position_embeddings(positions.clamp(max=self.position_embeddings.num_embeddings - 1))
        return rows if self.embed_proj is None else self.embed_proj(rows)


class DisentangledSelfAttention(nn.Module):
    """Parameters of one layer's attention, in the v1 or v2 layout (see attention/projections.py)."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.share_att_key = config.share_att_key
        width = config.num_attention_heads * config.attention_head_size
        needs_key, needs_query = (bool(terms.intersection(config.pos_att_type)) for terms in (KEY_TERMS, QUERY_TERMS))
        if config.model_type == "deberta":
            self.in_proj = nn.Linear(config.hidden_size, 3 * width, bias=False)
            self.q_bias = nn.Parameter(torch.zeros(width))
            self.v_bias = nn.Parameter(torch.zeros(width))
            if needs_key:
                self.pos_proj = nn.Linear(config.hidden_size, width, bias=False)
            if needs_query:
                self.pos_q_proj = nn.Linear(config.hidden_size, width)
        else:
            self.query_proj = nn.Linear(config.hidden_size, width)
            self.key_proj = nn.Linear(config.hidden_size, width)
            self.value_proj = nn.Linear(config.hidden_size, width)
            if needs_key and not config.share_att_key:
                self.pos_key_proj = nn.Linear(config.hidden_size, width)
            if needs_query and not config.share_att_key:
                self.pos_query_proj = nn.Linear(config.hidden_size, width)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.pos_dropout = nn.Dropout(config.hidden_dropout_prob)


class ResidualOutput(nn.Module):
    """LayerNorm(residual + dropout(dense(x))), the output of both the attention and the feed-forward part."""

    def __init__(self, width: int, config: DebertaConfig):
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class DebertaAttention(nn.Module):
    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.self = DisentangledSelfAttention(config)
        self.output = ResidualOutput(config.num_attention_heads * config.attention_head_size, config)


def activation(name: str) -> nn.Module:
    if name not in ACT2FN:
        raise ValueError(f"unknown activation {name!r}; transformers has {', '.join(ACT2FN)}")
    return ACT2FN[name]


class DebertaIntermediate(nn.Module):
    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.dense(x))


class DebertaLayer(GradientCheckpointingLayer):
    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.attention = DebertaAttention(config)
        self.intermediate = DebertaIntermediate(config)
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(self, hidden: Tensor, table_rows: Tensor | None = None, **kwargs: Any) -> Tensor:
        return run_layer(self, hidden, table_rows, **kwargs)


class DebertaConv(nn.Module):
    """Convolution over the embeddings, added to the output of the first layer (v2-xlarge and -xxlarge)."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        size = config.conv_kernel_size
        self.conv = nn.Conv1d(
            config.hidden_size, config.hidden_size, size, padding=size // 2, groups=config.conv_groups
        )
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)


class DebertaEncoder(nn.Module):
    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.layer = nn.ModuleList(DebertaLayer(config) for _ in range(config.num_hidden_layers))
        if config.relative_attention:
            self.rel_embeddings = nn.Embedding(2 * config.relative_positions.span, config.hidden_size)
            if config.norm_rel_ebd == "layer_norm":
                self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.conv = DebertaConv(config) if config.conv_kernel_size > 0 else None


@dataclass
class Encoded:
    """Packed output of the encoder."""

    last: Tensor  # [T, hidden]
    below: Tensor  # [T, hidden]: input of the last layer, for the mask decoder


# Adds a layer's new keys and values to the cache and returns all cached ones (generation/cache.py).
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Observe = Callable[[Tensor], Tensor]  # records a layer's probabilities and returns them


def relative_table(encoder: Any, config: DebertaConfig, layout: Layout) -> RelativeTable | None:
    """Return the relative positions for this batch, or None if the model does not use them."""
    if not (config.relative_attention and config.pos_att_type):
        return None
    norm = config.norm_rel_ebd == "layer_norm"
    return RelativeTable(encoder, config.relative_positions, list(config.pos_att_type), norm, layout)


def encode(
    encoder: Any,
    embedded: Tensor,  # [T, hidden]
    layout: Layout,
    config: DebertaConfig,
    *,
    depth: int | None = None,
    recorder: "Recorder | None" = None,
    remember: Sequence[Remember] | None = None,
    rows: Tensor | None = None,
) -> Encoded:
    """Run the first ``depth`` layers (None: all). ``remember`` holds one function per layer.

    If ``rows`` (ascending) is given, the last layer computes only these rows.
    """
    table = relative_table(encoder, config, layout)
    embedded = hidden = below = embedded if recorder is None else recorder.hidden(embedded)
    layers = encoder.layer[:depth]
    for index, layer in enumerate(layers):
        below = hidden
        hidden = _call_layer(
            layer,
            below,
            table.rows if table is not None else None,
            config=config,
            layout=layout,
            table=table,
            observe=recorder.attention if recorder is not None and recorder.attentions is not None else None,
            remember=None if remember is None else remember[index],
            rows=rows if index == len(layers) - 1 else None,
        )
        if index == 0 and config.conv_kernel_size > 0:
            hidden = convolve(encoder.conv, embedded, hidden, layout, config)
        if recorder is not None:
            hidden = recorder.hidden(hidden)
    return Encoded(hidden, below)


def _call_layer(layer: Any, hidden: Tensor, table_rows: Tensor | None, **kwargs: Any) -> Tensor:
    if isinstance(layer, DebertaLayer):
        return layer(hidden, table_rows, **kwargs)  # handles gradient checkpointing itself
    if layer.gradient_checkpointing and layer.training:  # a stock layer under accelerate()
        return layer._gradient_checkpointing_func(partial(run_layer, layer, **kwargs), hidden, table_rows)
    return run_layer(layer, hidden, table_rows, **kwargs)


def run_layer(
    layer: Any,
    hidden: Tensor,  # [T, hidden]
    table_rows: Tensor | None = None,  # [rows, hidden]: RelativeTable.rows; an argument, for gradient checkpointing
    *,
    config: DebertaConfig,
    layout: Layout,
    table: RelativeTable | None,
    observe: Observe | None = None,
    remember: Remember | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Run one layer on packed rows, or only on ``rows``."""
    att = layer.attention.self
    if rows is not None:
        residual, layout = hidden[rows], layout.at_rows(rows)
        qkv = project_queries(att, residual), *project_memory(att, hidden)
    else:
        qkv, residual = project(att, hidden), hidden
        if remember is not None:
            qkv = (qkv[0], *remember(*qkv[1:]))
    context = attention_context(att, qkv, config, layout, table, table_rows, observe)
    return finish_layer(layer, context, residual)


def attention_context(
    att: Any,
    qkv: tuple[Tensor, Tensor, Tensor],
    config: DebertaConfig,
    layout: Layout,
    table: RelativeTable | None,
    table_rows: Tensor | None = None,
    observe: Observe | None = None,
) -> Tensor:
    """Return the attention output [queries, width] of one module, before its output projection."""
    context = disentangled_attention(
        *qkv,
        table.project(att, table_rows) if table is not None else None,
        layout,
        scale=config.attention_scale,
        dropout=att.dropout.p if att.training else 0.0,
        observe=observe,
    )
    return context.flatten(1)


def finish_layer(layer: Any, context: Tensor, residual: Tensor) -> Tensor:
    attended = layer.attention.output(context, residual)
    return layer.output(layer.intermediate(attended), attended)


def run_decoder_layer(
    layer: Any,
    memory: tuple[Tensor, Tensor],  # projected keys and values, shared by all passes
    queries: Tensor,  # [queries, hidden]
    *,
    config: DebertaConfig,
    layout: Layout,
    table: RelativeTable | None,
) -> Tensor:
    """Run a layer on separate queries, which are also the residual (mask decoder)."""
    att = layer.attention.self
    context = attention_context(att, (project_queries(att, queries), *memory), config, layout, table)
    return finish_layer(layer, context, queries)


def layer_memory(layer: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    return project_memory(layer.attention.self, hidden)


def convolve(conv: Any, embedded: Tensor, output: Tensor, layout: Layout, config: DebertaConfig) -> Tensor:
    """LayerNorm(output + act(dropout(conv(embedded)))), with each sequence padded by zeros, also in its gaps."""
    sequence = torch.arange(layout.sequences, device=embedded.device)
    sequence = sequence.repeat_interleave(layout.q_offsets.diff(), output_size=embedded.shape[0])
    columns = layout.q_positions.long()
    block = embedded.new_zeros(layout.sequences, layout.max_distance + 1, embedded.shape[1])
    block = block.index_put((sequence, columns), embedded)
    mixed = conv.conv(block.transpose(1, 2)).transpose(1, 2)[sequence, columns]
    return conv.LayerNorm(output + activation(config.conv_act)(conv.dropout(mixed)))


class DebertaPreTrainedModel(PretrainedLoading, PreTrainedModel):
    config: DebertaConfig
    config_class = DebertaConfig
    base_model_prefix = "deberta"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DebertaLayer"]  # noqa: RUF012
    _supports_sdpa = False
    _supports_attention_backend = False
    decodes_masks = False

    def post_init(self) -> None:
        super().post_init()
        self.free_positions()

    def free_positions(self) -> None:
        """Train the absolute position table only if the model uses it. Fine-tuning must not change an unused table."""
        table = self.base_model.embeddings.position_embeddings
        if table is not None:
            table.requires_grad_(self.decodes_masks or self.config.position_biased_input)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, DisentangledSelfAttention) and hasattr(module, "q_bias"):
            init.zeros_(module.q_bias)
            init.zeros_(module.v_bias)


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

    def outputs(self) -> dict[str, tuple[Tensor, ...] | None]:
        return {
            "hidden_states": None if self.hidden_states is None else tuple(self.hidden_states),
            "attentions": None if self.attentions is None else tuple(self.attentions),
        }


def pack_input(
    config: DebertaConfig,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
) -> PackedInput:
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give either input_ids or inputs_embeds")
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


class DebertaModel(DebertaPreTrainedModel):
    """The encoder without a head. Returns the last hidden states, [batch, length, hidden]."""

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.embeddings = DebertaEmbeddings(config)
        self.encoder = DebertaEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings.word_embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,  # [batch, length]
        attention_mask: Tensor | None = None,  # [batch, length]; 0 at padding
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        packed = pack_input(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        recorder = self.recorder(packed, output_hidden_states, output_attentions)
        encoded = self.encode(packed, recorder=recorder)
        return BaseModelOutput(last_hidden_state=last_hidden_state(packed, encoded, recorder), **recorder.outputs())

    def recorder(self, packed: PackedInput, hidden_states: bool | None, attentions: bool | None) -> Recorder:
        """Build the recorder for this pass. None: use the config's setting."""
        config = self.config
        return Recorder(
            packed,
            bool(config.output_hidden_states if hidden_states is None else hidden_states),
            bool(config.output_attentions if attentions is None else attentions),
        )

    def encode(self, packed: PackedInput, **kwargs: Any) -> Encoded:
        """Run the packed forward pass. Keywords are those of the function ``encode``."""
        embedded = self.embeddings(packed.words, packed.positions, packed.segments)
        return encode(self.encoder, embedded, packed.layout, self.config, **kwargs)


AutoModel.register(DebertaConfig, DebertaModel, exist_ok=True)


def last_hidden_state(packed: PackedInput, encoded: Encoded, recorder: Recorder) -> Tensor:
    """Return [batch, length, hidden]: the recorded tensor itself if hidden states were recorded."""
    return recorder.hidden_states[-1] if recorder.hidden_states else packed.pad(encoded.last)
