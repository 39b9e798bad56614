"""Load and convert checkpoints of transformers and Microsoft, including the tensors that transformers drops on load.

A checkpoint is a folder or hub name with a config.json and one of WEIGHT_FILES. Loading only renames tensors
(``to_ours``). Saving needs no conversion, because our parameter names are those of Microsoft and transformers.

Tensors of official files beyond the encoder, all kept here:
    deberta.embeddings.position_embeddings    absolute positions of the Enhanced Mask Decoder
    deberta.mask_decoder.*                    its own layers, if it has any (share_emd_layers is false; ours only)
    lm_predictions.lm_head.*                  language-model head
    mask_predictions.*                        replaced-token head (v3)
    *._weight                                 GDES residual of a discriminator (see ``merge_gdes``)
"""

import json
import logging
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.modules.module import _IncompatibleKeys
from transformers import PreTrainedModel

from debertakit.config import DebertaConfig
from debertakit.files import replacing

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
INDEX = ".index.json"
GENERATOR_FILES = ("generator.safetensors", "pytorch_model.generator.bin")

State = dict[str, Tensor]
Model = TypeVar("Model", bound=PreTrainedModel)
logger = logging.getLogger(__name__)

# Applied in this order. Each rule renames the tensors of one generation of checkpoints.
RENAMES = (
    (r"^module\.", ""),
    (r"^bert\.", "deberta."),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"^cls\.predictions\.transform\.", "lm_predictions.lm_head."),
    (r"^cls\.predictions\.(decoder\.)?bias$", "lm_predictions.lm_head.bias"),
)
ENCODER_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")
OWN_DECODER_LAYER = re.compile(r"(^|\.)mask_decoder\.\d+\.")
# Dropped keys: copies of tensors, buffers, and GDES residuals.
DROPPED = re.compile(r"(^cls\.predictions\.decoder\.weight|position_ids|\._weight)$")


HUB = ("revision", "subfolder", "cache_dir", "token", "local_files_only", "force_download", "proxies")


def weights_file(name: str | Path, generator: bool = False, **hub: object) -> Path:
    """Find the weights file of a folder, a file or a hub model. ``hub`` takes the keywords in HUB."""
    path = Path(name)
    if path.is_file():
        return path
    candidates = GENERATOR_FILES if generator else WEIGHT_FILES
    if path.is_dir():
        for file in candidates:
            if (path / file).is_file():
                return path / file
        raise ValueError(f"{path} holds no weights; one of {', '.join(candidates)} was expected")
    for file in candidates:
        found = hub_file(str(name), file, **hub)
        if found is not None:
            for shard in shards_of(found) if file.endswith(INDEX) else ():
                if hub_file(str(name), shard, **hub) is None:
                    raise ValueError(f"{name}: {file} names {shard}, which the hub did not provide")
            return found
    raise ValueError(
        f"{str(name)!r} is not a folder, and no hub model with this name and one of {', '.join(candidates)} was found"
    )


def hub_file(name: str, file: str, **hub: object) -> Path | None:
    """Download one file of a hub model, or find it in the cache. None if there is no such model or file."""
    from transformers.utils import cached_file

    try:
        found = cached_file(name, file, _raise_exceptions_for_missing_entries=False, **hub)
    except OSError:
        return None
    return None if found is None else Path(found)


def read_state(file: Path) -> State:
    """Read all tensors of a weights file, unchanged. Pickles are read with ``weights_only``."""
    try:
        if file.name.endswith(INDEX):
            return {key: value for shard in shards_of(file) for key, value in read_state(file.parent / shard).items()}
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"no weights at {file}") from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle can raise almost anything
        raise ValueError(f"{file} is damaged or not a weights file: {_first_line(error)}") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{file} is not a state dict: it holds a {type(state).__name__}")
    return state


def shards_of(index: Path) -> list[str]:
    """Names of the weights files in an index file. They must be in the same folder."""
    content = json.loads(index.read_text(encoding="utf-8"))
    shards = content.get("weight_map") if isinstance(content, dict) else None
    names = list(shards.values()) if isinstance(shards, dict) else []
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise ValueError(f"{index} has no weight_map from tensors to file names")
    if any(name.endswith(INDEX) for name in names):
        raise ValueError(f"{index} names another index")
    return sorted(set(names))


def _check_size(config: DebertaConfig, state: State, file: Path) -> None:
    """Raise if the config describes a much larger model than the weights, before the model is allocated."""
    held = sum(tensor.numel() for tensor in state.values())
    if config.approximate_size > 4 * held + 10**8:
        raise ValueError(
            f"{file} holds {held:.0e} parameters, but config.json describes a model of {config.approximate_size:.0e}"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def rename(state: State) -> State:
    """Rename all tensors to our names."""
    renamed = {}
    for key, value in state.items():
        for pattern, name in RENAMES:
            key = re.sub(pattern, name, key)
        renamed[key] = value
    return renamed


def to_ours(state: State) -> State:
    """Rename all tensors and remove the DROPPED keys."""
    ours = {key: value for key, value in rename(state).items() if not DROPPED.search(key)}
    for key in state:
        table = key.removesuffix("._weight")
        if table != key and f"{table}.weight" not in state:
            raise ValueError(
                f"{key} is a GDES residual whose table is in the generator's file; merge them with "
                "debertakit.checkpoints.merge_gdes(discriminator, generator)"
            )
    return ours


def complete_config(config: DebertaConfig, state: State, asked: Collection[str] = ()) -> DebertaConfig:
    """Correct the config from the weights: number of layers (unless in ``asked``), v1 or v2 layout, mask decoder."""
    keys = state.keys()
    layers = {int(match[1]) for key in keys if (match := ENCODER_LAYER.search(key))}
    if not layers:
        raise ValueError("these weights hold no DeBERTa encoder (no key with encoder.layer.0)")
    lost = set(range(max(layers) + 1)) - layers
    if lost:
        raise ValueError(f"these weights have {len(layers)} layers, but layer {min(lost)} is missing")
    changes: dict[str, object] = {}
    if len(layers) != config.num_hidden_layers and "num_hidden_layers" not in asked:
        changes["num_hidden_layers"] = len(layers)
    fused = any(key.endswith("attention.self.in_proj.weight") for key in keys)
    if fused != (config.model_type == "deberta"):
        changes["model_type"] = "deberta" if fused else "deberta-v2"
    positions = any(key.endswith("embeddings.position_embeddings.weight") for key in keys)
    if config.emd_steps < 0:
        changes["emd_steps"] = 2 if positions and not config.position_biased_input else 0
    elif (config.decodes_positions and not positions) or (
        config.own_emd_layers and not any(OWN_DECODER_LAYER.search(key) for key in keys)
    ):  # stock transformers drops the table and the layers but keeps the fields
        part = "layers" if positions or not config.decodes_positions else "absolute positions"
        logger.warning("the weights hold no %s for the mask decoder; loading without it", part)
        changes["emd_steps"] = 0
    return DebertaConfig.from_dict({**config.to_dict(), **changes}) if changes else config


def convert(source: Path, out: Path, generator: bool = False) -> list[str]:
    """Write a checkpoint as config.json and model.safetensors, with all its tensors. Returns the tensor names."""
    file = weights_file(source, generator)
    raw = read_state(file)
    config = complete_config(DebertaConfig.from_pretrained(file.parent), to_ours(raw))
    residuals = {key: value for key, value in raw.items() if key.endswith("._weight")}
    state = {key: value.contiguous() for key, value in {**to_ours(raw), **rename(residuals)}.items()}
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / "model.safetensors") as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
        config.save_pretrained(out)
    return list(state)


def merge_gdes(discriminator: State, generator: State) -> State:
    """Merge tables trained with gradient-disentangled embedding sharing: generator table plus residual."""
    merged = dict(discriminator)
    for key, residual in discriminator.items():
        table = key.removesuffix("._weight")
        if table != key:
            if f"{table}.weight" not in generator:
                raise ValueError(f"{key} is a GDES residual, and the generator has no {table}.weight to add it to")
            merged[f"{table}.weight"] = generator[f"{table}.weight"].to(residual.dtype) + residual
    return merged


def load_whole(cls: type[Model], name: str | Path, **kwargs: object) -> Model:
    """Load a model for inference. Raises if any weight is missing, instead of using random weights."""
    model, info = cls.from_pretrained(name, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs)
    lacking = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    if lacking:
        raise ValueError(
            f"{name}: {len(lacking)} weights of {cls.__name__} are missing or have another size, "
            f"for example {lacking[0]}"
        )
    return model.eval()


class PretrainedLoading:
    """Mixin that adds all checkpoint layouts to ``from_pretrained`` of transformers."""

    @classmethod
    def from_pretrained(
        cls: type[Model],
        pretrained_model_name_or_path: str | Path | None,
        *args: object,
        config: DebertaConfig | None = None,
        generator: bool = False,
        dtype: torch.dtype | str = torch.float32,
        **kwargs: Any,
    ) -> Model:
        """Load a folder, a weights file or a hub model.

        ``generator`` loads the generator that v3 was trained with. Half-precision files load as fp32 by default;
        ``dtype`` (or ``torch_dtype``) changes this ("auto": as stored). Keywords may override config fields
        (num_labels=3).
        """
        dtype = kwargs.pop("torch_dtype", None) or dtype  # the old name, still in common use
        own = {key for key in kwargs if key in DebertaConfig._known_fields()} - {"attn_implementation"}
        overrides = {key: kwargs.pop(key) for key in own}
        name = pretrained_model_name_or_path
        if name is None:  # transformers makes this call internally, with a state dict
            return super().from_pretrained(None, *args, config=config, dtype=dtype, **kwargs)  # type: ignore[misc]
        hub = {key: kwargs.pop(key) for key in HUB if key in kwargs}
        file = weights_file(name, generator, **hub)
        if config is None:
            here = Path(name).exists()
            config = DebertaConfig.from_pretrained(file.parent if here else name, **overrides, **({} if here else hub))
        elif overrides:
            config = DebertaConfig.from_dict({**config.to_dict(), **overrides})
        state = to_ours(read_state(file))
        if any(ENCODER_LAYER.search(key) for key in state):
            config = complete_config(config, state, overrides)
            _check_size(config, state, file)
        else:
            logger.warning("%s holds no DeBERTa encoder; its weights stay random", file)
        if dtype == "auto":
            dtype = next((value.dtype for value in state.values() if value.is_floating_point()), torch.float32)
        config.name_or_path = str(name)
        loaded = super().from_pretrained(  # type: ignore[misc]
            None, *args, config=config, state_dict=state, dtype=dtype, **kwargs
        )
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.base_model.train_mask_decoder(model.decodes_masks)
        return loaded

    def load_state_dict(self, state_dict: State, *args: object, **kwargs: object) -> _IncompatibleKeys:
        return super().load_state_dict(to_ours(state_dict), *args, **kwargs)  # type: ignore[misc]
