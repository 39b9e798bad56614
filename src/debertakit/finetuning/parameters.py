"""Which parameters train, and at which rate: LoRA, a frozen encoder, layer-wise learning rates."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from debertakit.loading import LAYER


def head_names(model: PreTrainedModel) -> list[str]:
    """Names of the top-level modules outside the encoder that have weights."""
    encoder = model.base_model_prefix
    return [name for name, child in model.named_children() if name != encoder and any(True for _ in child.parameters())]


def freeze_encoder(model: PreTrainedModel) -> None:
    """Train only the head."""
    model.base_model.requires_grad_(False)


def add_lora(model: PreTrainedModel, rank: int) -> Any:
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


def parameter_groups(
    model: PreTrainedModel, decayed: set[str], lr: float, weight_decay: float, layer_decay: float
) -> list[dict[str, object]]:
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
