"""Train new tokenizers on a corpus: unigram, byte-level BPE or WordPiece, English or Chinese.

The trainers come from the `tokenizers` library. This module adds DeBERTa's ids, sentencepiece's segmentation, the
exclusion of rare characters, and reproducibility: the library's trainers can give different results for the same text.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from debertakit.text.documents import open_documents
from debertakit.text.options import TokenizerOptions
from debertakit.text.progress import working
from debertakit.text.tokenizers import SPECIALS, byte_level, wrap
from debertakit.text.unigram import SQUEEZE_SPACES, unigram

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

KINDS = ("unigram", "bpe", "wordpiece")
BYTES = [f"<0x{b:02X}>" for b in range(256)]
COVERAGE = 0.9995  # share of the corpus's characters that single-character pieces cover: sentencepiece's default
# As in sentencepiece, no trained piece mixes Chinese, other letters, digits and punctuation. (Encoding does not use
# these cuts.) A word keeps the punctuation mark after it, because UnigramTrainer takes its candidates from the *set* of
# words, as substrings with different continuations. Without marks, "which" occurs once in the set and is no candidate:
# 3.55 characters per token instead of 3.95.
TRAINING_CUTS = r"▁?(?:\p{Han}+|\p{N}+|[\p{L}\p{M}&&[^\p{Han}]]+[^\p{L}\p{M}\p{N}▁]?|[^\p{L}\p{M}\p{N}▁]+)|▁"


def train_tokenizer(
    source: str | Path | Iterable[str | Path],
    kind: str = TokenizerOptions.kind,
    vocab_size: int = TokenizerOptions.vocab_size,
    *,
    lowercase: bool = False,
    progress: bool = True,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `vocab_size` pieces, including special tokens. The same text gives the same pieces.

    source: a file or folder (str or Path), or an iterable in which a `Path` is a file or folder and a `str` is a text.
        Files are streamed twice (all formats of `open_documents`). A one-shot iterator is kept in memory.
    kind: "unigram" is like DeBERTa v3 (SentencePiece, NFKC, byte fallback), "bpe" is like v1 (GPT-2's byte level),
        "wordpiece" is like BERT (splits Chinese characters and punctuation; decoding does not restore the spaces).
        Rare characters, `1 - COVERAGE` of the text, get no piece: unigram encodes them as bytes, wordpiece as [UNK].
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of tokenizer {kind!r}; choose from {', '.join(KINDS)}")
    if isinstance(source, str | Path):
        source = [Path(source)]
    elif isinstance(source, Iterator):
        source = list(source)
    train = {"unigram": _train_unigram, "bpe": _train_bpe, "wordpiece": _train_wordpiece}[kind]
    with working("training the tokenizer") if progress else nullcontext():
        bars = progress and sys.stderr.isatty()
        return wrap(train(lambda: _texts(source), vocab_size, lowercase, bars))


def _texts(source: Iterable[str | Path]) -> Iterator[str]:
    for item in source:
        if isinstance(item, Path):
            yield from (text for _, text in open_documents(item).pieces())
        else:
            yield item


def _alphabet(texts: Callable[[], Iterator[str]], normalizer: normalizers.Normalizer | None = None) -> set[str]:
    """Return the most frequent characters that make up `COVERAGE` of the text; ties go to the lower code point."""
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(normalizer.normalize_str(text) if normalizer else text)
    counts = Counter({char: n for char, n in counts.items() if not char.isspace()})
    if not counts:
        raise ValueError("the corpus is empty: there is no text to train a tokenizer on")
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    before = np.cumsum([0] + [n for _, n in ranked[:-1]])
    return {char for (char, _), n in zip(ranked, before, strict=True) if n < COVERAGE * counts.total()}


def _check_size(vocab_size: int, needed: int, what: str) -> None:
    if vocab_size < needed:
        raise ValueError(f"vocab_size {vocab_size} is too small: {what} need at least {needed}")


def _common(
    texts: Callable[[], Iterator[str]], normalizer: normalizers.Normalizer, alphabet: set[str]
) -> Iterator[str]:
    """Normalise texts and replace rare characters by spaces. (Unigram and WordPiece trainers keep every character.)"""
    rare = re.compile(f"[^{re.escape(''.join(sorted(alphabet)))}]+")
    return (rare.sub(" ", normalizer.normalize_str(text)) for text in texts())


def _train_unigram(texts: Callable[[], Iterator[str]], vocab_size: int, lowercase: bool, progress: bool) -> Tokenizer:
    steps: list[normalizers.Normalizer] = [normalizers.Nmt(), normalizers.NFKC(), *SQUEEZE_SPACES]
    steps[2:2] = [normalizers.Lowercase()] if lowercase else []
    normalizer = normalizers.Sequence(steps)
    alphabet = _alphabet(texts, normalizer)
    fixed = len(SPECIALS) + len(BYTES)
    _check_size(vocab_size, fixed + len(alphabet) + 3, f"{len(alphabet)} characters, 256 bytes and the special tokens")
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace("▁"), pre_tokenizers.Split(Regex(TRAINING_CUTS), "isolated")]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size - fixed, special_tokens=["[UNK]"], unk_token="[UNK]", show_progress=progress
    )
    backend.train_from_iterator(_common(texts, normalizer, alphabet), trainer)
    # The trainer iterates over randomly seeded hash tables. The pieces are always the same, but scores differ in the
    # last bits, and pruned characters are put back at the lowest score plus 0.0001, 0.0002, … in random order.
    learned = json.loads(backend.to_str())["model"]["vocab"][1:]
    lowest = min(score for _, score in learned)
    for item in learned:
        put_back = len(item[0]) == 1 and item[1] < lowest + 1e-4 * (len(alphabet) + 1)
        item[1] = round(lowest if put_back else item[1], 4)
    learned.sort(key=lambda item: (-item[1], item[0]))
    vocab = [(piece, 0.0) for piece in SPECIALS + BYTES] + [(piece, score) for piece, score in learned]
    return unigram(vocab, [i >= fixed for i in range(len(vocab))], SPECIALS.index("[UNK]"), True, steps, True)


def _train_bpe(texts: Callable[[], Iterator[str]], vocab_size: int, lowercase: bool, progress: bool) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_size(vocab_size, len(SPECIALS) + len(letters) + 1, "256 bytes and the special tokens")
    _alphabet(texts)  # raises if there is no text
    backend = Tokenizer(models.BPE())
    normalizer = normalizers.Lowercase() if lowercase else None
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, special_tokens=SPECIALS, initial_alphabet=letters, show_progress=progress
    )
    backend.train_from_iterator(texts(), trainer)
    trained = byte_level(backend.model)
    trained.normalizer = normalizer
    return trained


def _train_wordpiece(texts: Callable[[], Iterator[str]], vocab_size: int, lowercase: bool, progress: bool) -> Tokenizer:
    normalizer, words = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    alphabet = sorted(_alphabet(texts, normalizer))
    # Fix these ids in advance. Otherwise the ids, and with them ties, follow a randomly seeded hash table.
    inside = [f"##{char}" for char in alphabet if len(words.pre_tokenize_str(f"a{char}")) == 1 and not _is_cjk(char)]
    fixed = [*SPECIALS, *alphabet, *inside]
    _check_size(vocab_size, len(fixed) + 1, f"{len(alphabet)} characters and the special tokens")
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = words
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size - 1, special_tokens=fixed, show_progress=progress)
    backend.train_from_iterator(_common(texts, normalizer, set(alphabet)), trainer)
    trained = Tokenizer(models.WordPiece(backend.get_vocab(), unk_token="[UNK]"))  # without `fixed` as special tokens
    trained.normalizer, trained.pre_tokenizer, trained.decoder = normalizer, words, decoders.WordPiece()
    return trained


def _is_cjk(char: str) -> bool:
    """Whether BERT's normaliser puts spaces around this character."""
    return normalizers.BertNormalizer(lowercase=False).normalize_str(char) == f" {char} "
