"""Ten mistakes of newcomers. Each is answered in under a second, before torch is imported, with one helpful line."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from debertakit.cli.names import recipe_names
from debertakit.pretraining.recipes import RECIPES

MISTAKES = {
    "a mistyped command": (("fintune", "my.csv"), "no such command 'fintune'. Did you mean 'finetune'?"),
    "a mistyped option": (("finetune", "my.csv", "--epoch", "3"), "no such option: --epoch; did you mean --epochs?"),
    "a word for a number": (("finetune", "my.csv", "--epochs", "three"), "invalid value for '--epochs'"),
    "a mistyped file": (("finetune", "my.cvs"), "my.cvs: no such file (did you mean 'my.csv'"),
    "a mistyped column": (
        ("finetune", "my.csv", "--text", "reveiw"),
        "my.csv: no column 'reveiw'; it has 'review', 'stars' (did you mean 'review'?)",
    ),
    "no label": (("finetune", "new.csv"), "new.csv: cannot tell which column is the label: pass --label NAME"),
    "a spreadsheet saved as UTF-16": (("finetune", "utf16.csv"), "utf16.csv: not UTF-8 text (UTF-16"),
    "a folder that has a run": (
        ("finetune", "my.csv", "--model", "my-model", "--out", "my-model"),
        "my-model already contains a run. Use --resume to continue it, or choose another --out.",
    ),
    "prompts that would be replaced": (
        ("generate", "--model", "my-model", "--file", "text.txt", "--out", "text.txt"),
        "text.txt already exists; choose another name or remove it",
    ),
    "a mistyped model": (("predict", "my-modle", "a fine film"), "my-modle: no such folder"),
    "the folder of several seeds": (("serve", "runs"), "runs is not a model: it has no config.json; its models are in"),
    "nothing to predict on": (("predict", "my-model"), "pass texts (deberta predict MODEL"),
    "a file to predict on that is not there": (("predict", "my-model", "neu.csv"), "neu.csv: no such file (did you"),
    "nothing to evaluate on": (("evaluate", "my-model"), "pass a file with labels (deberta evaluate RUN my.csv)"),
    "two runs without --compare": (("evaluate", "my-model", "runs"), "to compare two runs, add --compare"),
    "a corpus that is not there": (
        ("pretrain", "tiny", "--corpus", "txt.txt", "--out", "x"),
        "txt.txt: no such file or folder (did you mean 'text.txt'?)",
    ),
    "a table without rows": (("finetune", "header.csv"), "header.csv: no rows below the header 'review', 'stars'"),
    "an empty file": (("finetune", "empty.csv"), "empty.csv: the file is empty"),
    "a column of texts as the label": (
        ("finetune", "my.csv", "--label", "review"),
        "my.csv: 40 different labels in 40 rows ('a film about 0', 'a film about 1', 'a film about 2'); "
        "is 'review' the right label column?",
    ),
    "an unclosed quotation mark": (
        ("finetune", "quote.csv"),
        "quote.csv, line 2: unclosed quotation mark; 1 of 3 rows cannot be used",
    ),
    "an image": (("finetune", "photo.csv"), "photo.csv: not text but an image; save the table as CSV"),
    "a document": (("finetune", "my.docx"), "my.docx: unknown kind of file; a table is one of .tsv, .csv"),
    "a mistyped bundled model": (("finetune", "my.csv", "--model", "en-smal"), "did you mean en-small?"),
    "a model that is not trained for a task": (
        ("evaluate", "masked", "my.csv"),
        "masked is not trained for a task (DebertaV2ForMaskedLM); fine-tune it first",
    ),
    "a text without a mask": (("fill", "a new mask opened"), 'write it as in "a new [MASK] opened"'),
    "nothing to explain with": (("explain", "a film"), "choose an output: --out page.html"),
    "a port that does not exist": (("serve", "my-model", "--port", "80000"), "'--port': must be at most 65535"),
    "two training files": (("finetune", "my.csv", "new.csv"), "unexpected argument: new.csv (deberta finetune --help"),
    "a broken JSON file": (("finetune", "broken.json"), "broken.json, line 1: not JSON"),
    "a word for the threads": (
        ("predict", "my-model", "a", "--threads", "two"),
        "invalid value for '--threads': not a whole number (deberta predict",
    ),
    "a mistyped recipe": (
        ("pretrain", "tinny", "--corpus", "text.txt", "--out", "x"),
        "unknown recipe 'tinny'; did you mean tiny",
    ),
    "a recipe to show": (("recipes", "show", "tinny"), "unknown recipe 'tinny'; did you mean tiny"),
    "a mistyped task": (
        ("finetune", "--task", "sst", "--data", ".", "--model", "my-model"),
        "unknown task 'sst'; did you mean sst2? (deberta tasks lists all)",
    ),
    "a mistyped task to evaluate": (("evaluate", "my-model", "--task", "stts", "--data", "."), "unknown task 'stts'"),
    "a device that does not exist": (("predict", "my-model", "a", "--device", "gpu"), "choose cpu, cuda or cuda:N"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    rows = "".join(f"a film about {i},{1 + i % 5}\n" for i in range(40))
    (folder / "my.csv").write_text(f"review,stars\n{rows}")
    (folder / "utf16.csv").write_text(f"review,stars\n{rows}", encoding="utf-16")
    (folder / "new.csv").write_text("review\n" + "".join(f"a film about {i}\n" for i in range(40)))
    (folder / "text.txt").write_text("some text")
    (folder / "header.csv").write_text("review,stars\n")
    (folder / "empty.csv").touch()
    (folder / "photo.csv").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (folder / "quote.csv").write_text('review,stars\n"a bad film,1\na good film,5\na film,1\n')
    (folder / "my.docx").write_text(f"review,stars\n{rows}")
    (folder / "broken.json").write_text('[{"review": "a film", "stars":')
    for model, head in (("my-model", {}), ("runs/seed-0", {}), ("masked", {"architectures": ["DebertaV2ForMaskedLM"]})):
        (folder / model).mkdir(parents=True)
        (folder / model / "config.json").write_text(json.dumps({"model_type": "deberta-v2", **head}))
    return folder


def run_and_watch(place, *arguments):
    """Run a command that fails. Returns its line, and checks that torch was not imported and how long it took."""
    watch = "import sys; from debertakit.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    before, began = os.times(), time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", watch, *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    after, seconds = os.times(), time.monotonic() - began
    (line,) = [line for line in run.stderr.splitlines() if "guessed the columns" not in line]
    assert run.returncode == 2
    assert run.stdout.strip() == "False"  # no torch
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 1, f"{used:.2f} s of CPU, {seconds:.2f} s"
    return line


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_helpful_line_in_under_a_second(mistake, place):
    arguments, message = MISTAKES[mistake]
    line = run_and_watch(place, *arguments)
    assert line.startswith("deberta: ")
    assert message in line


def test_a_used_port_is_reported_before_torch_is_imported(place):
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        port = used.getsockname()[1]
        used.listen()
        line = run_and_watch(place, "serve", "my-model", "--port", str(port))
    assert line.endswith(f"127.0.0.1:{port}: Address already in use; another port: --port {port + 1}")


def test_the_names_of_recipes_are_those_of_the_tables():
    assert sorted(recipe_names()) == sorted(RECIPES)
