"""Tokenizers: equal to sentencepiece token for token, loadable by stock transformers, trainable in two languages."""

import gzip
import hashlib
import io
import json
import lzma
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import ClassVar

import pytest
import sentencepiece
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.text.tokenizers import load_tokenizer, save_tokenizer
from tests.text.material import wordpiece

ENGLISH = """A new shop opened beside the new mall, and a store opened beside the old one.
The researchers shop where the readers read; readers who re-read are called re-readers.
Café, naïve, résumé — “quoted” words: 3.14, 1,000 and ½ of it (twice), don't you think?
She sells sea shells by the sea shore. The shells she sells are sea shells, I am sure.
How much wood would a woodchuck chuck, if a woodchuck could chuck wood, all day long?"""
CHINESE = """新的商店在商场旁边开业了，旧的商店关门了。
我喜欢读书，也喜欢写字；读书使人快乐。今天天气很好！
北京是中国的首都，上海是中国最大的城市之一。“你好，世界。”他说。"""
CORPUS = [*ENGLISH.splitlines(), *CHINESE.splitlines(), "smile 😀 and 👍🏽 again 😀", "<0 > x4 0x A>"] * 4
NASTY = [
    "",
    " ",
    "  leading, trailing   and many  spaces \t\n",
    "tab\there\r\nand\x0bthere\x85x",
    "ｆｕｌｌ　ｗｉｄｔｈ １２３ ｶﾞ ～",
    "e\u0301 A\u0302\u0300 a\u0302\u0323 Ａ\u0301 q\u0307\u0323 \u0301start",
    "\u1112\u1161\u11ab\u1100\u1173\u11af ㅋㅋㅠㅠ",
    "zero\u200bwidth\u200djoin\u200c er\ufeff ª\u0e33",
    "👨‍👩‍👧 1️⃣ 🇨🇳 😀",
    "nul\x00 bell\x07 del\x7f priv\ue000 \U000e0041",
    "ትግርኛ नमस्ते ﷺ 𝓗𝓮𝓵𝓵𝓸 ½ ㍿ \u2581low",
    "a literal <0x41> or <0x0A>, <<0x00>>",
    "x" * 3000 + "中" * 500,
]


def spm_model(folder: Path, **options: object) -> Path:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, minloglevel=2, num_threads=1,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]",
        unk_piece="[UNK]", **{"vocab_size": 560, "byte_fallback": True, "hard_vocab_limit": False} | options,
    )  # fmt: skip
    file = folder / "spm.model"
    file.write_bytes(model.getvalue())
    return file


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    """(sentencepiece's tokenizer, ours) for a model with DeBERTa v3's layout."""
    file = spm_model(tmp_path_factory.mktemp("spm"))
    return sentencepiece.SentencePieceProcessor(model_file=str(file)), load_tokenizer(file.parent)


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


# -------------------------------------------------------------------------------------------------- SentencePiece


@pytest.mark.parametrize("text", [*NASTY, ENGLISH, CHINESE])
def test_spm_ids_and_text_equal_sentencepiece(spm, text):
    truth, ours = spm
    ids = encode(ours, text)
    assert ids == truth.encode(text)
    assert ours.decode(ids) == truth.decode(ids)


CODES = st.characters(exclude_categories=["Cs"], exclude_characters="\U0010fffe\U0010ffff")  # BREAK and JOIN
MARKS = st.characters(categories=["Mn", "Mc", "Me"])
COMPATIBLE = st.sampled_from([c for c in map(chr, range(0xA0, 0xFFFF)) if unicodedata.decomposition(c)])
DECOMPOSED = COMPATIBLE.map(lambda c: unicodedata.normalize("NFKD", c))
KNOWN = st.sampled_from(sorted(set("".join(CORPUS)) | set(" \t\n\u200d\u200c\uff9e")))


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(CODES, MARKS, COMPATIBLE, DECOMPOSED, KNOWN, KNOWN), max_size=16).map("".join))
def test_spm_ids_equal_sentencepiece_on_any_unicode(spm, text):
    truth, ours = spm
    assert encode(ours, text) == truth.encode(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"byte_fallback": False, "vocab_size": 300},
        {"normalization_rule_name": "identity"},
        {"normalization_rule_name": "nfkc"},
        {"add_dummy_prefix": False},
        {"split_by_whitespace": False},
        {"user_defined_symbols": ["shell", "商店"]},
    ],
    ids=lambda options: next(iter(options)) + "=" + str(next(iter(options.values()))),
)
def test_other_kinds_of_spm_model(tmp_path, options):
    file = spm_model(tmp_path, **options)
    truth, ours = sentencepiece.SentencePieceProcessor(model_file=str(file)), load_tokenizer(file)
    texts = [*CORPUS, *NASTY[:-1]] if "normalization_rule_name" not in options else [*CORPUS, *NASTY[:6]]
    for text in texts:
        assert encode(ours, text) == truth.encode(text)


def test_spm_special_tokens_and_template(spm):
    truth, ours = spm
    assert ours.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]", "[UNK]"]) == [0, 1, 2, 3]
    assert ours.mask_token_id == len(truth) == len(ours) - 1
    pair = ours("a new mall", "the old one")
    a, b = truth.encode("a new mall"), truth.encode("the old one")
    assert pair["input_ids"] == [1, *a, 2, *b, 2]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    masked = encode(ours, "a new [MASK] opened")
    assert masked == [*truth.encode("a new"), ours.mask_token_id, *truth.encode("opened")]


def surfaces(tokenizer, text: str) -> list[str]:
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    return [text[start:end] for start, end in encoding["offset_mapping"]]


def uncovered(tokenizer, text: str) -> str:
    """Characters, except spaces, that are inside no token's offsets."""
    offsets = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    covered = {i for start, end in offsets for i in range(start, end)}
    return "".join(char for i, char in enumerate(text) if i not in covered and not char.isspace())


def test_spm_offsets_point_into_the_original_text(spm):
    _, ours = spm
    for text in CORPUS:
        for token, surface in zip(ours.tokenize(text), surfaces(ours, text), strict=True):
            if token != "▁" and not token.startswith("<0x"):  # a lone prefix points at the character after it
                assert token.strip("▁") in unicodedata.normalize("NFKC", surface)
                assert len(surface.strip()) <= len(token)
        assert not uncovered(ours, text)
    text = "  ｎｅｗ   １/½ 龘龖 the"  # normalised, and two characters in a row that have no piece
    pieces = [pair for pair in zip(ours.tokenize(text), surfaces(ours, text), strict=True) if pair[0] != "▁"]
    for word, normalised in (("ｎｅｗ", "new"), ("the", "the")):  # how a word splits depends on sentencepiece's release
        of_word = [(token, surface.strip()) for token, surface in pieces if surface.strip() in word]
        assert "".join(token for token, _ in of_word).strip("▁") == normalised
        assert "".join(surface for _, surface in of_word) == word
    assert [s for s in surfaces(ours, text) if s in ("龘", "龖")] == ["龘"] * 3 + ["龖"] * 3


@pytest.mark.parametrize("with_config", [False, True])
def test_stock_autotokenizer_loads_what_we_save(spm, tmp_path, with_config):
    _, ours = spm
    ours.save_pretrained(tmp_path)
    if with_config:  # beside a model, AutoTokenizer also looks at its type
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)):
        assert loaded.get_vocab() == ours.get_vocab()
        assert loaded.special_tokens_map == ours.special_tokens_map
        for text in [*NASTY, "a new [MASK] opened"]:
            assert dict(loaded(text, "b", return_offsets_mapping=True)) == dict(
                ours(text, "b", return_offsets_mapping=True)
            )


# ---------------------------------------------------------------------------------------------- the other two files


def gpt2_files(folder: Path, special: bool) -> dict[str, int]:
    trained = json.loads(train_tokenizer(iter(CORPUS), "bpe", 400, progress=False).backend_tokenizer.to_str())["model"]
    pieces = [p for p in trained["vocab"] if not p.startswith("[")]
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *pieces, "[MASK]"] if special else pieces
    vocab = {piece: i for i, piece in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(m) for m in trained["merges"]))
    return vocab


def test_v1_vocabulary_keeps_its_ids(tmp_path, recwarn):
    vocab = gpt2_files(tmp_path, special=True)
    ours = load_tokenizer(tmp_path)
    assert not [w for w in recwarn if "GPT-2" in str(w.message)]
    assert ours.get_vocab() == vocab
    assert ours.mask_token_id == len(vocab) - 1
    a, b = encode(ours, "a shop"), encode(ours, "the mall")
    assert ours("a shop", "the mall")["input_ids"] == [1, *a, 2, *b, 2]  # stock writes [SEP] twice in the middle
    assert encode(ours, "a [MASK] b") == [*encode(ours, "a"), ours.mask_token_id, *encode(ours, " b")]
    for text in NASTY:
        assert ours.decode(encode(ours, text)) == text
    ours.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")("a", "b") == ours("a", "b")


def test_raw_gpt2_vocabulary_keeps_its_ids_and_says_so(tmp_path):
    vocab = gpt2_files(tmp_path, special=False)
    with pytest.warns(UserWarning, match="GPT-2's vocabulary, not DeBERTa v1's"):
        ours = load_tokenizer(tmp_path / "vocab.json")
    assert {piece: ours.convert_tokens_to_ids(piece) for piece in vocab} == vocab
    assert ours.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]) == [
        len(vocab) + i for i in range(5)
    ]


@pytest.mark.parametrize(("cased", "expected"), [(False, ["the", "shop", "##s"]), (True, ["The", "shop", "##s"])])
def test_wordpiece_vocabulary(tmp_path, cased, expected):
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "shop",
        "##s",
        "新",
        "的",
        "<S>",  # of bert-base-chinese, which is uncased
        *(["The"] if cased else []),
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    ours = load_tokenizer(tmp_path)
    assert ours.tokenize("The shops 新的 [MASK]") == [*expected, "新", "的", "[MASK]"]
    assert ours("shops", "的")["input_ids"] == [2, 6, 7, 3, 9, 3]


# --------------------------------------------------------------------------------------------------------- training


@pytest.fixture(scope="module", params=["unigram", "bpe", "wordpiece"])
def trained(request):
    return request.param, train_tokenizer(iter(CORPUS), request.param, 620, progress=False)


def test_trained_layout(trained, tmp_path):
    _, tokenizer = trained
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]", "[UNK]"]) == [0, 1, 2, 3]
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert 270 < len(tokenizer) <= 620
    tokenizer.save_pretrained(tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*NASTY, *CORPUS[:9], "a new [MASK] opened"]:
        assert dict(stock(text, "b")) == dict(tokenizer(text, "b"))
    assert tokenizer("a", "b")["input_ids"] == [1, *encode(tokenizer, "a"), 2, *encode(tokenizer, "b"), 2]


def test_trained_round_trip_and_offsets(trained):
    kind, tokenizer = trained
    for text in CORPUS:
        back = tokenizer.decode(encode(tokenizer, text))
        if kind == "wordpiece":  # BERT's way: spaces are not kept
            assert "".join(back.split()) == "".join(unicodedata.normalize("NFC", text).split())
        else:
            assert back == (text if kind == "bpe" else unicodedata.normalize("NFKC", text))
        assert not uncovered(tokenizer, text)
    shop = tokenizer("a shop, beside", return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    assert "".join("a shop, beside"[s:e].strip() for s, e in shop) == "ashop,beside"


def test_trained_pieces_are_words_of_the_corpus(trained):
    kind, tokenizer = trained
    expected = {
        "unigram": ["▁wood", "▁she", "read", "sea", "商", "店"],
        "bpe": ["Ġopened", "Ġbeside", "Ġshells"],
        "wordpiece": ["opened", "beside", "shells", "新", "店"],
    }
    assert [piece for piece in expected[kind] if piece not in tokenizer.get_vocab()] == []
    if kind == "unigram":  # no piece mixes scripts or runs across a comma
        assert not [
            p for p in tokenizer.get_vocab() if "，" in p and len(p.strip("▁")) > 1 and any(c.isalpha() for c in p)
        ]
    if kind == "wordpiece":  # Chinese characters stand alone
        assert tokenizer.tokenize("新的shop店") == ["新", "的", "shop", "店"]


@pytest.mark.slow
def test_training_is_deterministic_across_processes(trained):
    kind, tokenizer = trained
    code = (
        "import sys, json, hashlib; from debertakit.text.tokenizer_training import train_tokenizer\n"
        "t = train_tokenizer(json.load(sys.stdin), sys.argv[1], 620, progress=False)\n"
        "print(hashlib.sha256(t.backend_tokenizer.to_str().encode()).hexdigest())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, kind], input=json.dumps(CORPUS), capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert run.stdout.strip() == hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


@pytest.mark.parametrize(("kind", "size"), [("unigram", 400), ("bpe", 300), ("wordpiece", 230)])
def test_vocab_size_counts_everything(kind, size):
    assert len(train_tokenizer(CORPUS, kind, size, progress=False)) == size


def test_sentencepiece_marker_in_the_text_is_a_space():
    tokenizer = train_tokenizer(CORPUS, "unigram", 470, progress=False)
    assert tokenizer.tokenize("▁ the▁▁wood") == tokenizer.tokenize("the wood")


def test_rare_characters_get_no_piece():
    texts = ["common words again and again " * 40] * 40 + ["one 龘 here"]
    for kind in ("unigram", "wordpiece"):
        tokenizer = train_tokenizer(texts, kind, 400, progress=False)
        assert "龘" not in tokenizer.get_vocab()
        assert tokenizer.tokenize("龘")[-1] == ("[UNK]" if kind == "wordpiece" else "<0x98>")


def test_lowercase():
    for kind in ("unigram", "bpe", "wordpiece"):
        tokenizer = train_tokenizer(CORPUS, kind, 620, lowercase=True, progress=False)
        assert tokenizer.tokenize("THE SHOP") == tokenizer.tokenize("the shop")


def test_files_plain_and_compressed_are_the_same_corpus(tmp_path):
    text = "\n\n".join(CORPUS).encode()
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(text))
    states = {
        train_tokenizer(source, "bpe", 400, progress=False).backend_tokenizer.to_str()
        for source in (CORPUS, tmp_path / "a.txt", str(tmp_path / "b.txt.gz"), [tmp_path / "c.txt.xz"])
    }
    assert len(states) == 1


# ------------------------------------------------------------------------------------------------------------ words


# ----------------------------------------------------------------------------------------------------------- errors


def test_loading_errors_name_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.bin").write_bytes(b"x")
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "vocab.json").write_text("{}")
    good = spm_model(tmp_path)
    (tmp_path / "cut.model").write_bytes(good.read_bytes()[:5000])
    (tmp_path / "junk.model").write_bytes(b"\xff" * 64)
    bpe = spm_model(tmp_path / "empty", model_type="bpe")
    for name, message in {
        "missing/spm.model": "no such file or folder",
        "other.bin": "is not a tokenizer file",
        "tokenizer.json": "tokenizer.json is not a readable",
        "vocab.json": "needs merges.txt",
        "cut.model": "cut.model is not a readable",
        "junk.model": "junk.model is not a readable",
        bpe: "not a SentencePiece unigram model",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_tokenizer(tmp_path / name)
    bpe.unlink()
    with pytest.raises(ValueError, match=r"no tokenizer in .*empty"):
        load_tokenizer(tmp_path / "empty")
    with pytest.raises(ValueError, match="nobody/nothing is not a local folder"):
        load_tokenizer("nobody/nothing")


def test_training_errors_say_what_is_wrong(tmp_path):
    (tmp_path / "latin.txt").write_bytes("fine\n\nstill fine\ncaf\xe9\n".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="unknown kind of tokenizer 'char'"):
        train_tokenizer(CORPUS, "char")
    for kind in ("unigram", "bpe", "wordpiece"):
        with pytest.raises(ValueError, match="no such file"):
            train_tokenizer(tmp_path / "gone.txt", kind, progress=False)
        with pytest.raises(ValueError, match=r"latin.txt, line 4: not UTF-8 \(byte 0xe9\)"):
            train_tokenizer([tmp_path / "latin.txt"], kind, progress=False)
        for empty in ([], ["", " \n"], tmp_path / "empty.txt"):
            with pytest.raises(ValueError, match="corpus is empty"):
                train_tokenizer(empty, kind, progress=False)
        with pytest.raises(ValueError, match=r"vocab_size 100 is too small: .* need at least"):
            train_tokenizer(CORPUS, kind, 100, progress=False)


def test_tiny_corpora_train():
    for kind in ("unigram", "bpe", "wordpiece"):
        for texts in (["a"], ["a b"], ["中"], ["aaaa aaaa"]):
            tokenizer = train_tokenizer(texts, kind, 300, progress=False)
            assert tokenizer.unk_token_id not in encode(tokenizer, texts[0])


def test_importing_is_light():
    code = (
        "import sys, debertakit.text.tokenizers; print({'torch', 'transformers', 'sentencepiece'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert run.stdout.strip() == "set()"


def test_a_tokenizer_is_saved_next_to_other_files_or_not_at_all(tmp_path):
    tokenizer = train_tokenizer(["the cat sees the dog"], kind="wordpiece", vocab_size=60, progress=False)
    folder = tmp_path / "tokenizer"
    for _ in range(2):  # into a new folder, then over the first
        save_tokenizer(tokenizer, folder)
        (folder / "notes.txt").touch()
    assert load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()
    assert not list(tmp_path.rglob("*.part"))

    class Full:
        init_kwargs: ClassVar[dict] = {}

        def save_pretrained(self, path):
            path.mkdir()
            tokenizer.backend_tokenizer.save("/dev/full")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for target in (folder, tmp_path / "other"):
        with pytest.raises(OSError, match=r"cannot write the tokenizer to .*: .*No space left on device"):
            save_tokenizer(Full(), target)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not (tmp_path / "other").exists()


def test_a_damaged_tokenizer_config_is_named(tmp_path):
    save_tokenizer(train_tokenizer(["the cat"], kind="wordpiece", vocab_size=60, progress=False), tmp_path / "t")
    (tmp_path / "t/tokenizer_config.json").write_text('{"a":')
    with pytest.raises(ValueError, match=r"tokenizer"):
        load_tokenizer(tmp_path / "t")


def test_the_version_of_the_library_is_recorded_with_the_tokenizer(tmp_path):
    save_tokenizer(wordpiece(), tmp_path / "t")
    written = json.loads((tmp_path / "t/tokenizer_config.json").read_text())
    assert written["tokenizers_version"] == tokenizers.__version__
    stock = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert stock("the river").input_ids == load_tokenizer(tmp_path / "t")("the river").input_ids
