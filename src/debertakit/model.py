"""The encoder: embeddings, layers, and the packed forward pass.

Internally, the tokens of all sequences are concatenated without padding, [total_tokens, hidden]. A ``Layout`` records
which rows belong to which sequence. Padded tensors [batch, length] exist only in ``forward`` (padding.py). Each layer
is post-norm:

    a = LayerNorm(x + dropout(dense(attention(x))))
    y = LayerNorm(a + dropout(dense(gelu(dense(a)))))

Modules use the parameter names of Microsoft and transformers. The computation is in ``encode`` and ``run_layer``, plain
functions that also accept stock transformers modules (see acceleration.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from debertakit.attention import disentangled_attention
from debertakit.attention.layout import Layout
from debertakit.attention.linear import linear
from debertakit.attention.positions import KEY_TERMS, QUERY_TERMS
from debertakit.attention.projections import RelativeTable, project, project_memory, project_queries
from debertakit.checkpoints import PretrainedLoading
from debertakit.config import DebertaConfig
from debertakit.padding import IGNORED as IGNORED  # part of this module's interface
from debertakit.padding import PackedInput, Recorder, pack_input
from debertakit.protocols import Convolution, Encoder, HasRelativeTable, Layer, Residual, SelfAttention


class DebertaEmbeddings(nn.Module):
    """Word embeddings plus optional segments and absolute positions, followed by projection, LayerNorm and dropout.

    The absolute position table exists if the input or the Enhanced Mask Decoder uses it.
    """

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, config.embedding_size)
            if config.position_biased_input or config.decodes_positions
            else None
        )
        self.token_type_embeddings = (
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
            assert self.position_embeddings is not None
            summed = summed + self.position_embeddings(positions)
        if self.token_type_embeddings is not None:
            segments = torch.zeros_like(positions) if segments is None else segments
            summed = summed + self.token_type_embeddings(segments)
        if self.embed_proj is not None:
            summed = self.embed_proj(summed)
        return self.dropout(self.LayerNorm(summed))

    def absolute(self, positions: Tensor) -> Tensor:
        """Return raw absolute positions [T, hidden] for the mask decoder. Positions past the table use its last row."""
        assert self.position_embeddings is not None
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
        return residual_output(self, x, residual)


def residual_output(module: Residual, x: Tensor, residual: Tensor) -> Tensor:
    return module.LayerNorm(residual + module.dropout(linear(module.dense, x)))


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
        self.intermediate_act_fn = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        return self.intermediate_act_fn(linear(self.dense, x))


class DebertaLayer(GradientCheckpointingLayer):
    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.attention = DebertaAttention(config)
        self.intermediate = DebertaIntermediate(config)
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(self, hidden: Tensor, table_rows: Tensor | None, call: "LayerCall") -> Tensor:
        return run_layer(self, hidden, table_rows, call)


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
        layers = nn.ModuleList(DebertaLayer(config) for _ in range(config.num_hidden_layers))
        self.layer = cast(Sequence[DebertaLayer], layers)
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


UpdateCache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Adds a layer's new keys and values to its cache and returns all cached ones (generation/cache.py)."""


@dataclass(frozen=True)
class LayerCall:
    """Arguments of one layer that stay the same if gradient checkpointing runs the layer again."""

    config: DebertaConfig
    layout: Layout
    table: RelativeTable | None
    observe: Callable[[Tensor], Tensor] | None = None  # receives the probabilities; its return value replaces them
    update_cache: UpdateCache | None = None
    rows: Tensor | None = None  # compute only these rows, ascending


def relative_table(module: HasRelativeTable, config: DebertaConfig, layout: Layout) -> RelativeTable | None:
    """Return the relative positions for this batch, or None if the model does not use them."""
    if not (config.relative_attention and config.pos_att_type):
        return None
    norm = config.norm_rel_ebd == "layer_norm"
    return RelativeTable(module, config.relative_positions, list(config.pos_att_type), norm, layout)


def encode(
    encoder: Encoder,
    embedded: Tensor,  # [T, hidden]
    layout: Layout,
    config: DebertaConfig,
    *,
    depth: int | None = None,
    recorder: Recorder | None = None,
    cache_updates: Sequence[UpdateCache] | None = None,  # one per layer
    rows: Tensor | None = None,
) -> Encoded:
    """Run the first ``depth`` layers (None: all). With ``rows`` (ascending), the last layer computes only these."""
    table = relative_table(encoder, config, layout)
    embedded = hidden = below = embedded if recorder is None else recorder.hidden(embedded)
    layers = encoder.layer[:depth]
    for index, layer in enumerate(layers):
        below = hidden
        call = LayerCall(
            config,
            layout,
            table,
            observe=recorder.attention if recorder is not None and recorder.attentions is not None else None,
            update_cache=None if cache_updates is None else cache_updates[index],
            rows=rows if index == len(layers) - 1 else None,
        )
        hidden = _call_layer(layer, below, table.rows if table is not None else None, call)
        if index == 0 and config.conv_kernel_size > 0:
            assert encoder.conv is not None
            hidden = convolve(encoder.conv, embedded, hidden, layout, config)
        if recorder is not None:
            hidden = recorder.hidden(hidden)
    return Encoded(hidden, below)


def _call_layer(layer: Layer, hidden: Tensor, table_rows: Tensor | None, call: LayerCall) -> Tensor:
    if isinstance(layer, DebertaLayer):
        return layer(hidden, table_rows, call=call)  # handles gradient checkpointing itself
    if layer.gradient_checkpointing and layer.training:  # a stock layer under accelerate()
        return layer._gradient_checkpointing_func(partial(run_layer, layer, call=call), hidden, table_rows)
    return run_layer(layer, hidden, table_rows, call)


def run_layer(
    layer: Layer,
    hidden: Tensor,  # [T, hidden]
    table_rows: Tensor | None,  # [rows, hidden]: RelativeTable.rows; a separate argument for gradient checkpointing
    call: LayerCall,
) -> Tensor:
    """Run one layer on packed rows, or only on ``call.rows``."""
    att, layout = layer.attention.self, call.layout
    if call.rows is not None:
        residual, layout = hidden[call.rows], layout.at_rows(call.rows)
        qkv = project_queries(att, residual), *project_memory(att, hidden)
    else:
        qkv, residual = project(att, hidden), hidden
        if call.update_cache is not None:
            qkv = (qkv[0], *call.update_cache(*qkv[1:]))
    context = attention_context(att, qkv, call.config, layout, call.table, table_rows, call.observe)
    return finish_layer(layer, context, residual)


def attention_context(
    att: SelfAttention,
    qkv: tuple[Tensor, Tensor, Tensor],
    config: DebertaConfig,
    layout: Layout,
    table: RelativeTable | None,
    table_rows: Tensor | None = None,
    observe: Callable[[Tensor], Tensor] | None = None,
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


def finish_layer(layer: Layer, context: Tensor, residual: Tensor) -> Tensor:
    """Run the rest of a layer after its attention: output projection and feed-forward part."""
    if isinstance(layer, DebertaLayer):
        attended = layer.attention.output(context, residual)
        return layer.output(layer.intermediate(attended), attended)
    # The forward of a stock module would call its nn.Linear. accelerate() takes another path if there are hooks.
    attended = residual_output(layer.attention.output, context, residual)
    inner = layer.intermediate.intermediate_act_fn(linear(layer.intermediate.dense, attended))
    return residual_output(layer.output, inner, attended)


def convolve(conv: Convolution, embedded: Tensor, output: Tensor, layout: Layout, config: DebertaConfig) -> Tensor:
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
        self.base_model.train_mask_decoder(self.decodes_masks)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, DisentangledSelfAttention) and hasattr(module, "q_bias"):
            init.zeros_(module.q_bias)
            init.zeros_(module.v_bias)


class DebertaModel(DebertaPreTrainedModel):
    """The encoder without a head. Returns the last hidden states, [batch, length, hidden]."""

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.embeddings = DebertaEmbeddings(config)
        self.encoder = DebertaEncoder(config)
        own_layers = nn.ModuleList(DebertaLayer(config) for _ in range(config.own_emd_layers))
        self.mask_decoder = cast(Sequence[DebertaLayer], own_layers)
        self.post_init()

    def train_mask_decoder(self, used: bool) -> None:
        """Train the absolute position table and the mask decoder's own layers only if the model uses them.

        Fine-tuning must not change them if it does not, and DDP waits for the gradient of every trained parameter.
        """
        table = self.embeddings.position_embeddings
        if table is not None:
            table.requires_grad_(used or self.config.position_biased_input)
        for layer in self.mask_decoder:
            layer.requires_grad_(used)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
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
        **kwargs: object,
    ) -> BaseModelOutput:
        packed = pack_input(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        recorder = self.recorder(packed, output_hidden_states, output_attentions)
        encoded = self.encode(packed, recorder=recorder)
        return BaseModelOutput(last_hidden_state=recorder.last_hidden_state(encoded.last), **recorder.outputs())

    def recorder(self, packed: PackedInput, hidden_states: bool | None, attentions: bool | None) -> Recorder:
        """Build the recorder for this pass. None: use the config's setting."""
        config = self.config
        return Recorder(
            packed,
            bool(config.output_hidden_states if hidden_states is None else hidden_states),
            bool(config.output_attentions if attentions is None else attentions),
        )

    def encode(
        self,
        packed: PackedInput,
        *,
        depth: int | None = None,
        recorder: Recorder | None = None,
        cache_updates: Sequence[UpdateCache] | None = None,
        rows: Tensor | None = None,
    ) -> Encoded:
        """Embed the words and call the function ``encode``."""
        embedded = self.embeddings(packed.words, packed.positions, packed.segments)
        return encode(
            self.encoder,
            embedded,
            packed.layout,
            self.config,
            depth=depth,
            recorder=recorder,
            cache_updates=cache_updates,
            rows=rows,
        )


AutoModel.register(DebertaConfig, DebertaModel, exist_ok=True)
