"""Models with heads: masked LM, replaced-token detection, and the fine-tuning tasks.

Parameter names and shapes match the official checkpoints, so that heads load in both directions.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.modeling_outputs import (
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import can_return_tuple

from debertakit.attention.graphs import fixed_shapes
from debertakit.attention.linear import linear, multiply
from debertakit.config import DebertaConfig
from debertakit.decoding import ALL, read_rows
from debertakit.model import DebertaModel, DebertaPreTrainedModel, activation
from debertakit.padding import IGNORED, PackedInput, Recorder, pack_input


class LMHead(nn.Module):
    """Dense layer, activation and LayerNorm, then the tied word embeddings and a bias."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        return multiply(self.LayerNorm(self.activation(linear(self.dense, hidden))), words, self.bias)

    def resize(self, vocabulary: int) -> None:
        """Resize the bias to another vocabulary size. New words start at 0."""
        grown = self.bias.new_zeros(vocabulary)
        kept = min(len(grown), len(self.bias))
        grown[:kept] = self.bias.data[:kept]
        self.bias = nn.Parameter(grown, requires_grad=self.bias.requires_grad)


class LMPredictions(nn.Module):
    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.lm_head = LMHead(config)


class DebertaForMaskedLM(DebertaPreTrainedModel):
    """Masked language model with the Enhanced Mask Decoder and the LM head of the official checkpoints."""

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

    def resize_token_embeddings(self, *args: object, **kwargs: object) -> nn.Embedding:
        table = super().resize_token_embeddings(*args, **kwargs)
        self.lm_predictions.lm_head.resize(table.num_embeddings)
        return table

    def predict(self, packed: PackedInput, rows: Tensor | None = None, recorder: Recorder | None = None) -> Tensor:
        """Return the logits [rows, vocabulary] of these packed rows (None: all)."""
        recording = recorder is not None and recorder.active
        plain = ALL if recording else None  # the last layer must run to be recorded
        hidden, _ = read_rows(
            self.deberta, packed, decoded=ALL if rows is None else rows, plain=plain, recorder=recorder
        )
        assert hidden is not None
        return self.lm_predictions.lm_head(hidden, self.deberta.embeddings.word_embeddings.weight)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # [batch, length]; -100: not predicted
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: object,
    ) -> MaskedLMOutput:
        """Return logits [batch, length, vocabulary].

        With ``config.sparse_prediction``, training returns only the logits of labelled tokens: [labelled, vocabulary].
        """
        packed = pack_input(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        recorder = self.deberta.recorder(packed, output_hidden_states, output_attentions)
        rows = targets = None
        if labels is not None:
            targets = packed.pack_labels("labels", labels)
            if self.training and self.config.sparse_prediction:
                rows = (targets != IGNORED).nonzero().squeeze(-1)
                targets = targets[rows]
        logits = self.predict(packed, rows, recorder)
        loss = None
        if targets is not None:
            loss = self.loss_function(logits=logits, labels=targets, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits if rows is not None else packed.pad(logits), **recorder.outputs()
        )


class MaskPredictions(nn.Module):
    """One logit per token (was it replaced?), computed from the token and the first token of its sequence."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor, first: Tensor) -> Tensor:
        return self.classifier(self.activation(self.dense(self.LayerNorm(first + hidden)))).squeeze(-1)


class DebertaForReplacedTokenDetection(DebertaPreTrainedModel):
    """RTD discriminator: one logit per token, positive if the token was replaced."""

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.deberta = DebertaModel(config)
        self.mask_predictions = MaskPredictions(config)
        self.post_init()

    def predict(self, packed: PackedInput, recorder: Recorder | None = None) -> Tensor:
        """Return packed logits [T]."""
        last = self.deberta.encode(packed, recorder=recorder).last
        starts = packed.layout.q_offsets[:-1].long()
        counts = packed.layout.q_offsets.diff()
        first = last[starts.repeat_interleave(counts, output_size=last.shape[0])]
        return self.mask_predictions(last, first)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,  # [batch, length]: 1 replaced, 0 original, -100 ignored
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: object,
    ) -> TokenClassifierOutput:
        """Return logits [batch, length], positive if the token looks replaced. The loss covers all real tokens."""
        packed = pack_input(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        recorder = self.deberta.recorder(packed, output_hidden_states, output_attentions)
        logits = self.predict(packed, recorder)
        loss = None
        if labels is not None:
            targets = packed.pack_labels("labels", labels)
            counted = (targets != IGNORED).float()
            losses = F.binary_cross_entropy_with_logits(
                logits.float(), targets.clamp(min=0).float(), counted, reduction="sum"
            )
            loss = losses / counted.sum()
        return TokenClassifierOutput(loss=loss, logits=packed.pad(logits), **recorder.outputs())


class ContextPooler(nn.Module):
    """Dense layer and activation on the first token of each sequence."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.pooler_dropout)
        self.dense = nn.Linear(config.pooler_hidden_size, config.pooler_hidden_size)
        self.activation = activation(config.pooler_hidden_act)

    def forward(self, first: Tensor) -> Tensor:
        return self.activation(self.dense(self.dropout(first)))


def first_tokens(
    encoder: DebertaModel, packed: PackedInput, recorder: Recorder, attention_mask: Tensor | None
) -> Tensor:
    """Return the hidden state of each sequence's first token [batch, hidden].

    The last layer computes only these rows, unless hidden states or attentions are recorded.
    """
    whole = recorder.active or encoder.config.num_hidden_layers == 1 or fixed_shapes()
    if whole or not (attention_mask is None or attention_mask[:, 0].all()):
        return recorder.last_hidden_state(encoder.encode(packed, recorder=recorder).last)[:, 0]
    return encoder.encode(packed, rows=packed.layout.q_offsets[:-1].long()).last


def _classifier_dropout(config: DebertaConfig) -> nn.Dropout:
    return nn.Dropout(config.hidden_dropout_prob if config.cls_dropout is None else config.cls_dropout)


class DebertaForSequenceClassification(DebertaPreTrainedModel):
    """Classifier or regressor of a text or a text pair, on the hidden state of [CLS]."""

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.deberta = DebertaModel(config)
        self.pooler = ContextPooler(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.pooler_hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: object,
    ) -> SequenceClassifierOutput:
        packed = pack_input(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        recorder = self.deberta.recorder(packed, output_hidden_states, output_attentions)
        first = first_tokens(self.deberta, packed, recorder, attention_mask)
        logits = self.classifier(self.dropout(self.pooler(first)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(loss=loss, logits=logits, **recorder.outputs())


class DebertaForTokenClassification(DebertaPreTrainedModel):
    """Tagger: label logits for every token."""

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.deberta = DebertaModel(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: object,
    ) -> TokenClassifierOutput:
        output = self.deberta(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(output.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions
        )


class DebertaForQuestionAnswering(DebertaPreTrainedModel):
    """Extractive question answering: start and end logits for every token."""

    def __init__(self, config: DebertaConfig):
        config.num_labels = 2  # start and end; transformers sizes its head by this field
        super().__init__(config)
        self.deberta = DebertaModel(config)
        self.dropout = nn.Dropout(config.cls_dropout or 0.0)  # stock has none
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: object,
    ) -> QuestionAnsweringModelOutput:
        output = self.deberta(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            return_dict=True,
        )
        start, end = self.qa_outputs(self.dropout(output.last_hidden_state)).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            scores = (start, end)
            if attention_mask is not None:  # no answer is in the padding; stock includes padding in the softmax
                lowest = torch.finfo(start.dtype).min
                scores = (start.masked_fill(attention_mask == 0, lowest), end.masked_fill(attention_mask == 0, lowest))
            loss = self.loss_function(*scores, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start,
            end_logits=end,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


class DebertaForMultipleChoice(DebertaPreTrainedModel):
    """One logit per option; the input is [batch, options, length]."""

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.deberta = DebertaModel(config)
        self.pooler = ContextPooler(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.pooler_hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: object,
    ) -> MultipleChoiceModelOutput:
        """Take inputs [batch, choices, length] and return logits [batch, choices]."""
        given = input_ids if input_ids is not None else inputs_embeds
        if given is None or given.dim() < 3:
            raise ValueError("multiple choice needs input_ids [batch, choices, length]")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        flat = [None if x is None else x.flatten(0, 1) for x in inputs]
        packed = pack_input(self.config, *flat)
        recorder = self.deberta.recorder(packed, output_hidden_states, output_attentions)
        first = first_tokens(self.deberta, packed, recorder, flat[1])
        logits = self.classifier(self.dropout(self.pooler(first))).view(given.shape[:2])
        loss = None
        if labels is not None:
            loss = fixed_cross_entropy(logits.float(), labels, kwargs.get("num_items_in_batch"))
        return MultipleChoiceModelOutput(loss=loss, logits=logits, **recorder.outputs())


# AutoModel*.from_config(DebertaConfig(...)) builds our classes. AutoModel*.from_pretrained(folder) stays stock.
for auto, cls in (
    (AutoModelForMaskedLM, DebertaForMaskedLM),
    (AutoModelForSequenceClassification, DebertaForSequenceClassification),
    (AutoModelForTokenClassification, DebertaForTokenClassification),
    (AutoModelForQuestionAnswering, DebertaForQuestionAnswering),
    (AutoModelForMultipleChoice, DebertaForMultipleChoice),
):
    auto.register(DebertaConfig, cls, exist_ok=True)
