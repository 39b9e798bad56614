"""Models of two layers, a tokenizer of a few words, and tasks that the models learn in a second."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from debertakit import heads
from debertakit.data.examples import Choice, Question, Tagged, TextExample
from debertakit.heads import DebertaForMaskedLM
from debertakit.tasks import metrics
from debertakit.tasks.task import Task
from tests.models import randomise, small, word_tokenizer

GOOD, BAD = ("good", "great", "fine", "lovely"), ("bad", "awful", "poor", "sad")
NAMES, PLACES = ("anna", "bob", "carol"), ("paris", "london", "rome")
FILLERS = "the a film was and in of it that one day we saw lives here there who where answer yes no".split()
PIECES = ["##s", "##ly", "##er", "film", "un", "##known", "中", "国", "人", ",", "?", "."]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer([*GOOD, *BAD, *NAMES, *PLACES, *FILLERS, *PIECES])


def deberta(folder: Path, **fields: Any) -> Path:
    """Save a masked language model with random weights."""
    torch.manual_seed(0)
    shape = {"vocab_size": len(tokenizer()), "max_position_embeddings": 64, "position_buckets": 16}
    shape["initializer_range"] = 0.1  # it learns at once
    model = DebertaForMaskedLM(small(**{**shape, **fields}))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def with_head(folder: Path, head: str, **fields: Any) -> Path:
    """Save DebertaFor<head> with random weights."""
    shape = {"vocab_size": len(tokenizer()), "max_position_embeddings": 64, "position_buckets": 16}
    randomise(getattr(heads, f"DebertaFor{head}")(small(**{**shape, **fields}))).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def bert(folder: Path) -> Path:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(tokenizer()), max_position_embeddings=64, **shape)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def sentences(count: int, seed: int = 0) -> list[TextExample]:
    """Random sentences with label 1 or 0: each contains one word from GOOD or one from BAD."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        label = draw.choice("01")
        words = draw.choices(FILLERS, k=draw.randint(2, 9))
        words.insert(draw.randrange(len(words)), draw.choice(GOOD if label == "1" else BAD))
        found.append(TextExample(str(number), " ".join(words), None, label))
    return found


def examples(kind: str, count: int = 12, seed: int = 0) -> list[Any]:
    """Examples of a task kind, with different lengths and a few special cases."""
    draw = random.Random(seed)
    texts = sentences(count, seed)
    if kind == "single-label":
        return texts
    if kind == "regression":
        return [TextExample(t.id, t.text, "it was", float(t.label) * 5) for t in texts]
    if kind == "multi-label":
        return [
            TextExample(t.id, t.text, None, (("sad",) if t.label == "0" else ()) + ("any",) * (i % 2))
            for i, t in enumerate(texts)
        ]
    if kind == "tagging":
        return [
            tagged(str(i), [*t.text.split(), draw.choice(NAMES), "in", draw.choice(PLACES)])
            for i, t in enumerate(texts)
        ]
    if kind == "choice":
        return [
            Choice(
                t.id, t.text, "it was", (*draw.sample(GOOD, 1 + i % 2), "bad"), label=0 if t.label == "1" else 1 + i % 2
            )
            for i, t in enumerate(texts)
        ]
    questions = []
    for i, text in enumerate(texts):
        name, place = draw.choice(NAMES), draw.choice(PLACES)
        context = f"{text.text} , {name} lives in {place} . {text.text}"
        answer = ((place,), (context.index(place),)) if i % 4 else ((), ())
        questions.append(Question(text.id, "where was " + name + " ?", context, *answer))
    return questions


def tagged(identity: str, words: list[str]) -> Tagged:
    tags = ["B-PER" if w in NAMES else "B-LOC" if w in PLACES else "O" for w in words]
    return Tagged(identity, tuple(words), tuple(tags))


SCORES = {
    "single-label": (metrics.accuracy, "accuracy"),
    "multi-label": (metrics.multi_label, "micro_f1"),
    "regression": (metrics.correlation, "pearson"),
    "tagging": (metrics.entities, "f1"),
    "qa": (metrics.squad, "f1"),
    "choice": (metrics.accuracy, "accuracy"),
}


def task(kind: str, train: int = 24, dev: int = 8) -> Task:
    splits = {"train": examples(kind, train, 1), "dev": examples(kind, dev, 2)}
    return Task(f"tiny-{kind}", kind, lambda _: splits, *SCORES[kind])
