"""DeBERTa-D: the disentangled encoder with a decoder, for translation, summarisation and infilling.

The encoder is an unchanged ``DebertaModel``: ``model.encoder.save_pretrained`` writes an ordinary DeBERTa folder. A
decoder layer is post-norm, like an encoder layer:

    a = LayerNorm(q + dropout(dense(disentangled causal attention(query = q, keys and values = x))))
    c = LayerNorm(a + dropout(dense(content attention(query = a, keys and values = source))))
    y = LayerNorm(c + dropout(dense(gelu(dense(c)))))

with q = x, except in the first layer, where q = x + P and P is the absolute position embedding. So absolute positions
are added as in the Enhanced Mask Decoder: only to the queries and the residual, while keys and values are pure content.
Positions after the end of the table use its last row.

Cross-attention uses content only. The relative table has not learnt distances between words of two texts, and in
summaries such distances have no meaning.

Encoder and decoder share the word embeddings, which are also the output matrix. ``from_encoder`` creates the decoder
from any DeBERTa checkpoint: its layers are copied from the encoder's, its cross-attention from self-attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from debertakit.attention.layout import Layout
from debertakit.attention.projections import RelativeTable, project_memory, project_queries
from debertakit.config import DebertaConfig
from debertakit.generation.cache import pack_chunk
from debertakit.heads import DebertaForMaskedLM, LMHead, LMPredictions
from debertakit.model import (
    DebertaAttention,
    DebertaIntermediate,
    DebertaModel,
    DisentangledSelfAttention,
    ResidualOutput,
    UpdateCache,
    attention_context,
    relative_table,
)
from debertakit.padding import IGNORED, PackedInput
from debertakit.protocols import SelfAttention, Tokenizer


class DebertaSeq2SeqConfig(PreTrainedConfig):
    """Config of the encoder, which the decoder shares, and the number of decoder layers."""

    model_type = "deberta-d"
    sub_configs = {"encoder": DebertaConfig}  # noqa: RUF012

    encoder: Any = None
    """DebertaConfig or its dict; None: deberta-v3-base."""
    decoder_layers: int = 0
    """0: as many as in the encoder."""
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int | list[int] = 2
    decoder_start_token_id: int = 1
    """[CLS]; source and target are both [CLS] ... [SEP]."""

    def __post_init__(self, **kwargs: object) -> None:
        if not isinstance(self.encoder, DebertaConfig):
            self.encoder = DebertaConfig.from_dict(self.encoder or DebertaConfig().to_dict())
        self.decoder_layers = self.decoder_layers or self.encoder.num_hidden_layers
        super().__post_init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        return self.encoder.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.encoder.vocab_size = value

    @property
    def hidden_size(self) -> int:
        return self.encoder.hidden_size

    @property
    def max_position_embeddings(self) -> int:
        return self.encoder.max_position_embeddings

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers for which ``generate()`` creates caches."""
        return self.decoder_layers

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "DebertaSeq2SeqConfig":
        return self

    @property
    def cross_attention(self) -> DebertaConfig:
        """Config of cross-attention: content only."""
        return DebertaConfig.from_dict({**self.encoder.to_dict(), "pos_att_type": []})


def model_type(name: str | Path) -> str | None:
    """Return the model type of a folder or hub name, or None without a config; loading then raises a clearer error."""
    try:
        return PreTrainedConfig.get_config_dict(name)[0].get("model_type")
    except (OSError, ValueError):
        return None


def is_seq2seq(name: str | Path) -> bool:
    """Whether this folder or hub name is a DeBERTa-D."""
    return model_type(name) == DebertaSeq2SeqConfig.model_type


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Special token ids of the config, for texts [CLS] ... [SEP]."""
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids = {"bos_token_id": begin, "decoder_start_token_id": begin, "eos_token_id": end}
    return ids | {"pad_token_id": tokenizer.pad_token_id}


class DebertaDecoderLayer(GradientCheckpointingLayer):
    def __init__(self, config: DebertaSeq2SeqConfig):
        super().__init__()
        self.attention = DebertaAttention(config.encoder)
        self.cross_attention = DebertaAttention(config.cross_attention)
        self.intermediate = DebertaIntermediate(config.encoder)
        self.output = ResidualOutput(config.encoder.intermediate_size, config.encoder)

    def forward(
        self,
        hidden: Tensor,  # x [T, hidden]
        information: Tensor | None,  # P [T, hidden]; first layer only
        source: tuple[Tensor, Tensor],  # keys and values of the source [rows, heads, d]
        table_rows: Tensor | None,  # RelativeTable.rows
        *,
        layout: Layout,
        cross_layout: Layout,
        table: RelativeTable | None,
        config: DebertaConfig,
        cross_config: DebertaConfig,
        update_cache: UpdateCache | None,
    ) -> Tensor:
        queries = hidden if information is None else hidden + information
        att = self.attention.self
        memory = project_memory(att, hidden)
        if update_cache is not None:
            memory = update_cache(*memory)
        context = attention_context(att, (project_queries(att, queries), *memory), config, layout, table, table_rows)
        attended = self.attention.output(context, queries)
        att = self.cross_attention.self
        context = attention_context(att, (project_queries(att, attended), *source), cross_config, cross_layout, None)
        attended = self.cross_attention.output(context, attended)
        return self.output(self.intermediate(attended), attended)


class DebertaDecoder(nn.Module):
    """Parameter names are those of ``DebertaEncoder``, so that the relative-position code works on both."""

    def __init__(self, config: DebertaSeq2SeqConfig):
        super().__init__()
        layers = nn.ModuleList(DebertaDecoderLayer(config) for _ in range(config.decoder_layers))
        self.layer = cast(Sequence[DebertaDecoderLayer], layers)
        shape = config.encoder
        self.position_embeddings = nn.Embedding(shape.max_position_embeddings, shape.hidden_size)
        if shape.relative_attention:
            self.rel_embeddings = nn.Embedding(2 * shape.relative_positions.span, shape.hidden_size)
            if shape.norm_rel_ebd == "layer_norm":
                self.LayerNorm = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps)

    def information(self, positions: Tensor) -> Tensor:
        return self.position_embeddings(positions.clamp(max=self.position_embeddings.num_embeddings - 1))


class DebertaForSeq2SeqLM(PreTrainedModel, GenerationMixin):
    """DeBERTa-D, an encoder-decoder: a DeBERTa encoder and an autoregressive DeBERTa decoder with cross-attention."""

    config: DebertaSeq2SeqConfig
    config_class = DebertaSeq2SeqConfig
    base_model_prefix = "deberta_d"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DebertaLayer", "DebertaDecoderLayer"]  # noqa: RUF012

    def __init__(self, config: DebertaSeq2SeqConfig):
        super().__init__(config)
        self.encoder = DebertaModel(config.encoder)
        self.decoder = DebertaDecoder(config)
        self.lm_predictions = LMPredictions(config.encoder)
        self._cross_config = config.cross_attention
        self.loss_type = "ForMaskedLM"  # plain cross-entropy: labels are not shifted
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, (LMHead, DisentangledSelfAttention)):
            for bias in module.parameters(recurse=False):  # of the head, and of v1's queries and values
                init.zeros_(bias)

    @classmethod
    def from_encoder(
        cls, path: str | Path, decoder_layers: int | None = None, tokenizer: Tokenizer | None = None, **kwargs: Any
    ) -> "DebertaForSeq2SeqLM":
        """Create DeBERTa-D from a DeBERTa checkpoint: a folder, a file or a hub name, as in ``from_pretrained``.

        Decoder layer i of D is a copy of encoder layer ceil((i + 1) N / D) - 1 of N, evenly spaced and ending with the
        last. Its cross-attention is a copy of the self-attention of that layer. The relative table is copied too, and,
        if the checkpoint has them, the absolute positions and the language-model head. Texts begin and end with the
        [CLS] and [SEP] of ``tokenizer``, by default those of the released models.
        """
        masked_lm = DebertaForMaskedLM.from_pretrained(path, **kwargs)
        encoder = masked_lm.deberta
        special = {} if tokenizer is None else special_ids(tokenizer)
        config = DebertaSeq2SeqConfig(encoder=encoder.config, decoder_layers=decoder_layers or 0, **special)
        model = cls(config).to(encoder.dtype)
        model.encoder.load_state_dict(encoder.state_dict())
        model.lm_predictions.load_state_dict(masked_lm.lm_predictions.state_dict())
        depth, layers = encoder.config.num_hidden_layers, config.decoder_layers
        for i, layer in enumerate(model.decoder.layer):
            parent = encoder.encoder.layer[-(-(i + 1) * depth // layers) - 1]
            for name in ("attention", "intermediate", "output"):
                getattr(layer, name).load_state_dict(getattr(parent, name).state_dict())
            positions = ("self.pos_",)  # position projections, which cross-attention does not have
            state = {k: v for k, v in parent.attention.state_dict().items() if not k.startswith(positions)}
            layer.cross_attention.load_state_dict(state)
        if config.encoder.relative_attention:
            model.decoder.rel_embeddings.load_state_dict(encoder.encoder.rel_embeddings.state_dict())
            if config.encoder.norm_rel_ebd == "layer_norm":
                model.decoder.LayerNorm.load_state_dict(encoder.encoder.LayerNorm.state_dict())
        if encoder.embeddings.position_embeddings is not None:
            with torch.no_grad():
                rows = torch.arange(config.encoder.max_position_embeddings, device=encoder.device)
                model.decoder.position_embeddings.weight.copy_(encoder.embeddings.absolute(rows))
        return model.eval()

    def get_encoder(self, modality: str | None = None) -> DebertaModel:
        return self.encoder

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embeddings.word_embeddings = value

    def resize_token_embeddings(self, *args: object, **kwargs: object) -> nn.Embedding:
        table = super().resize_token_embeddings(*args, **kwargs)
        self.lm_predictions.lm_head.resize(table.num_embeddings)
        return table

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift the target one position to the right, after the start token."""
        shifted = labels.new_full(labels.shape, self.config.decoder_start_token_id)
        shifted[:, 1:] = labels[:, :-1]
        return shifted.masked_fill(shifted == IGNORED, self.config.pad_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,  # [batch, source]
        attention_mask: Tensor | None = None,  # [batch, source]
        decoder_input_ids: Tensor | None = None,  # [batch, new]
        decoder_attention_mask: Tensor | None = None,  # [batch, cached + new]
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # [batch, new], the target text; -100 is ignored
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: object,
    ) -> Seq2SeqLMOutput:
        """Return logits [batch, new, vocabulary]; in training, of the labelled tokens only: [labelled, vocabulary]."""
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            if decoder_attention_mask is None:  # tokens after the last label predict nothing
                decoder_attention_mask = (labels != IGNORED).flip(-1).cummax(-1).values.flip(-1)
        if decoder_input_ids is None:
            raise ValueError("pass decoder_input_ids, or labels to create them from")

        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds=inputs_embeds)
        states = encoder_outputs[0]
        chunk = pack_chunk(self.config.encoder, decoder_input_ids, decoder_attention_mask, past)
        cells, targets = chunk.cells(logits_to_keep), None
        if labels is not None:
            targets = labels[:, -logits_to_keep:].flatten()
            if self.training:
                wanted = (targets != IGNORED).nonzero().squeeze(-1)
                cells, targets = cells.flatten()[wanted], targets[wanted]
        source = Source.of(states, attention_mask, past_key_values)
        own = None if past_key_values is None else past_key_values.self_attention_cache
        cache_updates = chunk.cache_updates(own, self.config.decoder_layers)
        hidden = self.decode(chunk.packed, source, cache_updates)[cells.flatten()]
        logits = self.lm_predictions.lm_head(hidden, self.get_input_embeddings().weight)
        loss = None
        if targets is not None:
            loss = self.loss_function(logits, targets, self.config.vocab_size, **kwargs)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits.view(*cells.shape, -1),
            past_key_values=past_key_values,
            encoder_last_hidden_state=states,
        )

    def decode(
        self, packed: PackedInput, source: "Source", cache_updates: Sequence[UpdateCache] | None = None
    ) -> Tensor:
        """Compute hidden states [T, hidden] of target tokens in a causal layout."""
        config = self.config.encoder
        table = relative_table(self.decoder, config, packed.layout)
        cross_layout = source.seen_from(packed.layout)
        hidden = self.encoder.embeddings(packed.words, packed.positions)
        information = self.decoder.information(packed.positions)
        for index, layer in enumerate(self.decoder.layer):
            hidden = layer(
                hidden,
                information if index == 0 else None,
                source.memory(layer.cross_attention.self, index),
                None if table is None else table.rows,
                layout=packed.layout,
                cross_layout=cross_layout,
                table=table,
                config=config,
                cross_config=self._cross_config,
                update_cache=None if cache_updates is None else cache_updates[index],
            )
        return hidden


@dataclass
class Source:
    """The encoded text for cross-attention: its real rows, projected once per layer and then cached.

    In the cache, [batch, 1, longest, heads * d], each text begins at column 0, on whichever side its padding was, so
    its length determines the visible keys.
    """

    rows: Tensor
    """[T, hidden]"""
    layout: Layout
    cache: EncoderDecoderCache | None = None

    @classmethod
    def of(cls, states: Tensor, mask: Tensor | None, cache: EncoderDecoderCache | None) -> "Source":
        """Create a source from encoder outputs [batch, source, hidden] and the attention mask."""
        if mask is None or bool(mask.all()):
            return cls(states.flatten(0, 1), Layout.rectangular(states.shape[0], states.shape[1], states.device), cache)
        return cls(states[mask.bool()], Layout.from_lengths(mask.sum(-1, dtype=torch.int32)), cache)

    def seen_from(self, layout: Layout) -> Layout:
        """Return the layout of cross-attention for queries in ``layout``."""
        own, visible = self.layout, None
        if self.cache is not None:
            visible = own.k_offsets.diff().repeat_interleave(layout.q_offsets.diff())
            own = Layout.rectangular(own.sequences, own.max_k, own.k_offsets.device)
        return replace(layout, k_offsets=own.k_offsets, k_positions=own.k_positions, max_k=own.max_k, visible=visible)

    def memory(self, att: SelfAttention, index: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [rows, heads, d] for decoder layer ``index``."""
        if self.cache is None:
            return project_memory(att, self.rows)
        kept = self.cache.cross_attention_cache
        if not self.cache.is_updated.get(index, False):
            k, v = project_memory(att, self.rows)
            kept.update(*(self.layout.pad_keys(x.flatten(1)).unsqueeze(1) for x in (k, v)), index)
            self.cache.is_updated[index] = True
        layer, heads = kept.layers[index], att.num_attention_heads
        keys, values = (x.flatten(0, 2).unflatten(-1, (heads, -1)) for x in (layer.keys, layer.values))
        return keys, values


AutoConfig.register("deberta-d", DebertaSeq2SeqConfig)
AutoModelForSeq2SeqLM.register(DebertaSeq2SeqConfig, DebertaForSeq2SeqLM)
