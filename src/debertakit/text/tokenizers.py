"""Tokenizers: the released ones exactly, and new ones trained on a corpus.

Why not simply `AutoTokenizer`? On the files Microsoft published, transformers 5.22.2 is wrong in two ways:

* v2/v3 (`spm.model`): `DebertaV2Tokenizer` replaces the model's own normaliser (nmt_nfkc) by NFC and switches byte
  fallback off. Of 157,914 lines of English and Chinese, 12,805 get other tokens than sentencepiece gives. Ours: 1
  ("KKKKKKKKKK", a tie of two cuts with the same pieces, which sentencepiece's 32-bit sums decide otherwise).
* v1 (`vocab.json`): `DebertaTokenizer` writes a pair as `[CLS] A [SEP] [SEP] B [SEP]`; the models were trained on
  `[CLS] A [SEP] B [SEP]`.

Both are repaired with the `tokenizers` library's own components, so what is returned is a plain
`PreTrainedTokenizerFast`, and what it saves loads in stock `AutoTokenizer` with the same ids.
`benchmarks/tokenizer_parity.py` makes the counts.

Ids are DeBERTa's everywhere: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, and [MASK] last.
"""

from __future__ import annotations

import json
import re
import struct
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from debertakit.text import documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIALS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
MASK = "[MASK]"
KINDS = ("unigram", "bpe", "wordpiece")
BYTES = [f"<0x{b:02X}>" for b in range(256)]
COVERAGE = 0.9995  # share of the corpus's characters that get an id of their own: sentencepiece's default
FILES = ("tokenizer.json", "spm.model", "vocab.json", "vocab.txt")  # in the order they are looked for
SIDE_FILES = ("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


# ------------------------------------------------------------------------------------------------------------ loading


def load_tokenizer(path_or_name: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder, of one of the files in `FILES`, or of a Hugging Face hub name (needs the network).

    A `tokenizer.json` wins over the files it was made from: it is what the model beside it was trained with.
    """
    path = Path(path_or_name)
    if not path.exists():
        path = _download(str(path_or_name))
    file = path if path.is_file() else next((path / name for name in FILES if (path / name).is_file()), None)
    if file is None:
        raise ValueError(f"no tokenizer in {path}: none of {', '.join(FILES)} is there")
    try:
        if file.name == "tokenizer.json":
            return _load_saved(file)
        if file.suffix == ".model":
            return wrap(_from_sentencepiece(file))
        if file.name == "vocab.json":
            return _from_gpt2(file)
        if file.name == "vocab.txt":
            return _from_wordpiece(file)
    except ValueError:
        raise
    except Exception as error:  # the Rust side raises bare Exception; name the file for whoever gave it
        raise ValueError(f"{file} is not a readable tokenizer file: {error}") from error
    raise ValueError(f"{file} is not a tokenizer file: expected a .model or one of {', '.join(FILES)}")


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or Path(name).suffix in {".model", ".json", ".txt"}:
        raise ValueError(f"no such file or folder: {name}")
    try:
        return Path(snapshot_download(name, allow_patterns=[*FILES, *SIDE_FILES]))
    except Exception as error:  # offline, unknown repository, no permission: a dozen exception classes
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{name} is no local folder, and the hub did not give it either: {reason}") from error


def wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """A transformers tokenizer around `backend`: DeBERTa's special tokens (added if missing) and its template."""
    from transformers import PreTrainedTokenizerFast

    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token in [*SPECIALS, MASK]:
        if token not in added:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    names |= {"bos_token": "[CLS]", "eos_token": "[SEP]", "mask_token": MASK}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def _load_saved(file: Path) -> PreTrainedTokenizerFast:
    # Not AutoTokenizer: where tokenizer_config.json names DebertaV2Tokenizer it would throw the saved normaliser away.
    from transformers import PreTrainedTokenizerFast

    if (file.parent / "tokenizer_config.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(file.parent)
    return wrap(Tokenizer.from_file(str(file)))


def _from_gpt2(file: Path) -> PreTrainedTokenizerFast:
    merges = file.with_name("merges.txt")
    if not merges.is_file():
        raise ValueError(f"{file} needs merges.txt beside it")
    vocab, rules = models.BPE.read_file(str(file), str(merges))
    if "[CLS]" not in vocab:
        # Microsoft's v1 ids follow fairseq's frequency list, which is in no GPT-2 file: they cannot be derived.
        warnings.warn(
            f"{file} is GPT-2's vocabulary, not DeBERTa v1's: special tokens are appended to it, and the ids do not "
            "fit the released v1 checkpoints (use the vocab.json of microsoft/deberta-base for those)",
            stacklevel=3,
        )
    return wrap(_byte_level(models.BPE(vocab, rules)))


def _byte_level(model: models.BPE) -> Tokenizer:
    """GPT-2's way, as stock `DebertaTokenizer` has it; [MASK] stands for the space before it too."""
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    specials = [AddedToken(token, special=True, normalized=False, lstrip=token == MASK) for token in [*SPECIALS, MASK]]
    backend.add_special_tokens(specials)
    return backend


def _from_wordpiece(file: Path) -> PreTrainedTokenizerFast:
    from transformers import BertTokenizer

    if (file.parent / "tokenizer_config.json").is_file():
        return BertTokenizer.from_pretrained(file.parent)
    pieces = file.read_text(encoding="utf-8").splitlines()
    cased = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    return BertTokenizer(vocab=str(file), do_lower_case=not cased)


# ------------------------------------------------------------------------------------------------------ SentencePiece

NORMAL, UNKNOWN, USER_DEFINED = 1, 2, 4  # SentencePiece.Type; 3 is control, 6 a byte
# As sentencepiece trains: no piece mixes Chinese, other letters, digits and punctuation. (Text is not cut so.) A word
# keeps the mark after it all the same: UnigramTrainer takes its candidates from the *set* of words, as substrings that
# go on in different ways. Cut clean, "which" is in the set once and no candidate: 3.55 characters a token, not 3.95.
TRAINING_CUTS = r"▁?(?:\p{Han}+|\p{N}+|[\p{L}\p{M}&&[^\p{Han}]]+[^\p{L}\p{M}\p{N}▁]?|[^\p{L}\p{M}\p{N}▁]+)|▁"
SQUEEZE_SPACES = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A | \z"), "")]
BREAK, JOIN = "\U0010ffff", "\U0010fffe"  # noncharacters, never in text: see _charsmap_normalizer


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protobuf message: enough of the wire format to read a SentencePiece model.

    Twenty lines, so that reading a released `spm.model` needs neither sentencepiece nor protobuf.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        value: Any
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            if key & 7 not in (1, 2, 5) or at + size > len(message):
                raise IndexError("truncated or not a SentencePiece model")
            value, at = message[at : at + size], at + size
            value = struct.unpack("<f", value)[0] if key & 7 == 5 else value
        yield key >> 3, value


def _from_sentencepiece(file: Path) -> Tokenizer:
    """A Unigram `spm.model` as a `tokenizers.Tokenizer` that gives sentencepiece's own ids."""
    model = list(_fields(file.read_bytes()))
    pieces: list[dict[int, Any]] = [{2: 0.0, 3: NORMAL} | dict(_fields(value)) for field, value in model if field == 1]
    trainer = dict(_fields(next((value for field, value in model if field == 2), b"")))
    rules = dict(_fields(next((value for field, value in model if field == 3), b"")))
    if not pieces or trainer.get(3, 1) != 1:
        raise ValueError(f"{file} is not a SentencePiece unigram model, as DeBERTa v2 and v3 use")
    if trainer.get(24) or not rules.get(5, 1) or not rules.get(4, 1):
        raise ValueError(f"{file}: whitespace as a suffix, not escaped, or repeated is not supported")

    kinds = [piece[3] for piece in pieces]
    vocab = [(piece[1].decode(), piece[2]) for piece in pieces]
    in_text = [kind in (NORMAL, USER_DEFINED) for kind in kinds]
    steps = _charsmap_normalizer(rules[2]) if rules.get(2) else []
    byte_fallback, prefix = bool(trainer.get(35)), bool(rules.get(3, 1))
    return _unigram(vocab, in_text, kinds.index(UNKNOWN), byte_fallback, steps + SQUEEZE_SPACES, prefix)


def _unigram(
    vocab: list[tuple[str, float]], in_text: list[bool], unk: int, byte_fallback: bool, steps: list[Any], prefix: bool
) -> Tokenizer:
    """`models.Unigram` made to cut text as sentencepiece does; `in_text` says which pieces may match in a text."""
    backend = Tokenizer(models.Unigram(vocab, unk, byte_fallback))
    backend.normalizer = normalizers.Sequence(steps)
    pieces = [text for (text, _), usable in zip(vocab, in_text, strict=True) if usable]
    across = any("▁" in text[1:].lstrip("▁") for text in pieces)  # a piece of several words: do not cut at spaces
    cuts: list[Any] = [pre_tokenizers.Metaspace("▁", "always" if prefix else "never", split=not across)]
    cuts += _literal_guard(pieces, [text for (text, _), usable in zip(vocab, in_text, strict=True) if not usable])
    if byte_fallback:  # a character of no piece stands alone anyway; cut off, its bytes get its offsets, not the run's
        cuts.append(pre_tokenizers.Split(Regex(f"[^{_char_class(set('▁'.join(pieces)))}]"), "isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(spaces + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return backend


def _literal_guard(pieces: list[str], reserved: list[str]) -> list[Any]:
    """Keep a literal "<0x41>" in the text from being read as the byte piece of that name.

    sentencepiece never matches control, unknown and byte pieces in text, `models.Unigram` matches all it has. So cut
    such a literal in two, at a place where no real piece reaches across: then nothing else changes.
    """
    joined, cuts = "\0".join(pieces), []
    for text in reserved:
        cut = next((i for i in range(1, len(text)) if text[i - 1 : i + 1] not in joined), None)
        if cut:
            cuts.append((text[:cut], text[cut:]))
    heads = {head: [tail for other, tail in cuts if other == head] for head, _ in cuts}
    pattern = "|".join(f"{re.escape(head)}(?={'|'.join(map(re.escape, tails))})" for head, tails in heads.items())
    return [pre_tokenizers.Split(Regex(pattern), "merged_with_previous")] if cuts else []


def _charsmap_normalizer(charsmap: bytes) -> list[Any]:
    """sentencepiece's character map, exactly: the longest rule at each place, from left to right.

    `normalizers.Precompiled` holds the same rules but walks grapheme clusters and takes the *shortest* rule: it drops
    the accent of a full-width letter and leaves decomposed Hangul apart. It is right on single characters. So:
    mark where sentencepiece's rules stop (BREAK), cut all clusters into characters (JOIN), map those, let NFC put
    together what belongs to one rule — NFC cannot reach across a BREAK — and take the marks out again. The two
    noncharacters used for this are lost if a text has them; a composed character has the offsets of its first part.
    """
    keys = _rule_keys(charsmap)
    tails = _char_class({char for key in keys for char in key[1:]})
    joins = rf"[\p{{M}}\x{{200C}}\x{{200D}}\x{{E33}}\x{{EB3}}{tails}]"  # all that continues a cluster or a rule
    others = joins.replace("[", "[^", 1)
    rule = rf"(?>{_trie_pattern(frozenset(keys))}|(?m:.))" if keys else "(?m:.)"
    return [
        normalizers.Replace(Regex(rf"(?:\G(?={joins})|(?={others}{joins})){rule}(?={joins})\K"), BREAK),
        normalizers.Replace(Regex(rf"(?!\A)(?={joins})"), JOIN),  # at the very start it makes Precompiled panic
        normalizers.Precompiled(charsmap),
        normalizers.Replace(JOIN, ""),
        normalizers.NFC(),
        normalizers.Replace(BREAK, ""),
    ]


def _rule_keys(charsmap: bytes) -> list[str]:
    """The rules of more than one character, read out of the map's double-array trie a byte deeper at a time."""
    size = struct.unpack_from("<I", charsmap)[0]
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    children = (units >> 10) << ((units & 512) >> 6)
    nodes, names, found = children[:1], [b""], []
    while len(nodes):
        next_nodes, next_names = [], []
        for byte in range(1, 256):
            slots = nodes ^ byte
            hits = np.flatnonzero((units[np.minimum(slots, len(units) - 1)] & 0x800000FF) == byte)
            slots = slots[hits]
            next_nodes.append(slots ^ children[slots])
            new = [names[i] + bytes([byte]) for i in hits.tolist()]
            found += [new[i] for i in np.flatnonzero(units[slots] & 256).tolist()]
            next_names += new
        nodes, names = np.concatenate(next_nodes), next_names
    return [key for key in (name.decode() for name in found) if len(key) > 1]


def _trie_pattern(keys: frozenset[str]) -> str:
    """A regular expression for `keys`, the longest first: their trie, equal branches merged (220,000 keys: 29 kB)."""
    tails: dict[str, set[str]] = {}
    for key in keys:
        if key:
            tails.setdefault(key[0], set()).add(key[1:])
    branches: dict[frozenset[str], set[str]] = {}
    for char in sorted(tails):
        branches.setdefault(frozenset(tails[char]), set()).add(char)
    if not branches:
        return ""
    pattern = "|".join(f"[{_char_class(chars)}]{_trie_pattern(rest)}" for rest, chars in branches.items())
    return f"(?:{pattern})" + ("?" if "" in keys else "")


def _char_class(chars: set[str]) -> str:
    """The inside of a [...] for these characters, runs as ranges."""
    runs: list[list[int]] = []
    for code in sorted(map(ord, chars)):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in runs)


# ----------------------------------------------------------------------------------------------------------- training


def train_tokenizer(
    source: str | Path | Iterable[str | Path],
    kind: str = "unigram",
    vocab_size: int = 8192,
    *,
    lowercase: bool = False,
    progress: bool = True,
) -> PreTrainedTokenizerFast:
    """A new tokenizer of at most `vocab_size` pieces, special ones included; the same pieces for the same text.

    source: a file or folder (str or Path), or an iterable in which a `Path` is a file or folder and a `str` is a text.
        Files are streamed, twice (all that `documents.source` reads). A one-shot iterator is kept in memory.
    kind: "unigram" is laid out as DeBERTa v3 (SentencePiece, NFKC, byte fallback), "bpe" as v1 (GPT-2's byte level),
        "wordpiece" as BERT (Chinese characters and punctuation split; the only one that does not restore the spaces).
        Rare characters, `1 - COVERAGE` of the text, get no piece: bytes in unigram, [UNK] in wordpiece.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of tokenizer {kind!r}: choose {', '.join(KINDS)}")
    if isinstance(source, str | Path):
        source = [Path(source)]
    elif isinstance(source, Iterator):
        source = list(source)
    train = {"unigram": _train_unigram, "bpe": _train_bpe, "wordpiece": _train_wordpiece}[kind]
    return wrap(train(lambda: _texts(source), vocab_size, lowercase, progress))


def _texts(source: Iterable[str | Path]) -> Iterator[str]:
    for item in source:
        if isinstance(item, Path):
            yield from (text for _, text in documents.source(item).pieces())
        else:
            yield item


def _alphabet(texts: Callable[[], Iterator[str]], normalizer: Any | None = None) -> set[str]:
    """The most frequent characters that make up `COVERAGE` of the text; a tie goes to the lower code point."""
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
        raise ValueError(f"vocab_size {vocab_size} is too small: at least {needed} are needed, for {what}")


def _common(texts: Callable[[], Iterator[str]], normalizer: Any, alphabet: set[str]) -> Iterator[str]:
    """The normalised text, a space for each rare character. (Unigram and WordPiece trainers keep every character.)"""
    rare = re.compile(f"[^{re.escape(''.join(sorted(alphabet)))}]+")
    return (rare.sub(" ", normalizer.normalize_str(text)) for text in texts())


def _train_unigram(texts: Callable[[], Iterator[str]], vocab_size: int, lowercase: bool, progress: bool) -> Tokenizer:
    steps = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace("▁", " "), *SQUEEZE_SPACES]
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
    # The trainer walks randomly seeded hash tables: the same pieces each time, but scores that differ in the last bits,
    # and characters it had pruned are put back at the lowest score plus 0.0001, 0.0002, … in any order.
    learned = json.loads(backend.to_str())["model"]["vocab"][1:]
    lowest = min(score for _, score in learned)
    for item in learned:
        put_back = len(item[0]) == 1 and item[1] < lowest + 1e-4 * (len(alphabet) + 1)
        item[1] = round(lowest if put_back else item[1], 4)
    learned.sort(key=lambda item: (-item[1], item[0]))
    vocab = [(piece, 0.0) for piece in SPECIALS + BYTES] + [(piece, score) for piece, score in learned]
    return _unigram(vocab, [i >= fixed for i in range(len(vocab))], SPECIALS.index("[UNK]"), True, steps, True)


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
    trained = _byte_level(backend.model)
    trained.normalizer = normalizer
    return trained


def _train_wordpiece(texts: Callable[[], Iterator[str]], vocab_size: int, lowercase: bool, progress: bool) -> Tokenizer:
    normalizer, words = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    alphabet = sorted(_alphabet(texts, normalizer))
    # Given their ids beforehand; left to the trainer, ids, and with them ties, follow a randomly seeded hash table.
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
    """Does BERT's normaliser put spaces around it?"""
    return normalizers.BertNormalizer(lowercase=False).normalize_str(char) == f" {char} "


# -------------------------------------------------------------------------------------------------------------- words


def word_starts(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """bool [len(tokenizer)]: does this piece begin a word, by Microsoft's rule for whole-word masking?

    WordPiece: all but "##". The others: a piece that begins with a space, a single punctuation mark, space or control
    character, and every special token. The first piece after a special token begins a word whatever stands here.
    """
    backend = tokenizer.backend_tokenizer
    byte_level = "ByteLevel" in repr(backend.decoder)
    special = set(tokenizer.all_special_tokens)
    starts = np.zeros(len(tokenizer), dtype=bool)
    for piece, i in tokenizer.get_vocab().items():
        if isinstance(backend.model, models.WordPiece):
            starts[i] = not piece.startswith("##")
        else:
            text = backend.decoder.decode([piece]) if byte_level and piece not in special else piece.replace("▁", " ")
            alone = len(text) == 1 and (_is_punctuation(text) or unicodedata.category(text)[0] in "CZ")
            starts[i] = text.startswith(" ") or alone or piece in special
    return starts


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] == "P" or (char.isascii() and not char.isalnum() and char.isprintable())
