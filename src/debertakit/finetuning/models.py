"""Load pretrained encoders with the head for a kind of task.

DeBERTa models use our classes, other encoders those of transformers. Weights are always loaded as fp32.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from debertakit.config import MODEL_TYPES, DebertaConfig
from debertakit.finetuning.examples import Kind
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig, is_seq2seq
from debertakit.text.tokenizers import load_tokenizer

HEADS: dict[Kind, str] = {
    "single-label": "SequenceClassification",
    "multi-label": "SequenceClassification",
    "regression": "SequenceClassification",
    "tagging": "TokenClassification",
    "qa": "QuestionAnswering",
    "choice": "MultipleChoice",
}
PROBLEMS: dict[Kind, str] = {
    "single-label": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
}
DROPOUTS = ("cls_dropout", "classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout")
"""Config fields for the dropout before the classifier: ours, BERT's, ALBERT's, DistilBERT's. XLNet has none."""
LAYER = re.compile(r"(?:^|\.)layers?\.(\d+)\.")


def load_config(path: str | Path) -> Any:
    """Load a config. For a DeBERTa-D, return the config of its encoder."""
    from transformers import AutoConfig

    folder = Path(path)
    if folder.exists() and not (folder / "config.json").is_file():
        raise ValueError(f"{path} is not a model: no config.json in it")
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no model folder, and no hub model within reach: {_first_line(error)}") from None
    if isinstance(config, DebertaSeq2SeqConfig):
        return config.encoder
    return DebertaConfig.from_pretrained(path) if config.model_type in MODEL_TYPES else config


def labels_of(config: Any) -> tuple[str, ...]:
    """Labels in logit order."""
    return tuple(config.id2label[i] for i in range(config.num_labels))


def load_tokenizer_of(path: str | Path) -> Any:
    """Load our tokenizer for DeBERTa (text/tokenizers.py explains why), else the one from transformers."""
    if load_config(path).model_type in MODEL_TYPES:
        return load_tokenizer(path)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds no tokenizer: {_first_line(error)}") from None


def load_model(
    path: str | Path,
    kind: Kind,
    labels: tuple[str, ...] = (),
    cls_dropout: float | None = None,
    *,
    whole: bool = False,
) -> Any:
    """Load a model from a folder or hub name with a head for ``kind``, new unless the checkpoint has one that fits.

    ``whole``: raise if the checkpoint lacks any weight.
    """
    config = load_config(path)
    ours = config.model_type in MODEL_TYPES
    fields: dict[str, Any] = {}
    if kind == "regression":
        fields["num_labels"] = 1
    elif labels:
        fields["id2label"] = dict(enumerate(labels))
        fields["label2id"] = {label: index for index, label in enumerate(labels)}
    if kind in PROBLEMS:
        fields["problem_type"] = PROBLEMS[kind]
    dropout = next((name for name in DROPOUTS if hasattr(config, name)), None)
    if cls_dropout is not None and dropout is not None:
        fields[dropout] = cls_dropout
    if ours:
        from debertakit import heads

        cls = getattr(heads, f"DebertaFor{HEADS[kind]}")
        if is_seq2seq(path):
            if whole:
                raise ValueError(f"{path} has no trained head of this shape: it is a DeBERTa-D")
            return _encoder_of(path, cls, config, fields)
    else:
        import transformers

        cls = getattr(transformers, f"AutoModelFor{HEADS[kind]}")
    model, info = cls.from_pretrained(
        path, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True, **fields
    )
    missing = sorted(name for name in info["missing_keys"] if LAYER.search(name))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} weights of the encoder, for example {missing[0]}")
    lacking = sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
    if whole and lacking:
        raise ValueError(f"{path} has no trained head of this shape: {lacking[0]} is missing or of another size")
    return model


def _encoder_of(path: str | Path, cls: type, config: DebertaConfig, fields: dict[str, Any]) -> Any:
    """Load the encoder of a DeBERTa-D with a new head."""
    whole = DebertaForSeq2SeqLM.from_pretrained(path, dtype=torch.float32)
    model = cls(DebertaConfig.from_dict(config.to_dict(), **fields))
    model.deberta.load_state_dict(whole.encoder.state_dict())
    return model


def longest_input(model: Any, tokenizer: Any) -> tuple[int, bool]:
    """Maximum number of input tokens, and whether longer inputs are impossible (absolute positions)."""
    config = model.config
    longest = tokenizer.model_max_length
    positions = getattr(config, "max_position_embeddings", None) or -1
    if positions > 0:
        longest = min(longest, positions)
    elif longest > 10**6:  # XLNet has no limit, and its tokenizer reports a huge number
        longest = 512
    if config.model_type in MODEL_TYPES:
        return longest, config.position_biased_input
    for name, table in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding):
            # RoBERTa and similar models start positions after the padding index.
            taken = 0 if table.padding_idx is None else table.padding_idx + 1
            return min(longest, table.num_embeddings - taken), True
    return longest, False


def head_names(model: Any) -> list[str]:
    """Names of the top-level modules outside the encoder that have weights."""
    encoder = model.base_model_prefix
    return [name for name, child in model.named_children() if name != encoder and any(True for _ in child.parameters())]


def freeze_encoder(model: Any) -> None:
    """Train only the head."""
    model.base_model.requires_grad_(False)


def add_lora(model: Any, rank: int) -> Any:
    """Add LoRA (alpha = 2 r) to peft's default layers for this model, else all linear layers. The head trains fully."""
    try:
        from peft import LoraConfig, get_peft_model
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN
    except ImportError:
        raise ImportError("--lora needs a package: pip install peft") from None
    known = KNOWN.get(model.config.model_type)
    targets = "all-linear" if known is None else list(known)
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=targets, modules_to_save=head_names(model)
    )
    return get_peft_model(model, config)


def parameter_groups(model: nn.Module, decayed: set[str], lr: float, weight_decay: float, layer_decay: float) -> list:
    """AdamW groups. Depth d of D (embeddings 0, layer i: i + 1, head D) has rate lr * layer_decay ** (D - d)."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    top = 2 + max((int(match[1]) for name in names if (match := LAYER.search(name))), default=-1)
    encoder = tuple(f"{prefix}{model.base_model_prefix}." for prefix in ("", "base_model.model."))  # peft's prefix

    def depth(name: str) -> int:
        match = LAYER.search(name)
        if match:
            return int(match[1]) + 1
        return 0 if name.startswith(encoder) and "pooler" not in name else top

    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((depth(name), name in decayed), []).append(parameter)
    return [
        {"params": params, "lr": lr * layer_decay ** (top - level), "weight_decay": weight_decay if decays else 0.0}
        for (level, decays), params in sorted(groups.items(), key=lambda entry: entry[0])
    ]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
