"""Backbones: adapters from models to the interface that objectives use (``objectives.base.Backbone``).

DeBERTa is our own implementation and runs on packed rows. BERT, RoBERTa, ALBERT, ELECTRA, XLNet and GPT-2 are the
unmodified classes of transformers: a packed view is padded to [n, longest], run through the stock model, and its rows
are gathered back. Language-model heads, and sentence-pair heads if the stock class has one, are also the stock heads,
so a checkpoint loads in transformers under its own class without unexpected weights.

``Family`` describes a model family; the records are in pretraining/families.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from debertakit.decoding import read_rows
from debertakit.generation.seq2seq import Source
from debertakit.objectives.base import AttentionMode, Backbone, View
from debertakit.objectives.two_streams import two_streams
from debertakit.protocols import Tokenizer

Head = Callable[[PreTrainedModel, Tensor], Tensor]
"""A head of a model, from hidden rows to logits."""
ModelFields = dict[str, object]
"""Values of ``PretrainConfig.model``, with the vocabulary size and special ids of the tokenizer."""


def _count_positions(config: PreTrainedConfig) -> int | None:
    return config.max_position_embeddings


def _output_bias(model: PreTrainedModel) -> Tensor | None:
    return model.get_output_embeddings().bias


def count_segments(config: PreTrainedConfig) -> int:
    """Number of segment embeddings. Configs of families without segments lack the field."""
    return getattr(config, "type_vocab_size", 1)


@dataclass(frozen=True)
class Family:
    """A model family: its classes and heads, and how it differs from the other families."""

    title: str
    """Name in the model card."""
    config_class: type[PreTrainedConfig]
    model_class: type[PreTrainedModel]
    """The language model: masked, permuted, causal or encoder-decoder."""
    word_head: Head
    backbone: "Callable[[PreTrainedModel, Family], Backbone]"
    output_bias: Callable[[PreTrainedModel], Tensor | None] = _output_bias
    """The bias of the word head. None: the head has no bias."""
    attention: tuple[AttentionMode, ...] = ("bidirectional",)
    examples: Mapping[str, str] = field(default_factory=dict)
    """How to use a trained model, one line for each pipeline tag of the hub."""
    pair_class: type[PreTrainedModel] | None = None
    """The class with a head for pairs of texts. None: the objective brings its own head."""
    pair_head: Head | None = None
    make_detector: Callable[[PreTrainedConfig], PreTrainedModel] | None = None
    """Builds the discriminator of replaced-token detection. None: not supported."""
    detection_head: Head | None = None
    extra_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of ``PretrainConfig.model`` that the config class lacks, and their types."""
    derived_fields: tuple[str, ...] = ()
    """Fields of the config class that are computed from others and cannot be set."""
    make_config: Callable[[ModelFields, Tokenizer], PreTrainedConfig] | None = None
    """None: ``config_class(**fields)`` with the tokenizer's begin and end ids; the tokenizer needs a pad token."""
    finish_model: Callable[[PreTrainedModel, ModelFields], None] | None = None
    """Changes a newly built model, for example to share its layers."""
    count_positions: Callable[[PreTrainedConfig], int | None] = _count_positions
    """Maximum sequence length. None: no limit."""
    uses_token_types: bool = True
    """False: the tokenizer returns token_type_ids only if the config has two segments."""
    scales: bool = False
    """Whether compile and parallel=fsdp2 are supported."""
    continues: bool = False
    """Whether a run can start from a checkpoint (--init)."""

    @property
    def fields(self) -> dict[str, object]:
        """Fields allowed in ``PretrainConfig.model``, and their types."""
        own = self.config_class.__annotations__  # without the fields inherited from transformers
        return {name: kind for name, kind in own.items() if name not in self.derived_fields} | dict(self.extra_fields)


@dataclass(frozen=True, eq=False)
class StockBackbone:
    """Stock model on padded batches. Also the base of the other adapters."""

    model: PreTrainedModel
    family: Family

    @property
    def config(self) -> PreTrainedConfig:
        return self.model.config

    @property
    def attention(self) -> tuple[AttentionMode, ...]:
        return self.family.attention

    @property
    def knows_positions(self) -> bool:
        return True

    @property
    def has_pair_head(self) -> bool:
        return self.family.pair_class is not None and isinstance(self.model, self.family.pair_class)

    @property
    def decodes_causal_rows(self) -> bool:
        return False

    def train_mask_decoder(self, used: bool) -> None:
        pass

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        padded = Padded.of(view, self.config.pad_token_id)
        inputs = {"attention_mask": padded.mask}
        if view.segments is not None and count_segments(self.config) > 1:
            inputs["token_type_ids"] = padded.pad(view.segments)
        last = self.model.base_model(padded.ids, **inputs).last_hidden_state.flatten(0, 1)
        from_decoder, from_last = (None if rows is None else last[padded.places[rows]] for rows in (decoded, plain))
        return from_decoder, from_last

    def word_table(self) -> Tensor:
        return self.model.get_input_embeddings().weight

    def word_logits(self, hidden: Tensor) -> Tensor:
        return self.family.word_head(self.model, hidden)

    def pair_logits(self, hidden: Tensor) -> Tensor:
        if self.family.pair_head is None:
            raise ValueError(f"{self.family.title} has no head for pairs of texts")
        return self.family.pair_head(self.model, hidden)

    def detection_logits(self, view: View) -> Tensor:
        if self.family.detection_head is None:
            raise ValueError(f"{self.family.title} has no head for replaced tokens")
        _, hidden = self.hidden_rows(view, None, torch.arange(len(view.ids), device=view.ids.device))
        assert hidden is not None
        return self.family.detection_head(self.model, hidden)


@dataclass(frozen=True, eq=False)
class DebertaBackbone(StockBackbone):
    """Our DeBERTa, on packed rows."""

    @property
    def attention(self) -> tuple[AttentionMode, ...]:
        """A model with a convolution (v2-xlarge) cannot be causal: the convolution reads the next token."""
        return ("bidirectional",) if self.config.conv_kernel_size else self.family.attention

    @property
    def knows_positions(self) -> bool:
        return self.config.position_biased_input

    @property
    def decodes_causal_rows(self) -> bool:
        return self.config.causal_emd

    def train_mask_decoder(self, used: bool) -> None:
        self.model.deberta.train_mask_decoder(used)

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        if view.order is None:
            return read_rows(self.model.deberta, view.packed(), decoded=decoded, plain=plain)
        assert plain is not None
        packed, queries = two_streams(view, plain)
        ascending, back = queries.sort()
        return None, self.model.deberta.encode(packed, rows=ascending).last[back.argsort()]

    def detection_logits(self, view: View) -> Tensor:
        return self.model.predict(view.packed())


@dataclass(frozen=True, eq=False)
class Seq2SeqBackbone(StockBackbone):
    """DeBERTa-D. Rows are rows of the decoder."""

    def hidden_rows(
        self, view: View, decoded: Tensor | None, plain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        assert view.written is not None
        assert plain is not None
        packed = view.packed()
        source = Source(self.model.encoder.encode(packed).last, packed.layout)
        return None, self.model.decode(view.written.packed(), source)[plain]


@dataclass(frozen=True, eq=False)
class XLNetBackbone(StockBackbone):
    """XLNet with two-stream attention: the query stream of a target sees its position but not its content.

    i sees j  <=>  order_j = 0  or  order_j < order_i;   the content stream of i also sees i
    """

    @property
    def knows_positions(self) -> bool:
        return False

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
