"""A small corpus and a run that takes a second, for the tests and the processes that they start."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from debertakit.pretraining import loop
from debertakit.pretraining.recipes import recipe
from debertakit.pretraining.settings import PretrainConfig, override
from debertakit.text.corpus import Corpus, prepare
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.text.tokenizers import load_tokenizer

SUBJECTS = "the cat|a dog|my old friend|the new teacher|every child|the red bird|a quiet farmer|the king".split("|")
VERBS = "sees|likes|paints|follows|forgets|carries|remembers|builds".split("|")
OBJECTS = "the house|a small boat|the green hill|an open door|the long road|a silver coin|the river".split("|")
TIMES = "in the morning|every day|at night|before dinner|in winter|after the rain|on sunday".split("|")
DROPOUT = ("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1")


def text(documents: int = 60, seed: int = 0) -> str:
    draw = random.Random(seed)
    paragraphs = []
    for _ in range(documents):
        words = [[draw.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, TIMES)] for _ in range(draw.randint(2, 6))]
        paragraphs.append(" ".join(" ".join(sentence) + "." for sentence in words))
    return "\n\n".join(paragraphs)


def make_corpus(folder: Path, documents: int = 60, validation: float = 0.1) -> tuple[Corpus, PreTrainedTokenizerFast]:
    """Write a corpus and its tokenizer into the folder; if they are there, open them."""
    if not (folder / "tokenizer").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "text.txt").write_text(text(documents), encoding="utf-8")
        train_tokenizer(folder / "text.txt", kind="wordpiece", vocab_size=160, progress=False).save_pretrained(
            folder / "tokenizer"
        )
    tokenizer = load_tokenizer(folder / "tokenizer")
    return prepare(folder / "text.txt", tokenizer, folder / "corpus", validation=validation), tokenizer


# The settings of `tiny` that the golden curve and the margins of the tests were measured with.
NGRAMS = ("masking.strategy=ngram", "masking.rate=0.15", "masking.final_rate=none")


def config(*assignments: str, name: str = "tiny") -> PretrainConfig:
    """A recipe made small, with n-gram masks if the recipe has those of `tiny`, and the output bias at zero."""
    shape = ["num_hidden_layers=2", "hidden_size=32", "num_attention_heads=2", "intermediate_size=64"]
    small = [f"model.{field}" for field in shape] + ["data.max_length=32", "data.step_tokens=256"]
    pace = ["steps=12", "log_every=4", "evaluate_every=6", "checkpoint_every=3", "optimizer.warmup_steps=4"]
    sizes = ["data.micro_tokens=256", "evaluate_tokens=256"]
    start = ["unigram_bias=false", *(NGRAMS if recipe(name).masking == recipe("tiny").masking else ())]
    return override(recipe(name), [*small, *pace, *sizes, *start, "precision=fp32", *assignments])


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def cut_short(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Make the step after ``at`` raise, as a crash would."""
    original = loop.train_step

    def failing(run, elapsed):
        if run.progress.step == at:
            raise KeyboardInterrupt
        return original(run, elapsed)

    monkeypatch.setattr(loop, "train_step", failing)
