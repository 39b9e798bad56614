"""A toy language to translate, and a tiny encoder-decoder."""

from pathlib import Path

import torch

from debertakit.data.pairs import Pair
from debertakit.finetuning.options import Seq2SeqOptions
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
from debertakit.heads import DebertaForMaskedLM
from debertakit.text.tokenizer_training import train_tokenizer
from tests.conftest import small

WORDS = {"red": "rot", "blue": "blau", "old": "alt", "cat": "katze", "dog": "hund", "house": "haus", "sees": "sieht"}
OPTIONS = Seq2SeqOptions(
    epochs=2, step_tokens=128, lr=5e-3, warmup=4, beams=2, max_target=12, evaluate_every=4, precision="fp32"
)

HALF = {"layers": 1, "ffn_dim": 32, "attention_heads": 2}
PEER = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in HALF.items()} | {
    "d_model": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
"""Shape of a tiny Marian or BART."""


def make_pairs(count: int = 60) -> list[Pair]:
    """Every word has one translation, and the word order is reversed."""
    draw = torch.Generator().manual_seed(0)
    english = list(WORDS)
    rows = [
        torch.randint(len(english), (int(torch.randint(1, 6, (), generator=draw)),), generator=draw).tolist()
        for _ in range(count)
    ]
    return [Pair(" ".join(english[i] for i in row), " ".join(WORDS[english[i]] for i in row[::-1])) for row in rows]


def make_tokenizer(pairs: list[Pair]):
    return train_tokenizer([text for pair in pairs for text in pair], "wordpiece", 60, progress=False)


def make_model(tokenizer, dropout: float = 0.0) -> DebertaForSeq2SeqLM:
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    encoder = small(vocab_size=len(tokenizer), emd_steps=0, hidden_size=64, num_attention_heads=4, **rates)
    return DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=encoder, decoder_layers=1))


def save_encoder(folder: Path, tokenizer, dropout: float = 0.1) -> Path:
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    DebertaForMaskedLM(small(vocab_size=len(tokenizer), **rates)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
