"""Raw files to shards: formats, errors, resuming after a kill, reuse of a finished corpus."""

import gzip
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from debertakit.text import boundaries, corpus, documents
from debertakit.text.corpus import Corpus, prepare
from debertakit.text.documents import cut
from debertakit.text.manifest import read_manifest
from debertakit.text.shards import locked
from tests.text.material import ARTICLES, CHINESE, byte_level, sentencepiece_like, wordpiece

TEXT = "\n\n".join(ARTICLES) + "\n"


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level()


def texts(prepared: Corpus, tokenizer, half: str = "train") -> list[str]:
    shards = getattr(prepared, half)
    return [tokenizer.decode(shards.document(i)[0]) for i in range(len(shards))]


def everything(prepared: Corpus) -> list[tuple[bytes, bytes]]:
    halves = [(s, i) for s in (prepared.train, prepared.validation) for i in range(len(s))]
    return [tuple(a.tobytes() for a in s.document(i)) for s, i in halves]


# ------------------------------------------------------------------------------------------------------------ reading


def write(folder: Path, name: str) -> Path:
    """The same articles in one of the formats."""
    path = folder / name
    rows = "".join(json.dumps({"text": article, "id": 1}) + "\n" for article in ARTICLES)
    raw = (TEXT if ".txt" in name else rows).encode()
    if name.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": ARTICLES, "id": range(len(ARTICLES))}), path)
    elif name.endswith(".zst"):
        import pyarrow

        path.write_bytes(pyarrow.Codec("zstd").compress(raw, asbytes=True))
    else:
        path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(raw))
    return path


NAMES = [
    "a.txt",
    "a.txt.gz",
    "a.txt.xz",
    "a.txt.zst",
    "a.jsonl",
    "a.jsonl.gz",
    "a.jsonl.xz",
    "a.jsonl.zst",
    "a.parquet",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_documents(tmp_path, tokenizer, name):
    prepared = prepare(write(tmp_path, name), tokenizer, tmp_path / "out", validation=0)
    assert texts(prepared, tokenizer) == ARTICLES
    assert prepared.manifest["counts"]["documents"] == len(ARTICLES)
    assert len(prepared.validation) == 0


def test_folder_is_read_in_the_order_of_its_names_and_skips_other_files(tmp_path, tokenizer):
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "two.txt").write_text("second file\n\nits second document")
    (folder / "a.jsonl").write_text('{"text": "first file"}\n\n')
    (folder / "picture.png").write_bytes(b"\x89PNG")
    prepared = prepare(folder, tokenizer, tmp_path / "out", validation=0)
    assert texts(prepared, tokenizer) == ["first file", "second file", "its second document"]


def test_hub_dataset_streams(tmp_path, tokenizer):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", "a.jsonl")
    prepared = prepare(f"hf:{tmp_path / 'in'}", tokenizer, tmp_path / "out", validation=0)
    assert texts(prepared, tokenizer) == ARTICLES


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("blank-line", ["one\ntwo", "three"]), ("line", ["one", "two", "three"]), ("file", ["one\ntwo\n\nthree"])],
)
def test_how_a_text_file_is_split_into_documents(tmp_path, tokenizer, unit, expected):
    (tmp_path / "a.txt").write_text("\none\ntwo\n \n\nthree")
    source = documents.open_documents(tmp_path / "a.txt", txt_document=unit)
    found = [re.sub(r"\n\s+", "\n\n", text) for _, text in source.pieces()]
    assert found == expected


def test_cleaning(tmp_path):
    raw = "a\x00b\ufeff\r\nnew\rline\x0cpage\x07\n\n \x01 \n\nsecond"
    (tmp_path / "a.txt").write_text(raw, newline="")
    (tmp_path / "b.jsonl").write_text('{"text": "lone \\ud800 surrogate"}\n{"text": null}\n')
    source = documents.open_documents(tmp_path)
    assert [text for _, text in source.pieces()] == ["ab\nnew\nline\npage", "second", "lone  surrogate"]
    assert source.counts == documents.ReadingCounts(documents=3, pieces=3, empty=2, control_characters=5)


def test_pieces_of_a_long_document_stay_in_one_split(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 200)
    book = "\n".join(f"line {i} of the long book" for i in range(400))
    (tmp_path / "a.txt").write_text("\n\n".join([book, *ARTICLES]))
    for n in (1, 5, 15):
        prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", validation=n)
        sides = [any("long book" in t for t in texts(prepared, tokenizer, half)) for half in ("train", "validation")]
        assert sum(sides) == 1
    joined = "".join(
        t for half in ("train", "validation") for t in texts(prepared, tokenizer, half) if "long book" in t
    )
    assert joined.replace("\n", "") == book.replace("\n", "")


def test_cut_loses_nothing_and_prefers_line_ends():
    text = "first line here\nsecond line here\nthird"
    assert list(cut(text, 20)) == ["first line here", "\nsecond line here", "\nthird"]
    assert "".join(cut("x" * 95, 20)) == "x" * 95
    assert max(map(len, cut("word " * 50, 20))) <= 20


BAD = {
    "missing.txt": (None, r"missing\.txt: no such file"),
    "a.docx": (b"x", r"a\.docx: unsupported format"),
    "empty.txt": (b" \n\n\n", r"empty\.txt is empty"),
    "latin.txt": ("one\ntwo\n\nthree\ncafé\n".encode("latin-1"), r"latin\.txt, line 5: not UTF-8 \(byte 0xe9\)"),
    "broken.jsonl": (b'{"text": "a"}\n\n{"text": \n', r"broken\.jsonl, line 3: not a JSON row"),
    "field.jsonl": (b'{"text": "a"}\n{"body": "b"}\n', r"field\.jsonl, line 2: no field 'text'; it has 'body'"),
    "list.jsonl": (b"[1]\n", r"list\.jsonl, line 1: expected an object"),
    "number.jsonl": (b'{"text": 3}\n', r"number\.jsonl, line 1: field 'text' holds int"),
    "cut.txt.xz": (
        lzma.compress(TEXT.encode() * 9)[:-40],
        r"cut\.txt\.xz: the compressed file is damaged or cut short",
    ),
    "cut.txt.gz": (
        gzip.compress(TEXT.encode() * 9)[:-40],
        r"cut\.txt\.gz: the compressed file is damaged or cut short",
    ),
    "no.parquet": (b"PAR1 not really", r"no\.parquet: not a readable Parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_file_and_the_line(tmp_path, tokenizer, name):
    content, message = BAD[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / name, tokenizer, tmp_path / "out")


def test_cut_short_zst_and_absent_parquet_column(tmp_path, tokenizer):
    path = write(tmp_path, "a.jsonl.zst")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"a\.jsonl\.zst: the compressed file is damaged or cut short"):
        prepare(path, tokenizer, tmp_path / "out")
    with pytest.raises(ValueError, match=r"a\.parquet: no column 'body'; it has text, id"):
        prepare(write(tmp_path, "a.parquet"), tokenizer, tmp_path / "out2", text_field="body")


@pytest.mark.parametrize(
    "options", [{"validation": 1.5}, {"validation": -1}, {"language": "de"}, {"validation": 10_000}]
)
def test_bad_options(tmp_path, tokenizer, options):
    with pytest.raises(ValueError, match=r"validation|language"):
        prepare(write(tmp_path, "a.txt"), tokenizer, tmp_path / "out", **options)


# ------------------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("make", [byte_level, wordpiece, sentencepiece_like])
def test_tokens_are_the_tokenizers_own(tmp_path, make):
    tokenizer = make()
    prepared = prepare(write(tmp_path, "a.txt"), tokenizer, tmp_path / "out", validation=0)
    for i, article in enumerate(ARTICLES):
        ids, _ = prepared.train.document(i)
        assert ids.tolist() == tokenizer(article, add_special_tokens=False)["input_ids"]
    assert prepared.train.tokens == sum(len(prepared.train.document(i)[0]) for i in range(len(ARTICLES)))


@pytest.mark.parametrize("make", [byte_level, wordpiece, sentencepiece_like])
def test_word_starts_are_where_words_start(tmp_path, make):
    tokenizer = make()
    text = "The unbelievably (long-winded) philosophers weren't amused; 1994 was better.\nNext paragraph"
    (tmp_path / "a.txt").write_text(text)
    prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", validation=0)
    ids, starts = prepared.train.document(0)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    words = {m.start() for m in re.finditer(r"\w+|[^\w\s]", text)}
    first = [a + len(text[a:b]) - len(text[a:b].lstrip()) for a, b in encoding["offset_mapping"]]
    blank = [not text[a:b].strip() for a, b in encoding["offset_mapping"]]
    assert sum(starts) < len(starts)
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    for k, piece in enumerate(pieces):
        if not blank[k]:
            # "▁" on its own opens the word that the next piece goes on with
            opened_by_marker = k > 0 and pieces[k - 1] in ("▁", "Ġ") and text[first[k]].isalnum()
            assert starts[k] == (first[k] in words and not opened_by_marker), (k, piece)


def test_special_tokens_in_the_text_become_text_or_are_dropped(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("a [MASK] b [SEP] c [CLS]")
    for make in (byte_level, sentencepiece_like):
        tokenizer = make()
        prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / make.__name__, validation=0)
        assert not np.isin(prepared.train.document(0)[0], [0, 1, 2, tokenizer.mask_token_id]).any()


def test_tokenizer_settings_do_not_leak(tmp_path):
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    prepared = prepare(write(tmp_path, "a.txt"), tokenizer, tmp_path / "out", validation=0)
    assert texts(prepared, tokenizer) == ARTICLES


def test_validation_is_held_out_by_content(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n\n".join(ARTICLES + ARTICLES[:20]))
    (tmp_path / "b.txt").write_text("\n\n".join(reversed(ARTICLES)))
    prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "a", validation=7)
    train, held_out = set(texts(prepared, tokenizer)), set(texts(prepared, tokenizer, "validation"))
    assert len(held_out) == 7
    assert not train & held_out
    assert train | held_out == set(ARTICLES)
    other_order = prepare(tmp_path / "b.txt", tokenizer, tmp_path / "b", validation=7)
    assert set(texts(other_order, tokenizer, "validation")) == held_out
    share = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "a", validation=0.25)
    assert len(set(texts(share, tokenizer, "validation"))) == round(0.25 * len(ARTICLES))


def test_shards_are_small_typed_and_add_up(tmp_path, tokenizer):
    one = prepare(write(tmp_path, "a.txt"), tokenizer, tmp_path / "one")
    many = prepare(write(tmp_path, "a.txt"), tokenizer, tmp_path / "many", max_shard_tokens=300)
    assert len(one.manifest["shards"]) == 1
    assert len(many.manifest["shards"]) > 5
    assert everything(one) == everything(many)
    assert np.load(tmp_path / "one/shard-00000/tokens.npy").dtype == np.uint16


def test_open_shards_stay_bounded(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("debertakit.text.shards.OPEN_SHARDS", 2)
    prepared = prepare(write(tmp_path, "a.txt"), tokenizer, tmp_path / "out", max_shard_tokens=300, validation=0)
    assert texts(prepared, tokenizer) == ARTICLES
    assert len(prepared.train._files._open) <= 2


# ------------------------------------------------------------------------------------------------- reuse and recovery


def stamps(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*.npy")}


def test_second_run_reuses_and_content_decides(tmp_path, tokenizer, monkeypatch):
    path = write(tmp_path, "a.txt")
    prepare(path, tokenizer, tmp_path / "out")
    before = stamps(tmp_path)
    os.utime(path)  # touched, same content
    prepare(path, tokenizer, tmp_path / "out")
    assert stamps(tmp_path) == before
    with monkeypatch.context() as patch:  # unchanged size and time: not even read
        patch.setattr(corpus, "file_hash", lambda path, algorithm: pytest.fail(f"hashed {path} again"))
        prepare(path, tokenizer, tmp_path / "out")
    assert stamps(tmp_path) == before
    path.write_text(TEXT.replace("river", "RIVER"))  # the same size
    with pytest.raises(ValueError, match="made from other inputs"):
        prepare(path, tokenizer, tmp_path / "out")
    prepared = prepare(path, tokenizer, tmp_path / "out", overwrite=True, validation=0)
    assert any("RIVER" in text for text in texts(prepared, tokenizer))


def test_other_tokenizer_or_options_are_refused(tmp_path, tokenizer):
    path = write(tmp_path, "a.txt")
    prepare(path, tokenizer, tmp_path / "out")
    with pytest.raises(ValueError, match="made from other tokenizer and vocabulary"):
        prepare(path, wordpiece(), tmp_path / "out")
    with pytest.raises(ValueError, match="made from other options"):
        prepare(path, tokenizer, tmp_path / "out", txt_document="line")


KILLED = """
import sys, time
from pathlib import Path
from debertakit.files import temporary_path
from debertakit.text import corpus
from tests.text.material import byte_level

write_shard = corpus.write_shard
def slowly(folder, number, arrays, counts):
    if number == int(sys.argv[3]):  # half a shard on disk, then wait for the kill
        half = temporary_path(folder / f"shard-{number:05d}")
        half.mkdir()
        (half / "tokens.npy").write_bytes(b"half")
        print("ready", flush=True)
        time.sleep(60)
    return write_shard(folder, number, arrays, counts)
corpus.write_shard = slowly
corpus.prepare(sys.argv[1], byte_level(), sys.argv[2], max_shard_tokens=300)
"""


@pytest.mark.slow
def test_a_killed_preparation_resumes(tmp_path, tokenizer):
    path = write(tmp_path, "a.txt.xz")
    whole = prepare(path, tokenizer, tmp_path / "whole", max_shard_tokens=300)
    command = [sys.executable, "-c", KILLED, str(path), str(tmp_path / "out"), "3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(ValueError, match="interrupted"):
        Corpus.open(tmp_path / "out")
    finished = stamps(tmp_path / "out" / "shard-00000") | stamps(tmp_path / "out" / "shard-00002")
    assert finished
    resumed = prepare(path, tokenizer, tmp_path / "out", max_shard_tokens=300)
    assert everything(resumed) == everything(whole)
    assert resumed.manifest["counts"] == whole.manifest["counts"]
    assert finished.items() <= stamps(tmp_path / "out").items()
    assert not list((tmp_path / "out").glob("*.part"))


@pytest.mark.slow
def test_a_second_preparation_waits_for_the_first(tmp_path, tokenizer):
    out = tmp_path / "out"
    out.mkdir()
    second = threading.Thread(target=prepare, args=(write(tmp_path, "a.txt"), tokenizer, out))
    with locked(out):
        second.start()
        second.join(0.5)
        assert second.is_alive()
        assert not (out / "manifest.json").exists()
    second.join(60)
    assert Corpus.open(out).train.tokens


@pytest.mark.parametrize("name", ["tokens", "words", "offsets", "hashes"])
def test_truncated_shard_is_named_and_rebuilt(tmp_path, tokenizer, name):
    path = write(tmp_path, "a.txt")
    whole = everything(prepare(path, tokenizer, tmp_path / "out", max_shard_tokens=300))
    victim = tmp_path / "out" / "shard-00002" / f"{name}.npy"
    victim.write_bytes(victim.read_bytes()[:-8])
    with pytest.raises(ValueError, match=rf"shard-00002/{name}\.npy: \d+ bytes, \d+ were written"):
        Corpus.open(tmp_path / "out")
    assert everything(prepare(path, tokenizer, tmp_path / "out", max_shard_tokens=300)) == whole


def test_flipped_bit_is_found_by_verify(tmp_path, tokenizer):
    prepared = prepare(write(tmp_path, "a.txt"), tokenizer, tmp_path / "out")
    prepared.verify()
    victim = tmp_path / "out" / "shard-00000" / "tokens.npy"
    raw = bytearray(victim.read_bytes())
    raw[-1] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(ValueError, match=r"tokens\.npy: its content has changed"):
        Corpus.open(tmp_path / "out").verify()


@pytest.mark.parametrize("name", ["tokens", "words", "offsets", "hashes"])
def test_flipped_bit_is_named_and_rebuilt(tmp_path, tokenizer, name, capsys):
    path = write(tmp_path, "a.txt")
    whole = everything(prepare(path, tokenizer, tmp_path / "out", max_shard_tokens=300))
    victim = tmp_path / "out" / "shard-00002" / f"{name}.npy"
    raw = bytearray(victim.read_bytes())
    raw[-1] ^= 1
    victim.write_bytes(raw)
    assert everything(prepare(path, tokenizer, tmp_path / "out", max_shard_tokens=300)) == whole
    assert (
        f"shard-00002/{name}.npy: its content has changed since it was written; rebuilding" in capsys.readouterr().err
    )


def test_shards_that_an_interrupted_run_left_are_removed(tmp_path, tokenizer):
    path, out = write(tmp_path, "a.txt"), tmp_path / "out"
    prepare(path, tokenizer, out, max_shard_tokens=300)
    manifest = read_manifest(out)
    count = len(manifest["shards"])
    strays = [out / f"shard-{count:05d}", out / f"shard-{count + 3:05d}.part", out / "shard-00001.old.part"]
    strays.append(out / f"shard-{count:05d}.partial")  # of version 1
    for stray in strays:
        stray.mkdir()
        (stray / "tokens.npy").touch()
    prepare(path, tokenizer, out, max_shard_tokens=300)
    assert not any(stray.exists() for stray in strays)
    assert len(list(out.glob("shard-*"))) == count


def test_folders_that_are_not_its_own_stay(tmp_path, tokenizer):
    path, out = write(tmp_path, "a.txt"), tmp_path / "out"
    mine = [out / "shard-00001", out / "shard-of-pottery"]
    for folder in mine:
        folder.mkdir(parents=True)
        (folder / "notes.txt").touch()
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="shard-00001 is not part of a corpus that was prepared here"):
            prepare(path, tokenizer, out, overwrite=overwrite)
    assert sorted(file.name for file in out.iterdir() if file.name != ".lock") == [folder.name for folder in mine]
    mine[0].rename(out / "saved")
    prepare(path, tokenizer, out, max_shard_tokens=300)
    (out / "shard-00002" / "notes.txt").touch()
    with pytest.raises(ValueError, match="shard-00002 is not part of"):
        prepare(path, tokenizer, out, txt_document="line", overwrite=True)
    assert (mine[1] / "notes.txt").exists()


def test_a_changed_manifest_is_refused(tmp_path, tokenizer):
    out = tmp_path / "out"
    prepare(write(tmp_path, "a.txt"), tokenizer, out)
    path = out / "manifest.json"
    path.write_text(path.read_text().replace('"validation": 0.05', '"validation": 0.15'))
    with pytest.raises(ValueError, match=r"manifest\.json: its content has changed"):
        Corpus.open(out)


def test_deep_json_in_a_corpus_is_named(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two", "x": ' + "[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: not a JSON row \(nested too deeply\)"):
        prepare(path, tokenizer, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "not a prepared corpus"), ("{", "unreadable"), ("{}", "format 1")]
)
def test_bad_manifest(tmp_path, content, message):
    if content:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Corpus.open(tmp_path)


# ------------------------------------------------------------------------------------------------ Chinese and entities


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, wordpiece])
@pytest.mark.parametrize("workers", [1, 2])
def test_chinese_words_come_from_jieba(tmp_path, make, workers):
    pytest.importorskip("rjieba")
    (tmp_path / "a.txt").write_text("\n\n".join(CHINESE))
    tokenizer = make()
    prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", validation=0, workers=workers)
    assert prepared.manifest["language"] == "zh"
    text = CHINESE[0]
    assert text.startswith("北京大学是")
    _, starts = prepared.train.document(0)
    offsets = np.array(tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"])
    at = offsets[starts, 0]
    assert 4 in at  # 是
    assert not {1, 2, 3} & set(at.tolist())  # 北京大学 is one word
    assert len(set(at.tolist())) == len(at)  # a character in several tokens begins one word


@pytest.mark.parametrize("text", [*CHINESE, "  New York,\n\n 北京 2008  ï é́ 𠀀字", "  ", "a"])
def test_pieces_tell_where_tokens_begin_without_offsets(text):
    backend = byte_level().backend_tokenizer
    encoding = backend.encode(text, add_special_tokens=False)
    first = boundaries.first_characters(text, np.array(encoding.ids), boundaries.piece_bytes(backend))
    assert first.tolist() == [start for start, _ in encoding.offsets]


def test_pieces_that_are_not_the_text_fall_back_to_offsets():
    backend = byte_level().backend_tokenizer
    assert boundaries.piece_bytes(wordpiece().backend_tokenizer) is None
    assert boundaries.piece_bytes(sentencepiece_like().backend_tokenizer) is None
    pieces = boundaries.piece_bytes(backend)
    assert boundaries.first_characters("北京", np.array(backend.encode("北").ids), pieces) is None
    assert boundaries.first_characters("", np.array([], np.int64), pieces) is None


def test_chinese_without_jieba(tmp_path, tokenizer, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    (tmp_path / "a.txt").write_text("\n\n".join(CHINESE))
    with pytest.raises(ValueError, match=r"pip install .*\[zh\]'"):
        prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", language="zh")
    prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out2", validation=0)
    assert prepared.manifest["language"] == "en"
    assert "[zh]" in capsys.readouterr().err


def test_a_chinese_character_in_bytes_is_a_word_without_jieba():
    tokenizer = byte_level()
    ids = np.array(tokenizer("I like 北京大学 very much", add_special_tokens=False)["input_ids"])
    starts = boundaries.word_starts(ids, boundaries.word_tables(tokenizer.backend_tokenizer))
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    chinese = [i for i, piece in enumerate(pieces) if piece.startswith(("å", "ä"))]  # 0xE5 and 0xE4 of GPT-2's alphabet
    assert len(chinese) == 4
    assert starts[chinese].all()
    assert starts.sum() < len(ids) - 4


def test_a_document_without_tokens(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("the king\n\n[SEP]\n\nthe river", encoding="utf-8")
    prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", validation=0)
    lengths = [len(prepared.train.document(i)[0]) for i in range(len(prepared.train))]
    assert sum(lengths) == prepared.train.tokens


def test_a_preparation_that_failed_at_once_can_be_repeated(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"text": "the king"}\n{broken\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2"):
        prepare(tmp_path / "a.jsonl", tokenizer, tmp_path / "out", validation=0)
    (tmp_path / "a.jsonl").write_text('{"text": "the king"}\n', encoding="utf-8")
    assert prepare(tmp_path / "a.jsonl", tokenizer, tmp_path / "out", validation=0).train.tokens


@pytest.mark.parametrize("kind", ["gazetteer", "function"])
def test_entities_are_marked(tmp_path, tokenizer, kind):
    (tmp_path / "a.txt").write_text("She moved from New York City to York.\n\nNew Yorkers live in New York.")
    (tmp_path / "places").write_text("New York\nNew York City\n")
    find = {
        "gazetteer": tmp_path / "places",
        "function": lambda text: [m.span() for m in re.finditer("New York( City)?\\b", text)],
    }
    prepared = prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", validation=0, entities=find[kind])
    found = []
    for i in range(2):
        shards = prepared.train
        ids, _, inside = shards.take(shards.ends[i : i + 1], shards.ends[i + 1 : i + 2])
        runs = np.split(ids, np.flatnonzero(~inside))
        found += [tokenizer.decode(run).strip() for run in runs if len(run) > 1]
    assert found == ["New York City", "New York"]


def test_gazetteer_matching(tmp_path):
    (tmp_path / "g").write_text("Rio\nRio de Janeiro\n北京\n北京大学\n《红楼梦》\n.NET\n")
    text = "Rio de Janeiro, Rioja, Rio! 我在北京大学和北京 NET .NET 《红楼梦》"
    assert [text[a:b] for a, b in boundaries.Gazetteer(tmp_path / "g")(text)] == [
        "Rio de Janeiro",
        "Rio",
        "北京大学",
        "北京",
        ".NET",
        "《红楼梦》",
    ]
    for content in ("\n\n", None):
        bad = tmp_path / "bad"
        if content:
            bad.write_text(content)
        else:
            bad.unlink()
        with pytest.raises(ValueError, match="bad"):
            boundaries.Gazetteer(bad)


def test_a_missing_spacy_model_is_reported_before_the_work(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="python -m spacy download no_such_model"):
        prepare(write(tmp_path, "a.txt"), tokenizer, tmp_path / "out", entities="spacy:no_such_model")


def test_spacy_model_that_is_not_there():
    with pytest.raises(ValueError, match="pip install spacy && python -m spacy download no_such_model"):
        boundaries.entity_detector("spacy:no_such_model")
