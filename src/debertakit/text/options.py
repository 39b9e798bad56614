"""Options of ``train_tokenizer`` and ``prepare``. Light to import: the command line makes its options from these."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TokenizerOptions:
    kind: Literal["unigram", "bpe", "wordpiece"] = "unigram"
    """unigram is like DeBERTa v3, bpe like v1, wordpiece like BERT."""
    vocab_size: int = 8192
    """Vocabulary size, including special tokens."""


@dataclass(frozen=True)
class ReadingOptions:
    text_field: str = "text"
    """Field of the text in JSONL and Parquet files."""
    txt_document: Literal["blank-line", "line", "file"] = "blank-line"
    """How a .txt file is split into documents."""


@dataclass(frozen=True)
class CorpusOptions(ReadingOptions):
    validation: float = 0.05
    """Fraction of the documents to hold out; if >= 1, the number of documents."""
    language: Literal["auto", "en", "zh"] = "auto"
    """zh finds words with jieba; auto does so if the text is Chinese and jieba is installed."""
    entities: str | None = None
    """Gazetteer file or spacy:MODEL, for entity masking."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Leave out later copies of a document: equal ones, or also similar ones (near)."""
    similarity: float = 0.8
    """Jaccard similarity of word 5-grams from which documents are near duplicates."""
    engine: Literal["local", "ray"] = "local"
    """ray tokenises on a cluster (RAY_ADDRESS) or with Ray on this machine. The shards are the same."""
    workers: int | None = None
    """Processes for jieba, entities and Ray. None: one per core."""
    overwrite: bool = False
    """Replace a corpus that was made from other inputs or with other options."""
