"""Model config: all fields of the encoder and its heads, and presets for the released models.

A saved config is an ordinary ``deberta`` (v1) or ``deberta-v2`` (v2, v3) config.json. The constructor's defaults
describe deberta-v3-base. A field that is missing from a config.json gets the default of transformers instead
(``ABSENT``). The constructor raises on unknown and contradictory fields. Unknown fields in a file are kept, because
other software may have written them.
"""

import difflib
import json
import logging
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from debertakit.attention.positions import TERMS, RelativePositions

MODEL_TYPES = ("deberta", "deberta-v2")
LARGEST, MOST_PARAMETERS = 2**24, 10**11
"""A larger size, or more parameters, is a mistake in a config.json. It is reported instead of allocated."""
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "attention_head_size",
    "intermediate_size",
    "embedding_size",
    "max_position_embeddings",
    "pooler_hidden_size",
    "conv_groups",
)
EMD_INFORMATION = ("positions", "embeddings", "none")
Fields = dict[str, Any]
"""Content of a config.json, or part of it."""
logger = logging.getLogger(__name__)

# Defaults for fields that are missing from a config.json.
ABSENT: Fields = {
    "relative_attention": False,
    "max_relative_positions": -1,
    "position_buckets": -1,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "position_biased_input": True,
    "pos_att_type": (),
    "emd_steps": -1,
}

# Ignored fields, written by older transformers, by Microsoft's trainer or for generation.
RETIRED = frozenset(
    "use_cache torchscript use_bfloat16 pruned_heads tie_encoder_decoder cross_attention_hidden_size "
    "add_cross_attention is_decoder task_specific_params finetuning_task tokenizer_class prefix sep_token_id "
    "decoder_start_token_id tf_legacy_loss gradient_checkpointing summary_type summary_activation "
    "summary_first_dropout summary_last_dropout summary_use_proj "
    "sentence_transformers sbert_ce_default_activation_function".split()
)


class DebertaConfig(PreTrainedConfig):
    """Config of all DeBERTa models. ``model_type`` selects the checkpoint layout."""

    model_type = "deberta-v2"  # "deberta" on v1 instances: fused projections without key bias

    vocab_size: int = 128100
    """Rows of the word embeddings. In the released v2/v3 models, 100 more than the tokenizer has pieces."""
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    attention_head_size: int = 0
    """Width of a head. 0: hidden_size / num_attention_heads, as in all released models."""
    intermediate_size: int = 3072
    embedding_size: int = 0
    """Width of the word embeddings. If it differs from hidden_size, a bias-free projection follows. 0: hidden_size."""
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    """Rows of the absolute position table, and the default of ``max_relative_positions``."""
    type_vocab_size: int = 0
    """Number of segment embeddings. 0 in all released models."""
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-7

    relative_attention: bool = True
    """False: plain content attention, which gives a BERT if position_biased_input is on."""
    pos_att_type: Sequence[str] = ("c2p", "p2c")
    """Position terms of the attention. All released models use c2p and p2c; none uses p2p (paper eq. 2)."""
    max_relative_positions: int = -1
    """Without buckets, half the rows of the relative table (v1). With buckets, the distance at which they end.
    -1: max_position_embeddings."""
    position_buckets: int = 256
    """Number of log buckets (v2, v3: 256). -1: every distance has its own row (v1)."""
    share_att_key: bool = True
    """Project positions with the content projections (v2, v3) instead of separate ones (v1)."""
    norm_rel_ebd: str = "layer_norm"
    """LayerNorm over the relative table: 'layer_norm' (v2, v3) or 'none' (v1)."""
    position_biased_input: bool = False
    """Add absolute positions to the input, as BERT does. Off in all released models."""
    conv_kernel_size: int = 0
    """Kernel size of the convolution parallel to the first layer: 3 in v2-xlarge and v2-xxlarge, 0 (none) elsewhere."""
    conv_act: str = "tanh"
    """Activation of the convolution. 'gelu' in the released models."""
    conv_groups: int = 1

    emd_steps: int = 2
    """Passes of the Enhanced Mask Decoder (n in the paper). 0: the LM head reads the last layer. -1: the loader decides
    from the weights, because only debertakit saves this field."""
    emd_information: str = "positions"
    """What the mask decoder adds to its first queries: 'positions' (absolute positions, as in all released models),
    'embeddings' (the encoder's input) or 'none'. Saved by debertakit only."""
    share_emd_layers: bool = True
    """Every pass of the mask decoder uses the last encoder layer, as in all released models. False: every pass after
    the first has its own layer. Saved by debertakit only."""
    causal_emd: bool = False
    """Use the mask decoder, with absolute positions, for autoregressive rows too. Saved by debertakit only."""

    clamp_distances: bool = True
    """Clamp distances past max_position_embeddings before bucketing, as Microsoft does. False: transformers' rule, for
    models that were trained on longer texts with transformers. Saved by debertakit only."""
    sparse_prediction: bool = False
    """In training, compute masked-LM logits of labelled tokens only (ModernBERT's name). Saved by debertakit only."""

    pooler_hidden_size: int = 0
    """Width of the pooler. 0: hidden_size."""
    pooler_dropout: float = 0.0
    pooler_hidden_act: str = "gelu"
    cls_dropout: float | None = None
    """Dropout before the classifier. None: hidden_dropout_prob (question answering: no dropout, as in transformers)."""

    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    mask_token_id: int | None = None
    tie_word_embeddings: bool = True
    legacy: bool = False
    """Read by transformers only. False: load the language-model head under Microsoft's names."""

    def __post_init__(self, **kwargs: Any) -> None:
        model_type = kwargs.pop("model_type", self.model_type)
        if model_type not in MODEL_TYPES:
            raise ValueError(
                f"this is a config of another architecture ({model_type!r}); "
                f"debertakit reads {' and '.join(MODEL_TYPES)}"
            )
        if "padding_idx" in kwargs:  # Microsoft's name
            self.pad_token_id = kwargs.pop("padding_idx")
        kwargs = {key: value for key, value in kwargs.items() if key not in RETIRED and not key.startswith("_")}
        known = self._known_fields()
        for key in kwargs:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                raise ValueError(f"unknown config field {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        for field in fields(DebertaConfig):
            if field.name in DebertaConfig.__annotations__ and field.type in (int, "int"):
                value = getattr(self, field.name)
                if isinstance(value, bool) or not isinstance(value, int):
                    raise ValueError(f"{field.name}={value!r}: must be an integer")
                if abs(value) > LARGEST:
                    raise ValueError(f"{field.name}={value}: must be at most {LARGEST:,}")
            if field.name in DebertaConfig.__annotations__ and field.type in (bool, "bool"):
                value = getattr(self, field.name)
                if not isinstance(value, bool):
                    raise ValueError(f"{field.name}={value!r}: must be true or false")
        if isinstance(self.pos_att_type, str):
            self.pos_att_type = [term.strip().lower() for term in self.pos_att_type.split("|") if term.strip()]
        self.pos_att_type = [term for term in self.pos_att_type or [] if term != "none"]
        self.attention_head_size = self.attention_head_size or self.hidden_size // max(self.num_attention_heads, 1)
        self.embedding_size = self.embedding_size or self.hidden_size
        self.pooler_hidden_size = self.pooler_hidden_size or self.hidden_size
        self.legacy = False
        super().__post_init__(**kwargs)
        self.model_type = model_type
        self._check()

    @classmethod
    def _known_fields(cls) -> set[str]:
        from transformers import GenerationConfig

        names = {field.name for field in fields(cls)}
        names |= {"num_labels", "torch_dtype", "name_or_path", "output_attentions", "attn_implementation"}
        names |= {"experts_implementation", "per_layer_config", "quantization_config"}
        return names | set(GenerationConfig().to_dict())

    def _check(self) -> None:
        def refuse(what: str) -> None:
            raise ValueError(f"contradictory config: {what}")

        if self.hidden_size != self.num_attention_heads * self.attention_head_size and self.model_type == "deberta":
            refuse(
                f"hidden_size={self.hidden_size} is not num_attention_heads={self.num_attention_heads} heads of "
                f"{self.attention_head_size}, as v1 needs"
            )
        if self.attention_head_size * self.num_attention_heads < 1 or (
            self.attention_head_size == self.hidden_size // self.num_attention_heads
            and self.hidden_size % self.num_attention_heads
        ):
            refuse(
                f"hidden_size={self.hidden_size} does not divide into num_attention_heads={self.num_attention_heads}"
            )
        for name in SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be >= 1")
        for name in ("num_hidden_layers", "type_vocab_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be >= 0")
        if self.approximate_size > MOST_PARAMETERS:
            refuse(f"these sizes give a model of {self.approximate_size:.0e} parameters")
        unknown = [term for term in self.pos_att_type if term not in TERMS]
        if unknown:
            raise ValueError(f"unknown pos_att_type {unknown[0]!r}; choose from {', '.join(TERMS)}")
        if self.norm_rel_ebd not in ("layer_norm", "none"):
            raise ValueError(f"unknown norm_rel_ebd {self.norm_rel_ebd!r}; choose from layer_norm, none")
        if self.pos_att_type and not self.relative_attention:
            refuse(f"pos_att_type={'|'.join(self.pos_att_type)} needs relative_attention")
        if self.norm_rel_ebd != "none" and not self.relative_attention:
            refuse(f"norm_rel_ebd={self.norm_rel_ebd} needs relative_attention")
        if self.conv_kernel_size > 0 and self.conv_kernel_size % 2 == 0:
            refuse(f"conv_kernel_size={self.conv_kernel_size} must be odd to keep the length")
        if self.emd_information not in EMD_INFORMATION:
            choices = ", ".join(EMD_INFORMATION)
            raise ValueError(f"unknown emd_information {self.emd_information!r}; choose from {choices}")
        if self.decodes_positions and self.position_biased_input:
            refuse("emd_steps adds absolute positions at the end, position_biased_input at the start; choose one")
        if self.causal_emd and not self.share_emd_layers:
            refuse("causal_emd caches the keys of the last layer only, so it needs share_emd_layers")
        if self.causal_emd and self.emd_steps == 0:
            refuse("causal_emd needs the mask decoder, but emd_steps=0 turns it off")
        if self.model_type == "deberta":
            for field, v1 in (("share_att_key", False), ("norm_rel_ebd", "none"), ("conv_kernel_size", 0)):
                if getattr(self, field) != v1:
                    refuse(f"{field}={getattr(self, field)!r} does not exist in v1 (model_type 'deberta')")
            if self.position_buckets > 0:
                refuse(f"position_buckets={self.position_buckets} does not exist in v1 (model_type 'deberta')")
        if self.relative_attention:
            _ = self.relative_positions  # raises on an unusable table

    @property
    def relative_positions(self) -> RelativePositions:
        """The rule that maps distances to rows of the relative table."""
        longest = self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings
        if self.position_buckets > 0:
            return RelativePositions(self.position_buckets, self.position_buckets, longest, self.clamp_distances)
        return RelativePositions(longest)

    @property
    def decodes_positions(self) -> bool:
        """Whether the mask decoder reads the absolute position table."""
        return self.emd_steps > 0 and self.emd_information == "positions"

    @property
    def own_emd_layers(self) -> int:
        """Number of layers that only the mask decoder uses."""
        return 0 if self.share_emd_layers else max(self.emd_steps - 1, 0)

    @property
    def approximate_size(self) -> int:
        """Number of parameters of the large tables and matrices. Computed before they are allocated."""
        attention, hidden = self.num_attention_heads * self.attention_head_size, self.hidden_size
        tables = (self.vocab_size + self.type_vocab_size) * self.embedding_size
        positions = self.max_position_embeddings + 2 * max(self.max_relative_positions, self.position_buckets, 0)
        layer = hidden * (4 * attention + 2 * self.intermediate_size)
        convolution = max(self.conv_kernel_size, 0) * hidden * hidden
        pooler = hidden * self.pooler_hidden_size
        layers = self.num_hidden_layers + self.own_emd_layers
        return tables + positions * hidden + layers * layer + convolution + pooler

    @property
    def attention_scale(self) -> float:
        """1 / sqrt(head size * number of score terms)."""
        return (self.attention_head_size * (1 + len(self.pos_att_type))) ** -0.5

    @classmethod
    def from_dict(cls, config_dict: Fields, **kwargs: object) -> "DebertaConfig":
        """Build the config from the content of a config.json.

        Unknown fields are kept and saved again, as in transformers. Only the constructor rejects them.
        """
        known = {*cls._known_fields(), "model_type", "padding_idx"}
        foreign = {key: value for key, value in config_dict.items() if key not in known and not key.startswith("_")}
        config_dict = {key: value for key, value in config_dict.items() if key not in foreign}
        absent = {key: value for key, value in ABSENT.items() if key not in config_dict and key not in kwargs}
        overrides = {key: kwargs.pop(key) for key in list(kwargs) if key in {field.name for field in fields(cls)}}
        loaded = super().from_dict({**absent, **config_dict, **overrides}, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for key, value in foreign.items():
            if not hasattr(cls, key):  # do not overwrite a property or method of the class
                setattr(config, key, value)
        return loaded

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: object) -> "DebertaConfig":
        """Load the config of a folder, a config.json or a hub model."""
        path = Path(pretrained_model_name_or_path)
        file = path / "config.json" if path.is_dir() else path
        if not file.is_file():
            if path.is_dir() or file.suffix:
                raise ValueError(f"no config at {file}")
            content, kwargs = _from_hub(cls, str(pretrained_model_name_or_path), kwargs)
            return cls.from_dict(content, **kwargs)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{file} is not a JSON config: {error}") from None
        if not isinstance(content, dict):
            raise ValueError(f"{file} is not a JSON config: it holds a {type(content).__name__}")
        return cls.from_dict(content, **kwargs)

    def to_dict(self) -> Fields:
        output = super().to_dict()
        output["model_type"] = self.model_type
        # Stock transformers, and servers that read this field, call the v2 classes DebertaV2*.
        if self.model_type == "deberta-v2" and self.architectures:
            output["architectures"] = [_stock_name(name) for name in self.architectures]
        return output


def _stock_name(architecture: str) -> str:
    return architecture if architecture.startswith("DebertaV2") else architecture.replace("Deberta", "DebertaV2", 1)


def _from_hub(cls: type[DebertaConfig], name: str, kwargs: Fields) -> tuple[Fields, Fields]:
    try:
        return cls.get_config_dict(name, **kwargs)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{name!r} is not a folder, and no hub model with this name was found: {reason}") from None


_V1 = {
    "model_type": "deberta",
    "vocab_size": 50265,
    "position_buckets": -1,
    "share_att_key": False,
    "norm_rel_ebd": "none",
}
_CONV = {"conv_kernel_size": 3, "conv_act": "gelu"}


def _shape(layers: int, hidden: int) -> dict[str, int]:
    """All released models have heads of width 64 and a feed-forward layer four times as wide as the hidden size."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }


PRESETS: dict[str, Fields] = {
    "deberta-base": {**_shape(12, 768), **_V1},
    "deberta-large": {**_shape(24, 1024), **_V1},
    "deberta-xlarge": {**_shape(48, 1024), **_V1},
    "deberta-v2-xlarge": {**_shape(24, 1536), **_CONV},
    "deberta-v2-xxlarge": {**_shape(48, 1536), **_CONV},
    "deberta-v3-xsmall": _shape(12, 384),
    "deberta-v3-small": _shape(6, 768),
    "deberta-v3-base": _shape(12, 768),
    "deberta-v3-large": _shape(24, 1024),
    "mdeberta-v3-base": {**_shape(12, 768), "vocab_size": 251000},
}


def preset(name: str, **overrides: object) -> DebertaConfig:
    """Return the config of a released model, with fields overridden by ``overrides``."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose from {', '.join(PRESETS)}")
    return DebertaConfig(**{**PRESETS[name], **overrides})
