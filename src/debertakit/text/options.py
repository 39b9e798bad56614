"""Options of ``train_tokenizer``. Light to import: ``deberta tokenizer train`` makes its options from these."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TokenizerOptions:
    kind: Literal["unigram", "bpe", "wordpiece"] = "unigram"
    """unigram is like DeBERTa v3, bpe like v1, wordpiece like BERT."""
    vocab_size: int = 8192
    """Vocabulary size, including special tokens."""
