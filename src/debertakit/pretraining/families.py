"""The model families that a recipe can name. To add one, add a record here and a recipe."""

import copy
from typing import Literal, get_args

from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    XLNetConfig,
    XLNetLMHeadModel,
)

from debertakit.config import DebertaConfig
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig, special_ids
from debertakit.heads import DebertaForMaskedLM, DebertaForReplacedTokenDetection
from debertakit.objectives.backbones import (
    DebertaBackbone,
    Family,
    ModelFields,
    Seq2SeqBackbone,
    StockBackbone,
    XLNetBackbone,
    count_segments,
)
from debertakit.objectives.base import Backbone
from debertakit.protocols import Tokenizer

PROMPT = "the capital of France is"
LOAD = 'transformers.AutoModel.from_pretrained("FOLDER")'
FILL = {"fill-mask": f'transformers.pipeline("fill-mask", "FOLDER")("{PROMPT} [MASK].")'}
DETECT = {"feature-extraction": f"{LOAD}  # FOLDER/generator fills masks"}

# ------------------------------------------------------------------------------------------------------- DeBERTa


def _deberta_config(fields: ModelFields, tokenizer: Tokenizer) -> DebertaConfig:
    return DebertaConfig(**fields)


def _deberta_detector(config: PreTrainedConfig) -> PreTrainedModel:
    """Only the generator has a mask decoder."""
    config.emd_steps = 0
    return DebertaForReplacedTokenDetection(config)


def _seq2seq_config(fields: ModelFields, tokenizer: Tokenizer) -> DebertaSeq2SeqConfig:
    encoder = DebertaConfig(**{name: value for name, value in fields.items() if name != "decoder_layers"})
    depth = fields.get("decoder_layers", 0)
    return DebertaSeq2SeqConfig(encoder=encoder, decoder_layers=depth, **special_ids(tokenizer))


def _table_of_positions(config: PreTrainedConfig) -> int | None:
    """Without the mask decoder or absolute positions at the input, nothing limits the length."""
    return config.max_position_embeddings if config.decodes_positions or config.position_biased_input else None


LAYOUT = {"model_type": Literal["deberta", "deberta-v2"]}
DEBERTA = Family(
    title="DeBERTa",
    config_class=DebertaConfig,
    model_class=DebertaForMaskedLM,
    word_head=lambda model, hidden: model.lm_predictions.lm_head(hidden, model.get_input_embeddings().weight),
    output_bias=lambda model: model.lm_predictions.lm_head.bias,
    backbone=DebertaBackbone,
    attention=("bidirectional", "causal", "prefix", "permuted"),
    examples={
        "fill-mask": f'deberta fill --model FOLDER "{PROMPT} [MASK]."',
        "text-generation": f'deberta generate --model FOLDER "{PROMPT}"',
        **DETECT,
    },
    make_detector=_deberta_detector,
    extra_fields=LAYOUT,
    make_config=_deberta_config,
    count_positions=_table_of_positions,
    scales=True,
    continues=True,
)
DEBERTA_D = Family(
    title="DeBERTa-D",
    config_class=DebertaSeq2SeqConfig,
    model_class=DebertaForSeq2SeqLM,
    word_head=DEBERTA.word_head,
    output_bias=DEBERTA.output_bias,
    backbone=Seq2SeqBackbone,
    attention=("encoder-decoder",),
    examples={"text-generation": f'deberta generate --model FOLDER "{PROMPT} [MASK]."'},
    extra_fields=DEBERTA.fields | {"decoder_layers": int},  # the fields of its encoder
    derived_fields=tuple(DebertaSeq2SeqConfig.__annotations__),
    make_config=_seq2seq_config,
)

# ------------------------------------------------------------------------------------------------------- stock

BERT = Family(
    title="BERT",
    config_class=BertConfig,
    model_class=BertForMaskedLM,
    word_head=lambda model, hidden: model.cls.predictions(hidden),
    backbone=StockBackbone,
    examples=FILL,
    pair_class=BertForPreTraining,
    pair_head=lambda model, first: model.cls.seq_relationship(model.bert.pooler(first[:, None])),
    continues=True,
)
ROBERTA = Family(
    title="RoBERTa",
    config_class=RobertaConfig,
    model_class=RobertaForMaskedLM,
    word_head=lambda model, hidden: model.lm_head(hidden),
    backbone=StockBackbone,
    examples=FILL,
    # positions start after the row of the padding token
    count_positions=lambda config: config.max_position_embeddings - config.pad_token_id - 1,
    uses_token_types=False,
    continues=True,
)

Shared = Literal["all", "attention", "ffn", "none"]
"""The part that ALBERT's layers share."""


def _albert_config(fields: ModelFields, tokenizer: Tokenizer) -> AlbertConfig:
    shared = fields.get("share", "all")
    if shared not in get_args(Shared):
        raise ValueError(f"model.share={shared!r}: choose from {', '.join(get_args(Shared))}")
    config = _stock_config(AlbertConfig, {name: value for name, value in fields.items() if name != "share"}, tokenizer)
    config.num_hidden_groups = 1 if shared == "all" else config.num_hidden_layers
    return config


def _share_layers(model: PreTrainedModel, fields: ModelFields) -> None:
    """Share only the attention, or only the feed-forward modules, between ALBERT's layers.

    Stock ALBERT shares all layers of a group. Here each layer is its own group, and the shared half is the same module
    in every group. The file contains one copy per group, so stock transformers computes the same output.
    """
    parts = {"attention": ["attention"], "ffn": ["ffn", "ffn_output", "full_layer_layer_norm"]}
    layers = [group.albert_layers[0] for group in model.albert.encoder.albert_layer_groups]
    for layer in layers[1:]:
        for name in parts.get(str(fields.get("share", "all")), []):
            setattr(layer, name, getattr(layers[0], name))


ALBERT = Family(
    title="ALBERT",
    config_class=AlbertConfig,
    model_class=AlbertForMaskedLM,
    word_head=lambda model, hidden: model.predictions(hidden),
    backbone=StockBackbone,
    examples=FILL,
    pair_class=AlbertForPreTraining,
    pair_head=lambda model, first: model.sop_classifier(model.albert.pooler_activation(model.albert.pooler(first))),
    extra_fields={"share": Shared},
    derived_fields=("num_hidden_groups", "inner_group_num"),
    make_config=_albert_config,
    finish_model=_share_layers,
    continues=True,
)
XLNET = Family(
    title="XLNet",
    config_class=XLNetConfig,
    model_class=XLNetLMHeadModel,
    word_head=lambda model, hidden: model.lm_loss(hidden),
    backbone=XLNetBackbone,
    attention=("permuted",),
    examples={"text-generation": 'transformers.XLNetLMHeadModel.from_pretrained("FOLDER")'},
    count_positions=lambda config: None,  # computed, not looked up in a table
)
ELECTRA = Family(
    title="ELECTRA",
    config_class=ElectraConfig,
    model_class=ElectraForMaskedLM,
    word_head=lambda model, hidden: model.generator_lm_head(model.generator_predictions(hidden)),
    backbone=StockBackbone,
    examples={**FILL, **DETECT},
    make_detector=lambda config: ElectraForPreTraining(config),
    detection_head=lambda model, hidden: model.discriminator_predictions(hidden),
    continues=True,
)
GPT2 = Family(
    title="GPT-2",
    config_class=GPT2Config,
    model_class=GPT2LMHeadModel,
    word_head=lambda model, hidden: model.lm_head(hidden),
    backbone=StockBackbone,
    attention=("causal",),
    examples={"text-generation": f'transformers.pipeline("text-generation", "FOLDER")("{PROMPT}")'},
    uses_token_types=False,
)

FAMILIES: dict[str, Family] = {
    "deberta": DEBERTA,
    "deberta-d": DEBERTA_D,
    "bert": BERT,
    "roberta": ROBERTA,
    "albert": ALBERT,
    "xlnet": XLNET,
    "electra": ELECTRA,
    "gpt2": GPT2,
}

# ------------------------------------------------------------------------------------------------------- using a record


def find_family(name: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"family={name!r}: choose from {', '.join(FAMILIES)}")
    return FAMILIES[name]


def family_of(model: PreTrainedModel) -> Family:
    return next(family for family in FAMILIES.values() if isinstance(model.config, family.config_class))


def make_backbone(model: PreTrainedModel) -> Backbone:
    family = family_of(model)
    return family.backbone(model, family)


def make_family_config(family: Family, fields: ModelFields, tokenizer: Tokenizer) -> PreTrainedConfig:
    if family.make_config is not None:
        return family.make_config(fields, tokenizer)
    return _stock_config(family.config_class, fields, tokenizer)


def _stock_config(kind: type[PreTrainedConfig], fields: ModelFields, tokenizer: Tokenizer) -> PreTrainedConfig:
    if fields["pad_token_id"] is None:
        raise ValueError(f"{kind.__name__}: the model runs on padded batches, so the tokenizer needs a pad token")
    return kind(**{"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, **fields})


def fit_tokenizer(tokenizer: Tokenizer, model: PreTrainedModel) -> Tokenizer:
    """Return the tokenizer to save with this model: without token_type_ids if the model does not use them."""
    family = family_of(model)
    if family.uses_token_types or count_segments(model.config) > 1:
        return tokenizer
    fitted = copy.copy(tokenizer)
    fitted.model_input_names = ["input_ids", "attention_mask"]
    return fitted
