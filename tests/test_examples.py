"""Each example runs as a program, on files of its own and small models. The notebook runs from top to bottom."""

import json
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from tests import tiny

EXAMPLES = Path(__file__).parents[1] / "examples"
SHOWS = {
    "classify_csv.py": "accuracy on new subjects:",
    "chinese_ner.py": "entity F1 on new names:",
    "continue_pretraining.py": "validation loss",
    "question_answering_service.py": "'answers': [",
    "speed_up_a_model.py": "model.onnx",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models of two layers under the names of the bundled models."""
    place = tmp_path_factory.mktemp("models")
    for name in ("en-small", "zh-small"):
        tiny.deberta(place / name)
    return place


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_runs(name, models, tmp_path, monkeypatch, capsys):
    """In this process, because starting Python with torch would take longer than most of the examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEBERTAKIT_MODELS", str(models))
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (EXAMPLES / name).read_text(encoding="utf-8")
    with socket.socket() as reserved:  # bound, but not listening: nobody else gets this port
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        code = code.replace("PORT = 8123", f"PORT = {reserved.getsockname()[1]}")
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    assert SHOWS[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_is_short_enough_to_copy(name):
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 61


def test_the_notebook_runs_from_top_to_bottom(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEBERTAKIT_MODELS", str(models))
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code), "strip the outputs"
    namespace = {}
    for cell in code:
        exec("".join(cell["source"]), namespace)
    assert (tmp_path / "attention.html").is_file()
    assert namespace["result"].scores["accuracy"] > 0
