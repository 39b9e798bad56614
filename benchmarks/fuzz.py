"""Try hostile inputs and count findings: exceptions that are not a user's mistake, hangs and crashes.

    python -m benchmarks.fuzz [--inputs 1000] [--seed 0] [--only NAME]

Each kind of input runs in its own process, so that a crash is a finding and not the end. An input that takes more than
60 seconds is a hang. The checks are those of tests/fuzz.py. Exit code 1 if there is a finding.
"""

import argparse
import io
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests import fuzz

SECONDS, MEMORY = 60, 16 << 30
Kind = tuple[st.SearchStrategy[Any], Callable[[Any], object]]

TASKS = ("classify", "zero-shot", "ner", "answer", "choose", "fill", "score", "embed")
LARGE = {
    "1 MB without a space": "a" * 10**6,
    "1 MB of one Chinese character": "北" * (10**6 // 3),
    "50,000 one-letter words": "a " * 50_000,
    "100,000 line ends": "\n" * 100_000 + "a",
    "20,000 combining marks": "e" + "\u0301" * 20_000,
    "20,000 bidi controls": "\u202e\u2066" * 10_000 + "a",
}
COMMANDS = ("predict", "fill", "generate", "explain", "evaluate", "finetune", "convert", "models", "pretrain")
OPTIONS = (
    "--task", "--file", "--out", "--model", "--pair", "--label", "--template", "--max-length", "--long", "--json",
    "--column", "--backend", "--top", "--train", "--text", "--data", "--split", "--set", "--seed", "--png", "--help",
)  # fmt: skip
OPCODES = [b"c", b"R", b"(", b"t", b".", b"cos\nsystem\n", b"}", b"]", b"Q", b"\x80\x04", b"\x95\xff", b"I9\n"]


class Hang(BaseException):
    pass


class Touch:
    """Creates a file if it is unpickled."""

    def __init__(self, file: str):
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.file,))


def kinds(folder: Path) -> dict[str, Kind]:
    model = fuzz.model_folder(folder / "model")
    weights = (model / "model.safetensors").read_bytes()
    buffer = io.BytesIO()
    torch.save(load_file(model / "model.safetensors"), buffer)
    place, junk = st.integers(0, 10**6), st.binary(max_size=24)
    task, tokenizer = st.sampled_from(TASKS), st.sampled_from(["words", "bytes", "unigram"])
    row = st.fixed_dictionaries({"text": fuzz.values, "b": fuzz.values})
    word = st.one_of(st.sampled_from([*OPTIONS, *TASKS, str(model), "0", "-1", "9" * 30, "nan"]), fuzz.texts)
    marker = folder / "executed"

    def edit(raw: bytes, at: int, new: bytes, cut: bool) -> bytes:
        at %= len(raw)
        return raw[:at] + new + (b"" if cut else raw[at + len(new) :])

    def json_file(value: tuple[str, int, Any]) -> object:
        name, which, new = value
        file = model / name
        content = json.loads(file.read_bytes()) if file.exists() else {"weight_map": {"a": "model.safetensors"}}
        paths = fuzz.leaves(content) or [("max_length",)]
        changed = fuzz.changed(content, paths[which % len(paths)], new)
        return fuzz.check_folder(model, name, json.dumps(changed).encode())

    def header(value: tuple[int, str, Any, int | None]) -> object:
        which, key, new, length = value

        def change(tensors: dict[str, Any]) -> None:
            names = sorted(tensors)
            entry = tensors[names[which % len(names)]]
            entry[key if key in entry else next(iter(entry))] = new

        return fuzz.check_folder(model, "model.safetensors", fuzz.safetensors_bytes(weights, change, length))

    def pickled(raw: bytes) -> object:
        said = fuzz.check_folder(model, "pytorch_model.bin", raw)
        assert not marker.exists(), "a pickle was executed"
        return said

    hostile = st.sampled_from([pickle.dumps(Touch(str(marker)), protocol) for protocol in range(6)])
    damaged = st.builds(edit, st.just(buffer.getvalue()), place, junk, st.booleans())
    return {
        "texts": (
            st.tuples(task, tokenizer, fuzz.texts, fuzz.texts, st.sampled_from([None, 8, 9, 13, 64])),
            lambda value: fuzz.check_texts(*value),
        ),
        "large texts": (
            st.tuples(task, tokenizer, st.sampled_from(sorted(LARGE)), st.booleans()),
            lambda v: fuzz.check_texts(v[0], v[1], *((LARGE[v[2]], "a cat") if v[3] else ("a cat", LARGE[v[2]]))),
        ),
        "datasets": (
            st.tuples(
                st.sampled_from([".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet"]),
                st.lists(row, max_size=6), junk, place, st.sampled_from([".jsonl", ".csv", ".tsv", ".parquet"]),
            ),
            lambda v: fuzz.check_file(folder, v[0], fuzz.table_bytes(*v[:4]), v[4]),
        ),
        "json files": (st.tuples(st.sampled_from(fuzz.JSON_FILES), place, fuzz.sizes), json_file),
        "safetensors headers": (
            st.tuples(place, st.sampled_from(["dtype", "shape", "data_offsets"]), fuzz.sizes,
                      st.one_of(st.none(), st.integers(0, 2**64 - 1))),
            header,
        ),
        "safetensors bytes": (
            st.builds(edit, st.just(weights), place, junk, st.booleans()),
            lambda raw: fuzz.check_folder(model, "model.safetensors", raw),
        ),
        "pickles": (st.one_of(damaged, hostile, st.lists(st.sampled_from(OPCODES)).map(b"".join)), pickled),
        "command lines": (
            st.tuples(st.sampled_from(COMMANDS), st.lists(word, max_size=7)),
            lambda value: fuzz.check_command([value[0], *value[1]]),
        ),
    }  # fmt: skip


def explore(kind: Kind, inputs: int, number: int) -> dict[str, Any]:
    """Try ``inputs`` inputs. Findings are grouped by exception and place; one example is kept for each."""
    strategy, check = kind
    count, slowest, found = 0, 0.0, dict[str, str]()

    @seed(number)
    @settings(max_examples=inputs, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def run(value: Any) -> None:
        nonlocal count, slowest
        count, began = count + 1, time.perf_counter()
        signal.alarm(SECONDS)
        try:
            check(value)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            trace, where = error.__traceback__, ""
            while trace is not None:
                code = trace.tb_frame.f_code
                if "debertakit" in code.co_filename:
                    where = f"{Path(code.co_filename).name}:{trace.tb_lineno}"
                trace = trace.tb_next
            found.setdefault(f"{type(error).__name__} at {where}: {str(error)[:80]}", repr(value)[:600])
        finally:
            signal.alarm(0)
        slowest = max(slowest, time.perf_counter() - began)

    run()
    return {"inputs": count, "slowest": round(slowest, 1), "findings": found}


def one_kind(name: str, inputs: int, number: int) -> None:
    def stop(*_: object) -> None:
        raise Hang(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        result = explore(kinds(Path(folder))[name], inputs, number)
        os.chdir("/")
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000, help="Inputs of each kind; large texts: a tenth.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="One kind of input.")
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        return one_kind(arguments.kind, arguments.inputs, arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        names = list(kinds(Path(folder)))
    total = findings = 0
    for name in names if arguments.only is None else [arguments.only]:
        inputs = arguments.inputs // 10 if name == "large texts" else arguments.inputs
        command = [sys.executable, "-m", "benchmarks.fuzz", "--kind", name, "--inputs", str(inputs)]
        ended = subprocess.run([*command, "--seed", str(arguments.seed)], capture_output=True, text=True, check=False)
        if ended.returncode:
            result = {"inputs": 0, "slowest": 0, "findings": {f"code {ended.returncode}": ended.stderr[-1500:]}}
        else:
            result = json.loads(ended.stdout.splitlines()[-1])
        total, findings = total + result["inputs"], findings + len(result["findings"])
        print(f"{name}: {result['inputs']:,} inputs, slowest {result['slowest']} s, {len(result['findings'])} findings")
        for finding, example in result["findings"].items():
            print(f"  {finding}\n    {example}", flush=True)
    print(f"{total:,} inputs, {findings} findings", flush=True)
    sys.exit(findings > 0)


if __name__ == "__main__":
    main()
