"""Hostile inputs: regressions, and a few hundred generated ones. ``benchmarks/fuzz.py`` tries thousands."""

import json
import pickle
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import fuzz

TASKS = ("classify", "zero-shot", "ner", "answer", "choose", "fill", "score", "embed")
few = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fuzz.model_folder(tmp_path_factory.mktemp("fuzz") / "model")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("text", ["\ud800", "a \udc80 cat"])
def test_lone_surrogates_are_refused(task, text):
    assert "not valid Unicode" in fuzz.check_texts(task, "words", text, "a cat")
    assert "not valid Unicode" in fuzz.check_texts(task, "bytes", "a cat", text) or task in ("ner", "embed")


@few
@given(st.sampled_from(TASKS), st.sampled_from(["words", "bytes", "unigram"]), fuzz.texts, fuzz.texts)
def test_any_text(task, tokenizer, first, second):
    fuzz.check_texts(task, tokenizer, first, second, 13)


@pytest.mark.parametrize("task", ["classify", "answer", "score", "choose"])
def test_the_shortest_length_with_a_long_pair(task):
    fuzz.check_texts(task, "words", "cat " * 40, "dog " * 40, 8)


def test_many_words():
    assert fuzz.check_texts("ner", "words", "a " * 20_000, "") == ""


@few
@given(
    st.sampled_from([".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet"]),
    st.lists(st.fixed_dictionaries({"text": fuzz.values, "b": fuzz.values}), max_size=4),
    st.binary(max_size=12),
    st.integers(0, 10**6),
    st.sampled_from([".jsonl", ".csv", ".parquet"]),
)
def test_any_dataset(tmp_path, suffix, rows, junk, cut, out):
    fuzz.check_file(tmp_path, suffix, fuzz.table_bytes(suffix, rows, junk, cut), out)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"text": ' * 50_000])
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_deep_json(tmp_path, suffix, content):
    assert fuzz.check_file(tmp_path, suffix, content)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -1),
        ("hidden_size", "8"),
        ("num_attention_heads", 0),
        ("num_hidden_layers", None),
        ("vocab_size", 2**63),
        ("pad_token_id", 10**9),
        ("id2label", [1]),
        ("pos_att_type", {"a": 1}),
        ("model_type", ["deberta"]),
    ],
)
def test_wrong_values_in_a_config_are_one_line(folder, field, value):
    config = json.loads((folder / "config.json").read_bytes())
    assert fuzz.check_folder(folder, "config.json", json.dumps({**config, field: value}).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "task.json"])
def test_broken_json_files_are_one_line(folder, file, content):
    fuzz.check_folder(folder, file, content)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_wrong_lengths_of_a_safetensors_header(folder, length):
    raw = (folder / "model.safetensors").read_bytes()
    changed = fuzz.safetensors_bytes(raw, lambda header: None, length)
    assert "model.safetensors" in fuzz.check_folder(folder, "model.safetensors", changed)


@pytest.mark.parametrize(
    ("key", "value"),
    [("dtype", "F128"), ("dtype", "I64"), ("shape", [2**40, 2**40]), ("shape", [-1]), ("data_offsets", [8, 0])],
)
def test_wrong_entries_of_a_safetensors_header(folder, key, value):
    raw = (folder / "model.safetensors").read_bytes()

    def change(header):
        header[next(name for name in header if name != "__metadata__")][key] = value

    assert fuzz.check_folder(folder, "model.safetensors", fuzz.safetensors_bytes(raw, change))


@pytest.mark.parametrize("content", [b"", b"PK\3\4", pickle.dumps({"a": print}), struct.pack("<Q", 2**63)])
def test_broken_pickles_are_one_line(folder, content):
    assert "pytorch_model.bin" in fuzz.check_folder(folder, "pytorch_model.bin", content)


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "\udcff"],
        ["predict", "nowhere", "\ud800"],
        ["predict", "\0"],
        ["fill", "a \udcff [MASK]", "--model", "nowhere"],
        ["generate", "\udcff", "--model", "nowhere"],
        ["explain", "a", "--model", "", "--out", ""],
        ["predict", "", "--max-length", "9" * 30],
        ["\udcff"],
    ],
)
def test_command_lines(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fuzz.check_command(words)[0] == 2
