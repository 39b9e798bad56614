"""Small models with heads, saved like user checkpoints, and the words and labels that they know."""

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from debertakit import heads
from debertakit.model import DebertaModel
from tests.models import SPECIALS, randomise, small, word_tokenizer

WORDS = (
    "the a cat dog sees likes house river in on Ann Bob lives Paris Rome good bad film is was . , ? who where".split()
)
POSITIONS = {"max_position_embeddings": 64, "position_buckets": 16}
CHARACTERS = list("北京大学在中国的首都是一好电影")
LABELS = {"id2label": {0: "bad", 1: "good", 2: "so"}, "label2id": {"bad": 0, "good": 1, "so": 2}}
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}
TEXTS = [
    "the cat sees a dog",
    "Bob likes the film .",
    "good",
    "北京大学在中国",
    "a dog lives in Paris , the cat in Rome",
]


def tokenizer() -> PreTrainedTokenizerFast:
    made = word_tokenizer([*WORDS, *CHARACTERS])
    made.model_max_length = 64
    return made


def model(head: str, **fields) -> torch.nn.Module:
    """Build DebertaFor<head> (bare encoder for ""), with weights large enough that outputs differ between texts."""
    fields = {"vocab_size": len(SPECIALS) + len(WORDS) + len(CHARACTERS), **fields}
    config = small(**POSITIONS, **fields)
    cls = getattr(heads, f"DebertaFor{head}") if head else DebertaModel
    torch.manual_seed(0)
    made = cls(config)
    randomise(made)
    return made.eval()


def saved(folder: Path, head: str, **fields) -> Path:
    model(head, **fields).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
