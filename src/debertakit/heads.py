"""What stands on the encoder: masked LM, replaced-token detection, and the fine-tuning heads.

Names and shapes are those of official checkpoints, so that their heads load and ours load elsewhere.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import can_return_tuple

from debertakit.config import DebertaConfig
from debertakit.decoding import decode_masks
from debertakit.model import (
    DebertaModel,
    DebertaPreTrainedModel,
    Encoded,
    PackedInput,
    activation,
    model_output,
    pack_input,
)

IGNORED = -100


class LMHead(nn.Module):
    """dense, activation, LayerNorm, then the word table itself as output matrix, plus a bias."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        return F.linear(self.LayerNorm(self.activation(self.dense(hidden))), words, self.bias)

    def resize(self, vocabulary: int) -> None:
        """The bias of another vocabulary: new words begin at 0."""
        grown = self.bias.new_zeros(vocabulary)
        kept = min(len(grown), len(self.bias))
        grown[:kept] = self.bias.data[:kept]
        self.bias = nn.Parameter(grown, requires_grad=self.bias.requires_grad)


class LMPredictions(nn.Module):
    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.lm_head = LMHead(config)


class DebertaForMaskedLM(DebertaPreTrainedModel):
    """Masked language model with the Enhanced Mask Decoder and the head that official checkpoints carry."""

    decodes_masks = True

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.deberta = DebertaModel(config)
        self.lm_predictions = LMPredictions(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LMHead):
            nn.init.zeros_(module.bias)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        table = super().resize_token_embeddings(*args, **kwargs)
        self.lm_predictions.lm_head.resize(table.num_embeddings)
        return table

    def predict(self, packed: PackedInput, rows: Tensor | None = None, **kwargs: Any) -> tuple[Tensor, Encoded]:
        """Logits [rows, vocabulary] of these packed rows (None: all), and what the encoder gave on the way."""
        config = self.config
        if config.emd_steps <= 0:
            encoded = self.deberta.encode(packed, **kwargs)
            hidden = encoded.last if rows is None else encoded.last[rows]
        else:
            # The ordinary last layer is not needed, unless somebody wants to look at it.
            whole = kwargs.get("keep_hidden") or kwargs.get("keep_attentions")
            if whole:
                encoded = self.deberta.encode(packed, **{**kwargs, "keep_hidden": True})
                below = encoded.hidden_states[-2]
            else:
                encoded = self.deberta.encode(packed, depth=config.num_hidden_layers - 1)
                below = encoded.last
            if rows is None:
                rows = torch.arange(below.shape[0], device=below.device)
            hidden = decode_masks(self.deberta, below, rows, packed)
        return self.lm_predictions.lm_head(hidden, self.deberta.embeddings.word_embeddings.weight), encoded

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # [batch, length], -100 where nothing is to be predicted
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits [batch, length, vocabulary]; in training, of the labelled tokens only: [labelled, vocabulary]."""
        packed = pack_input(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        rows = targets = None
        if labels is not None:
            _same_shape("labels", labels, packed)
            targets = packed.pack(labels)
            if self.training:
                rows = (targets != IGNORED).nonzero().squeeze(-1)
                targets = targets[rows]
        logits, encoded = self.predict(
            packed,
            rows,
            keep_hidden=_asked(output_hidden_states, self.config.output_hidden_states),
            keep_attentions=_asked(output_attentions, self.config.output_attentions),
        )
        loss = None
        if targets is not None:
            loss = self.loss_function(logits=logits, labels=targets, vocab_size=self.config.vocab_size, **kwargs)
        output = model_output(packed, encoded)
        return MaskedLMOutput(
            loss=loss,
            logits=logits if rows is not None else packed.pad(logits),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


class MaskPredictions(nn.Module):
    """Was this token replaced? One logit per token, from the token and its sequence's first one."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor, first: Tensor) -> Tensor:
        return self.classifier(self.activation(self.dense(self.LayerNorm(first + hidden)))).squeeze(-1)


class DebertaForReplacedTokenDetection(DebertaPreTrainedModel):
    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.deberta = DebertaModel(config)
        self.mask_predictions = MaskPredictions(config)
        self.post_init()

    def predict(self, packed: PackedInput, **kwargs: Any) -> tuple[Tensor, Encoded]:
        """Packed logits [T] and what the encoder gave on the way."""
        encoded = self.deberta.encode(packed, **kwargs)
        starts = packed.layout.q_offsets[:-1].long()
        counts = packed.layout.q_offsets.diff()
        first = encoded.last[starts.repeat_interleave(counts, output_size=encoded.last.shape[0])]
        return self.mask_predictions(encoded.last, first), encoded

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # [batch, length]: 1 replaced, 0 original, -100 not counted
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Logits [batch, length], positive where the token looks replaced; the loss is over all real tokens."""
        packed = pack_input(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        logits, encoded = self.predict(
            packed,
            keep_hidden=_asked(output_hidden_states, self.config.output_hidden_states),
            keep_attentions=_asked(output_attentions, self.config.output_attentions),
        )
        loss = None
        if labels is not None:
            _same_shape("labels", labels, packed)
            targets = packed.pack(labels)
            counted = targets != IGNORED
            loss = F.binary_cross_entropy_with_logits(logits[counted].float(), targets[counted].float())
        output = model_output(packed, encoded)
        return TokenClassifierOutput(
            loss=loss, logits=packed.pad(logits), hidden_states=output.hidden_states, attentions=output.attentions
        )


class ContextPooler(nn.Module):
    """dense and activation over a sequence's first token."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.pooler_dropout)
        self.dense = nn.Linear(config.pooler_hidden_size, config.pooler_hidden_size)
        self.activation = activation(config.pooler_hidden_act)

    def forward(self, first: Tensor) -> Tensor:
        return self.activation(self.dense(self.dropout(first)))


def first_tokens(
    encoder: DebertaModel, input_ids: Tensor | None, inputs: dict[str, Any]
) -> tuple[Tensor, BaseModelOutput]:
    """Each sequence's first token [batch, hidden], after the last layer. That layer computes these rows alone, unless
    somebody wants to look at the others too."""
    config = encoder.config
    keep_hidden = _asked(inputs.pop("output_hidden_states", None), config.output_hidden_states)
    keep_attentions = _asked(inputs.pop("output_attentions", None), config.output_attentions)
    mask = inputs.pop("attention_mask", None)
    packed = pack_input(config, input_ids, mask, **inputs)
    looked_at = keep_hidden or keep_attentions or config.num_hidden_layers == 1 or torch.compiler.is_compiling()
    if looked_at or not (mask is None or mask[:, 0].all()):
        output = model_output(packed, encoder.encode(packed, keep_hidden=keep_hidden, keep_attentions=keep_attentions))
        return output.last_hidden_state[:, 0], output
    return encoder.encode(packed, rows=packed.layout.q_offsets[:-1].long()).last, BaseModelOutput()


def _classifier_dropout(config: DebertaConfig) -> nn.Dropout:
    return nn.Dropout(config.hidden_dropout_prob if config.cls_dropout is None else config.cls_dropout)


class DebertaForSequenceClassification(DebertaPreTrainedModel):
    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.deberta = DebertaModel(config)
        self.pooler = ContextPooler(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.pooler_hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids: Tensor | None = None, labels: Tensor | None = None, **inputs: Any):
        inputs, loss_inputs = _split(inputs)
        first, output = first_tokens(self.deberta, input_ids, inputs)
        logits = self.classifier(self.dropout(self.pooler(first)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **loss_inputs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions
        )


class DebertaForTokenClassification(DebertaPreTrainedModel):
    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.deberta = DebertaModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids: Tensor | None = None, labels: Tensor | None = None, **inputs: Any):
        inputs, loss_inputs = _split(inputs)
        output = self.deberta(input_ids, **inputs)
        logits = self.classifier(self.dropout(output.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **loss_inputs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions
        )


class DebertaForQuestionAnswering(DebertaPreTrainedModel):
    def __init__(self, config: DebertaConfig):
        config.num_labels = 2  # start and end; transformers sizes its head by this field
        super().__init__(config)
        self.deberta = DebertaModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **inputs: Any,
    ):
        inputs, loss_inputs = _split(inputs)
        output = self.deberta(input_ids, **inputs)
        start, end = self.qa_outputs(output.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start, end, start_positions, end_positions, **loss_inputs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start,
            end_logits=end,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


class DebertaForMultipleChoice(DebertaPreTrainedModel):
    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.deberta = DebertaModel(config)
        self.pooler = ContextPooler(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.pooler_hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids: Tensor | None = None, labels: Tensor | None = None, **inputs: Any):
        """Inputs [batch, choices, length]; logits [batch, choices]."""
        inputs, _ = _split(inputs)
        given = input_ids if input_ids is not None else inputs.get("inputs_embeds")
        if given is None or given.dim() < 3:
            raise ValueError("multiple choice needs input_ids [batch, choices, length]")
        flat = {key: x.flatten(0, 1) if isinstance(x, Tensor) else x for key, x in inputs.items()}
        first, output = first_tokens(self.deberta, None if input_ids is None else input_ids.flatten(0, 1), flat)
        logits = self.classifier(self.dropout(self.pooler(first)))
        logits = logits.view(given.shape[:2])
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions
        )


ENCODER_INPUTS = frozenset(
    ("attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "output_attentions", "output_hidden_states")
)


def _split(inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the encoder takes, and what the loss function may (num_items_in_batch)."""
    encoder = {key: value for key, value in inputs.items() if key in ENCODER_INPUTS}
    return encoder, {key: value for key, value in inputs.items() if key not in ENCODER_INPUTS}


def _asked(asked: bool | None, default: bool | None) -> bool:
    return bool(default if asked is None else asked)


def _same_shape(name: str, given: Tensor, packed: PackedInput) -> None:
    if tuple(given.shape) != packed.shape:
        raise ValueError(f"{name} should be [batch, length] = {list(packed.shape)}, got {list(given.shape)}")
