"""Texts and small tokenizers for the tests of this folder."""

import random
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIALS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
_WORDS = (
    "the a of in and river mountain city philosopher language history king water number theory music empire north "
    "south old young long short believe build write carry discover describe unbelievable government, century. war; "
    "(about) between people's well-known 1994 science mathematics painting"
).split()


def _articles() -> list[str]:
    draw = random.Random(0)
    return [
        "\n".join(" ".join(draw.choices(_WORDS, k=draw.randint(5, 25))) for _ in range(draw.randint(1, 5)))
        for _ in range(80)
    ]


ARTICLES = _articles()
CHINESE = [
    "北京大学是一所著名的大学，位于中国北京。",
    "我们喜欢研究自然语言处理和数学。",
    "上海的天气今天很好，明天也很好。",
]


def _wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([*SPECIALS, "[MASK]"])
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@cache
def _json(kind: str) -> str:
    if kind == "byte_level":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=420, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
        )
        backend.train_from_iterator(ARTICLES, trainer)
    elif kind == "wordpiece":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        letters = [chr(c) for c in range(33, 127)]
        wp = trainers.WordPieceTrainer(
            vocab_size=420, special_tokens=SPECIALS, initial_alphabet=letters, show_progress=False
        )
        backend.train_from_iterator(ARTICLES + CHINESE, wp)
    else:
        backend = Tokenizer(models.Unigram())
        backend.normalizer = normalizers.Replace("\n", " ")
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        letters = [chr(c) for c in range(33, 127)]
        unigram = trainers.UnigramTrainer(
            vocab_size=420, special_tokens=SPECIALS, unk_token="[UNK]", initial_alphabet=letters, show_progress=False
        )
        backend.train_from_iterator(ARTICLES + CHINESE, unigram)
    return backend.to_str()


def byte_level() -> PreTrainedTokenizerFast:
    """Tokenizer like that of DeBERTa v1."""
    return _wrap(Tokenizer.from_str(_json("byte_level")))


def wordpiece() -> PreTrainedTokenizerFast:
    """Tokenizer like that of BERT."""
    return _wrap(Tokenizer.from_str(_json("wordpiece")))


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Tokenizer like that of DeBERTa v3."""
    return _wrap(Tokenizer.from_str(_json("unigram")))
