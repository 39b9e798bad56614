"""A word-level tokenizer and small models with heads, saved like user checkpoints."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from debertakit import heads
from debertakit.model import DebertaModel
from tests.conftest import randomise, small

SPECIALS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
WORDS = (
    "the a cat dog sees likes house river in on Ann Bob lives Paris Rome good bad film is was . , ? who where".split()
)
POSITIONS = {"max_position_embeddings": 64, "position_buckets": 16}
CHARACTERS = list("北京大学在中国的首都是一好电影")


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate([*SPECIALS, *WORDS, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)  # puts spaces around Chinese characters
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **names)


def model(head: str, **fields) -> torch.nn.Module:
    """Build DebertaFor<head> (bare encoder for ""), with weights large enough that outputs differ between texts."""
    config = small(vocab_size=len(SPECIALS) + len(WORDS) + len(CHARACTERS), **POSITIONS, **fields)
    cls = getattr(heads, f"DebertaFor{head}") if head else DebertaModel
    torch.manual_seed(0)
    made = cls(config)
    randomise(made)
    return made.eval()


def saved(folder: Path, head: str, **fields) -> Path:
    model(head, **fields).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
