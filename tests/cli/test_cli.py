"""Run the command as a user does: in a subprocess, or in this process if a subprocess would test nothing more."""

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys

import pytest
import torch
import typer

from debertakit.cli import base
from debertakit.config import PRESETS
from debertakit.heads import DebertaForMaskedLM
from tests.models import small


def deberta(*arguments, code=0):
    run = subprocess.run([sys.executable, "-m", "debertakit.cli", *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    return run


def mistake(*arguments):
    """The one line about the user's mistake. On a busy machine progress lines ("starting: 2 s") may come before it."""
    lines = deberta(*arguments, code=2).stderr.splitlines()
    (line,) = [line for line in lines if not re.fullmatch(r"starting: \d+ s", line)]
    assert line.startswith("deberta: ")
    return line


@pytest.fixture
def within(monkeypatch, capfd):
    """Run the command in this process."""

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["deberta", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            base.main()
        assert stop.value.code == code
        return capfd.readouterr()

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from debertakit.text.tokenizer_training import train_tokenizer

    folder, text = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("a new store opened beside the new mall\n" * 30, encoding="utf-8")
    deberta("tokenizer", "train", text, "--kind", "wordpiece", "--vocab-size", 60, "--out", folder)
    tokenizer = train_tokenizer([text], kind="wordpiece", vocab_size=60)
    torch.manual_seed(0)
    DebertaForMaskedLM(small(vocab_size=len(tokenizer))).save_pretrained(folder)
    return folder


def test_help_is_quick_and_imports_no_torch():
    before = os.times()
    shown = deberta("--help").stdout
    after = os.times()
    assert "verify" in shown
    # CPU seconds, 0.3 on a quiet laptop; torch alone takes several
    assert after.children_user + after.children_system - before.children_user - before.children_system < 3
    slow = "{'torch', 'transformers', 'numpy', 'tokenizers'}"
    code = f"import sys, debertakit.cli; print(sorted({slow} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_command_has_help_for_every_option():
    """Help texts are the docstrings of dataclass fields: one that is missing would leave a blank."""
    root = typer.main.get_command(base.app)
    commands = [(name, command) for name, command in root.commands.items() if not hasattr(command, "commands")]
    assert {"predict", "finetune", "evaluate", "serve", "generate", "explain", "pretrain"} <= {n for n, _ in commands}
    for name, command in commands:
        assert command.help, name
        assert all(option.help for option in command.params), (name, [o.name for o in command.params if not o.help])


def test_an_option_is_a_flag_in_every_command_or_in_none():
    """A user who knows --json from one command must not have to give it a file in another."""
    root = typer.main.get_command(base.app)
    groups = [root, *(command for command in root.commands.values() if hasattr(command, "commands"))]
    options = [option for group in groups for command in group.commands.values() for option in command.params]
    flags = {option.opts[0] for option in options if getattr(option, "is_flag", False)}
    assert "--json" in flags
    assert not flags & {option.opts[0] for option in options if not getattr(option, "is_flag", False)}


def test_defaults_of_the_command_line_are_those_of_python():
    from debertakit.inference import options
    from debertakit.inference.fill import MaskFiller
    from debertakit.inference.onnx import export_onnx
    from debertakit.inference.tasks import PREDICTORS, load

    for function, cls in (
        (load, options.LoadOptions),
        (PREDICTORS["zero-shot"].__init__, options.ZeroShotOptions),
        (MaskFiller.__init__, options.FillOptions),
        (export_onnx, options.ExportOptions),
    ):
        parameters = inspect.signature(function).parameters
        shared = [field for field in dataclasses.fields(cls) if field.name in parameters]
        assert shared
        assert [parameters[field.name].default for field in shared] == [field.default for field in shared]


def test_models_lists_the_published_counts(within):
    shown = within("models").out
    assert all(name in shown for name in PRESETS)
    published = {"deberta-base": "138.6", "deberta-v3-xsmall": "70.7", "deberta-v2-xxlarge": "1,564.5"}
    for name, total in published.items():
        assert total in next(line for line in shown.splitlines() if name in line)


@pytest.mark.slow
def test_verify_writes_its_figures(tmp_path, within):
    shown = within("verify", "--variant", "deberta-v3-xsmall", "--out", tmp_path / "v.json").out
    assert "deberta-v3-xsmall" in shown
    (row,) = json.loads((tmp_path / "v.json").read_text())
    assert row["passed"]
    assert row["hidden"] <= 1e-5


@pytest.mark.slow
def test_fill(model):
    lines = deberta("fill", "a new [MASK] opened", "--model", model, "--top", 3).stdout.splitlines()
    assert len(lines) == 3
    assert "%" in lines[0]


@pytest.mark.slow
def test_a_mistake_is_one_line_and_code_2():
    assert "/nowhere/at-all" in mistake("fill", "a new [MASK]", "--model", "/nowhere/at-all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "--variant", "deberta-v9"), "unknown preset"),
        (("tokenizer", "train", "/nowhere.txt", "--out", "/tmp/x"), "/nowhere.txt"),
        (("convert", "/nowhere", "--out", "/tmp/x"), "/nowhere"),
    ],
)
def test_other_mistakes_are_one_line_too(arguments, message, within):
    (line,) = within(*arguments, code=2).err.splitlines()
    assert message in line


def test_a_missing_file_is_named_without_its_number():
    error = FileNotFoundError(2, "No such file or directory", "/nowhere.txt")
    assert base._line(error) == "/nowhere.txt: no such file or directory"
    assert base._line(OSError("the disk is full")) == "the disk is full"


@pytest.mark.slow
def test_mistakes_with_a_model_at_hand(model, tmp_path, within):
    """Loading in a subprocess, so that messages of transformers while it loads a model would be noticed."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content[:-100] if file.suffix == ".safetensors" else content)
    assert "model.safetensors is damaged" in mistake("fill", "a new [MASK]", "--model", broken)
    for text, message in (("", "empty"), ("a new store", "no [MASK]")):
        *_, line = within("fill", text, "--model", model, code=2).err.splitlines()
        assert message in line
