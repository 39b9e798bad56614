"""Backbones: one adapter per model family, with the interface that objectives use (``objectives.base.Backbone``).

DeBERTa is our own implementation and runs on packed rows. BERT, RoBERTa, ALBERT, ELECTRA, XLNet and GPT-2 are the
unmodified classes of transformers: a packed view is padded to [n, longest], run through the stock model, and its rows
are gathered back. Language-model heads, and sentence-pair heads if the stock class has one, are also the stock heads,
so a checkpoint loads in transformers under its own class without unexpected weights.
"""

import copy
import typing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedModel,
)

from debertakit.config import DebertaConfig
from debertakit.decoding import read_rows
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig, Source, special_ids
from debertakit.heads import DebertaForMaskedLM
from debertakit.model import DebertaPreTrainedModel
from debertakit.objectives.base import Backbone, View, ViewName
from debertakit.pretraining.family import Sharing, model_fields
from debertakit.pretraining.settings import PretrainConfig, known

WORD_HEADS: dict[str, Any] = {
    "bert": lambda model, hidden: model.cls.predictions(hidden),
    "roberta": lambda model, hidden: model.lm_head(hidden),
    "albert": lambda model, hidden: model.predictions(hidden),
    "electra": lambda model, hidden: model.generator_lm_head(model.generator_predictions(hidden)),
    "xlnet": lambda model, hidden: model.lm_loss(hidden),
    "gpt2": lambda model, hidden: model.lm_head(hidden),
}
PAIR_HEADS: dict[str, Any] = {
    "BertForPreTraining": lambda model, first: model.cls.seq_relationship(model.bert.pooler(first[:, None])),
    "AlbertForPreTraining": lambda model, first: model.sop_classifier(
        model.albert.pooler_activation(model.albert.pooler(first))
    ),
}


@dataclass(frozen=True, eq=False)
class DebertaBackbone:
    model: Any
    """Any of our models. The encoder is ``deberta``; the language-model head, if present, is ``lm_predictions``."""
    has_pair_head: bool = False

    @property
    def views(self) -> tuple[ViewName, ...]:
        """A model with a convolution (v2-xlarge) cannot be causal: the convolution reads the next token."""
        return ("masked",) if self.config.conv_kernel_size else ("masked", "causal")

    @property
    def config(self) -> DebertaConfig:
        return self.model.config

    @property
    def knows_positions(self) -> bool:
        return self.config.position_biased_input

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        return read_rows(self.model.deberta, view.packed(), decoded=decoded, plain=plain)

    def word_table(self) -> Tensor:
        return self.model.deberta.embeddings.word_embeddings.weight

    def word_logits(self, hidden: Tensor) -> Tensor:
        return self.model.lm_predictions.lm_head(hidden, self.word_table())

    def pair_logits(self, hidden: Tensor) -> Tensor:
        raise ValueError("DeBERTa has no head for pairs of texts; the objective brings its own")


@dataclass(frozen=True, eq=False)
class Seq2SeqBackbone:
    """DeBERTa-D. Rows are rows of the decoder."""

    model: DebertaForSeq2SeqLM
    views: tuple[ViewName, ...] = ("infilled",)
    knows_positions: bool = True
    has_pair_head: bool = False

    @property
    def config(self) -> DebertaSeq2SeqConfig:
        return self.model.config

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        assert view.written is not None
        assert plain is not None
        packed = view.packed()
        source = Source(self.model.encoder.encode(packed).last, packed.layout)
        return None, self.model.decode(view.written.packed(), source)[plain]

    def word_table(self) -> Tensor:
        table: Any = self.model.get_input_embeddings()
        return table.weight

    def word_logits(self, hidden: Tensor) -> Tensor:
        return self.model.lm_predictions.lm_head(hidden, self.word_table())

    def pair_logits(self, hidden: Tensor) -> Tensor:
        raise ValueError("DeBERTa-D has no head for pairs of texts")


@dataclass(frozen=True, eq=False)
class StockBackbone:
    """Stock model on padded batches: BERT, RoBERTa, ALBERT, ELECTRA (bidirectional) and GPT-2 (causal)."""

    model: Any
    views: tuple[ViewName, ...] = ("masked",)
    knows_positions: bool = True

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def has_pair_head(self) -> bool:
        return type(self.model).__name__ in PAIR_HEADS

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        padded = Padded.of(view, self.config.pad_token_id)
        segments = None if view.segments is None or self.config.type_vocab_size < 2 else padded.pad(view.segments)
        output = self.model.base_model(padded.ids, attention_mask=padded.mask, token_type_ids=segments)
        last = output.last_hidden_state.flatten(0, 1)
        rows = [None if asked is None else last[padded.places[asked]] for asked in (decoded, plain)]
        return rows[0], rows[1]

    def word_table(self) -> Tensor:
        return self.model.get_input_embeddings().weight

    def word_logits(self, hidden: Tensor) -> Tensor:
        return WORD_HEADS[self.config.model_type](self.model, hidden)

    def pair_logits(self, hidden: Tensor) -> Tensor:
        return PAIR_HEADS[type(self.model).__name__](self.model, hidden)


@dataclass(frozen=True, eq=False)
class XLNetBackbone(StockBackbone):
    """XLNet with two-stream attention: the query stream of a target sees its position but not its content.

    i sees j  <=>  order_j = 0  or  order_j < order_i;   the content stream of i also sees i
    """

    views: tuple[ViewName, ...] = ("permuted",)
    knows_positions: bool = False

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        assert view.order is not None
        assert plain is not None
        padded = Padded.of(view, self.config.pad_token_id)
        order = padded.pad(view.order)  # [n, longest]
        unseen = (order[:, None, :] > 0) & (order[:, None, :] >= order[:, :, None])
        n, longest = order.shape
        sequence, place = padded.places[plain] // longest, padded.places[plain] % longest
        counts = torch.bincount(sequence, minlength=n)
        slot = torch.arange(len(plain), device=plain.device) - (counts.cumsum(0) - counts)[sequence]
        most = int(counts.max()) if len(plain) else 0
        targets = torch.zeros(n, max(most, 1), longest, device=plain.device)
        targets[sequence, slot, place] = 1.0
        output = self.model.transformer(
            padded.ids,
            attention_mask=None if padded.mask is None else padded.mask.float(),
            perm_mask=unseen.float(),
            target_mapping=targets,
            token_type_ids=torch.zeros_like(padded.ids),  # one segment, as from the tokenizer
            use_mems=False,
        )
        return None, output.last_hidden_state[sequence, slot]


@dataclass(frozen=True)
class Padded:
    """A packed view as [n, longest]."""

    ids: Tensor
    mask: Tensor | None  # [n, longest], 1 at tokens, 0 at padding; None: no padding
    places: Tensor  # [T]: index of each packed row in the flattened batch

    @classmethod
    def of(cls, view: View, pad: int) -> "Padded":
        lengths = view.lengths.long()
        n, longest, total = len(lengths), int(lengths.max()), len(view.ids)
        starts = lengths.cumsum(0) - lengths
        shift = torch.arange(n, device=lengths.device) * longest - starts
        places = torch.arange(total, device=lengths.device) + shift.repeat_interleave(lengths, output_size=total)
        ids = view.ids.new_full((n * longest,), pad).index_copy(0, places, view.ids).view(n, longest)
        if total == n * longest:
            return cls(ids, None, places)
        return cls(ids, (torch.arange(longest, device=lengths.device) < lengths[:, None]).long(), places)

    def pad(self, rows: Tensor) -> Tensor:
        """[T] -> [n, longest], zeros at padding."""
        return rows.new_zeros(self.ids.numel()).index_copy(0, self.places, rows).view(self.ids.shape)


def make_backbone(model: PreTrainedModel) -> Backbone:
    if isinstance(model, DebertaPreTrainedModel):
        return DebertaBackbone(model)
    if isinstance(model, DebertaForSeq2SeqLM):
        return Seq2SeqBackbone(model)
    if model.config.model_type == "gpt2":
        return StockBackbone(model, views=("causal",))
    return XLNetBackbone(model) if model.config.model_type == "xlnet" else StockBackbone(model)


def detection_logits(model: Any, view: View) -> Tensor:
    """Replaced-token logits [T] of our DebertaForReplacedTokenDetection or transformers' ElectraForPreTraining."""
    if isinstance(model, DebertaPreTrainedModel):
        return model.predict(view.packed())
    _, hidden = StockBackbone(model).hidden_rows(view, None, torch.arange(len(view.ids), device=view.ids.device))
    return model.discriminator_predictions(hidden)


# ------------------------------------------------------------------------------------------------------- building


def make_model(config: PretrainConfig, tokenizer: Any) -> PreTrainedModel:
    """Build the recipe's model, randomly initialised. NSP and SOP use the stock pretraining class."""
    built = make_config(config, tokenizer)
    if config.family == "deberta":
        return DebertaForMaskedLM(built)
    if config.family == "deberta-d":
        return DebertaForSeq2SeqLM(built)
    if config.family == "gpt2":
        return AutoModelForCausalLM.from_config(built)
    in_pairs = config.objectives.nsp > 0 or config.objectives.sop > 0
    auto = AutoModelForPreTraining if in_pairs or config.family == "xlnet" else AutoModelForMaskedLM
    model = auto.from_config(built)
    if config.family == "albert":
        share_layers(model, config.model.get("share", "all"))
    return model


def make_config(config: PretrainConfig, tokenizer: Any) -> Any:
    """Build the recipe's model config, with the tokenizer's vocabulary size and special ids."""
    fields = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **config.model}
    if fields["vocab_size"] < len(tokenizer):
        raise ValueError(
            f"model.vocab_size={fields['vocab_size']} is less than the tokenizer's {len(tokenizer)} pieces"
        )
    built: Any
    if config.family == "deberta":
        built = DebertaConfig(**fields)
    elif config.family == "deberta-d":
        depth = fields.pop("decoder_layers", 0)
        built = DebertaSeq2SeqConfig(encoder=DebertaConfig(**fields), decoder_layers=depth, **special_ids(tokenizer))
    else:
        if fields["pad_token_id"] is None:
            raise ValueError(f"{config.family} runs on padded batches: the tokenizer needs a pad token")
        ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        built = stock_config(config.family, {**ends, **fields})
    if config.family != "xlnet":  # XLNet computes its positions and has no maximum length
        # RoBERTa's positions start after the row of the padding token
        behind = built.pad_token_id + 1 if config.family == "roberta" else 0
        positions = built.max_position_embeddings - behind
        if config.data.max_length > positions:
            raise ValueError(
                f"data.max_length={config.data.max_length} is more than the model's {positions} positions "
                "(model.max_position_embeddings)"
            )
    return built


def stock_config(family: str, fields: dict[str, Any]) -> Any:
    """Build a transformers config. Unknown fields raise."""
    known(fields, model_fields(family), "model.")
    if family != "albert":
        return AutoConfig.for_model(family, **fields)
    share = fields.get("share", "all")
    if share not in typing.get_args(Sharing):
        raise ValueError(f"model.share={share!r}: {', '.join(typing.get_args(Sharing))}")
    config = AutoConfig.for_model(family, **{name: value for name, value in fields.items() if name != "share"})
    config.num_hidden_groups = 1 if share == "all" else config.num_hidden_layers
    return config


def share_layers(model: Any, share: Sharing) -> None:
    """Share only the attention, or only the feed-forward modules, between ALBERT's layers.

    Stock ALBERT shares all layers of a group. Here each layer is its own group, and the shared half is the same module
    in every group. The file holds one copy per group, so stock transformers computes the same output.
    """
    parts = {"attention": ["attention"], "ffn": ["ffn", "ffn_output", "full_layer_layer_norm"]}
    layers = [group.albert_layers[0] for group in model.albert.encoder.albert_layer_groups]
    for layer in layers[1:]:
        for name in parts.get(share, []):
            setattr(layer, name, getattr(layers[0], name))


def fitting(tokenizer: Any, model: PreTrainedModel) -> Any:
    """Return the tokenizer for this model. RoBERTa or GPT-2 with one segment gets a copy without token_type_ids."""
    if getattr(model.config, "type_vocab_size", 1) > 1 or model.config.model_type not in ("roberta", "gpt2"):
        return tokenizer
    fitted = copy.copy(tokenizer)
    fitted.model_input_names = ["input_ids", "attention_mask"]
    return fitted
