"""Hostile inputs for predictors, files, model folders and command lines. Each ``check_*`` function tries one input.

A user's mistake must be a ValueError, OSError or ImportError with a message: ``deberta`` prints these as one line. Any
other exception escapes from a ``check_*`` function and is a finding. ``benchmarks/fuzz.py`` runs the same functions for
longer.
"""

import contextlib
import copy
import io
import json
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from debertakit.inference.files import predict_file
from debertakit.inference.predictor import Predictor
from debertakit.inference.tasks import PREDICTORS, load
from debertakit.text.tokenizers import byte_level, wrap
from tests.inference import material
from tests.inference.material import LABELS, NLI, TEXTS, WORDS

MISTAKES = (ValueError, OSError, ImportError)
HEAD_FIELDS = {"classify": LABELS, "zero-shot": {"id2label": NLI, "num_labels": 3}, "score": {"num_labels": 2}}
ODD = [
    "\ud800",
    "\udfff",
    "\udc80",
    "\0",
    "\u202e",
    "\u2066",
    "\u200d",
    "\ufeff",
    "\u2028",
    "\x85",
    "\x1c",
    "\x7f",
    "\ufffe",
    "\U0010ffff",
    "e\u0301" * 30,
    "\u0301",
    "ﷺ",
    "ﬁ",
    "½",
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "\u3000",
    "İ",
    "ß",
    "北",
    "[MASK]",
    "[CLS]",
    "[SEP]",
    "[PAD]",
    "[UNK]",
    "▁",
    "##s",
    "Ġ",
    "<s>",
    "</s>",
    "\r\n",
    "\r",
    "\t",
    " ",
    "",
    '"',
    "'",
    ",",
    ";",
    "{}",
    "{",
    "\\",
    "\\u0000",
    "%s",
]

anything = st.text(st.characters(exclude_categories=()), max_size=40)
texts = st.lists(st.one_of(st.sampled_from([*ODD, *WORDS]), anything), max_size=12).map("".join)
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)


def accepted(work: Callable[[], object]) -> str:
    """Run ``work``. Return "" or the message of a user's mistake; raise any other exception."""
    try:
        work()
    except MISTAKES as error:
        return str(error).strip() or _no_message(error)
    return ""


def _no_message(error: Exception) -> str:
    raise AssertionError(f"{type(error).__name__} without a message") from error


# ------------------------------------------------------------------------------------------------------- predictors


@cache
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Words, byte-level BPE (as DeBERTa v1) and a unigram model without spaces between words (as v2 and v3)."""
    bpe, unigram = byte_level(models.BPE()), Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    bpe.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    unigram.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=60, show_progress=False, unk_token="[UNK]", special_tokens=["[UNK]"])
    )
    found = {"words": material.tokenizer(), "bytes": wrap(byte_level(bpe.model)), "unigram": wrap(unigram)}
    for each in found.values():
        each.model_max_length = 64
    return found


@cache
def predictor(task: str, tokenizer: str = "words", max_length: int | None = None, long: str | None = None) -> Any:
    cls: type[Predictor[Any]] = PREDICTORS[task]
    chosen = tokenizers()[tokenizer]
    model = material.model(cls.head, **{"vocab_size": len(chosen), **HEAD_FIELDS.get(task, {})})
    return cls(model, chosen, max_length=max_length, long=long)


def item(task: str, first: str, second: str) -> dict[str, Any]:
    """An input of a task from two texts."""
    given: dict[str, Any] = {"text": first}
    match task:
        case "zero-shot":
            given["labels"] = [second, "film"]
        case "choose":
            given["options"] = [second, first]
        case "classify" | "score":
            given["pair"] = second
        case "answer":
            given = {"question": first, "context": second}
        case "fill":
            given["text"] = f"{first}[MASK]{second}"
    return given


def check_texts(task: str, tokenizer: str, first: str, second: str, max_length: int | None = None) -> str:
    predict = predictor(task, tokenizer, max_length)
    given = item(task, first, second)
    return accepted(lambda: json.dumps(vars(predict(given)), default=vars).encode())


# ------------------------------------------------------------------------------------------------------------ files


def check_file(folder: Path, suffix: str, content: bytes, out: str = ".jsonl") -> str:
    """Predict on a file with this content. The output must have as many rows as were counted."""
    source, target = folder / f"in{suffix}", folder / f"out{out}"
    source.write_bytes(content)
    target.unlink(missing_ok=True)

    def run() -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            counts = predict_file(predictor("classify"), source, target)
        assert target.is_file()
        assert counts.rows > 0

    try:
        return accepted(run)
    finally:
        for left in folder.glob("out*.parts/*"):
            left.unlink()
        for left in folder.glob("out*.parts"):
            left.rmdir()


def table_bytes(suffix: str, rows: list[dict[str, Any]], junk: bytes, cut: int) -> bytes:
    """A table with hostile cells, and with ``junk`` in the place ``cut``."""
    if suffix == ".txt":
        body = "\n".join(str(row.get("text")) for row in rows)
    elif suffix in (".csv", ".tsv"):
        between = "," if suffix == ".csv" else "\t"
        body = "\n".join([f"text{between}b", *(between.join(map(str, row.values())) for row in rows)])
    elif suffix == ".jsonl":
        body = "\n".join(json.dumps(row) for row in rows)
    else:
        body = json.dumps(rows)
    raw = body.encode("utf-8", "surrogatepass")
    cut = cut % (len(raw) + 1)
    return raw[:cut] + junk + raw[cut:]


# ---------------------------------------------------------------------------------------------------- model folders


def model_folder(folder: Path) -> Path:
    return material.saved(folder, "SequenceClassification", **LABELS)


JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "task.json", "model.safetensors.index.json")
sizes = st.one_of(
    st.sampled_from([0, -1, -(2**31), 2**31, 2**63, 10**9, 10**30, 1.5, True, None, "8", [8], {}]),
    st.integers(),
    values,
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a JSON value; long lists and dicts only in part."""
    found = [path] if path else []
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, inner in items[:60]:
        found += leaves(inner, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = new
    return value


def safetensors_bytes(raw: bytes, change: Callable[[dict[str, Any]], object], length: int | None = None) -> bytes:
    """A safetensors file with a changed header, and with a wrong ``length`` of it."""
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    made = change(header)
    written = json.dumps(header if made is None else made).encode()
    return struct.pack("<Q", len(written) if length is None else length) + written + raw[8 + size :]


def check_folder(folder: Path, file: str, content: bytes) -> str:
    """Load a model of which one file was replaced, and predict with it. The folder is as before at the end."""
    path = folder / file
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(content)
    hidden = folder / "model.safetensors"
    weights = hidden.read_bytes()
    if file.startswith(("pytorch_model", "model.safetensors.index")):
        hidden.unlink()
    try:
        return accepted(lambda: load(folder)("the cat sees a dog"))
    finally:
        hidden.write_bytes(weights if path != hidden or before is None else before)
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(before)


# ---------------------------------------------------------------------------------------------------- command lines


def check_command(arguments: list[str]) -> tuple[int, str]:
    """Run ``deberta`` in this process. Returns the exit code (0 or 2) and stderr, which is short and no traceback."""
    from debertakit.cli import main

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    code = 0
    with mock.patch.object(sys, "argv", ["deberta", *arguments]), mock.patch.object(sys, "stdout", out):  # noqa: SIM117
        with mock.patch.object(sys, "stderr", err):
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
            err.flush()
            said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert code in (0, 2), (code, arguments, said)
    assert "Traceback" not in said
    assert code == 0 or (said.strip() and len(said) < 5000), said
    return code, said
