"""Small models, checkpoint folders and word tokenizers for all tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from debertakit.config import DebertaConfig, preset
from debertakit.text.tokenizers import wrap

SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")


def small(name: str = "deberta-v3-base", **overrides: Any) -> DebertaConfig:
    """Config of a released variant, made narrow and shallow."""
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    return preset(name, **{**shape, "vocab_size": 101, "num_labels": 3, **overrides})


def randomise(model: torch.nn.Module, std: float = 0.2) -> torch.nn.Module:
    """Draw weights large enough that attention is far from uniform and every bias matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, std)
    return model.eval()


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Build a WordPiece tokenizer of the special tokens and these words; all other words become [UNK]."""
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*SPECIALS, *words]))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)  # puts spaces around Chinese characters
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return wrap(backend)


def microsoft_folder(
    folder: Path, config: DebertaConfig, state: Mapping[str, Tensor], **files: Mapping[str, Tensor]
) -> Path:
    """Write Microsoft's own format: half-precision pickles and a config without model_type."""
    folder.mkdir(exist_ok=True)
    for name, tensors in {
        "pytorch_model": state,
        **{f"pytorch_model.{key}": value for key, value in files.items()},
    }.items():
        torch.save({key: value.half() for key, value in tensors.items()}, folder / f"{name}.bin")
    written = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "emd_steps", "architectures")}
    (folder / "config.json").write_text(json.dumps(written, default=str))
    return folder
