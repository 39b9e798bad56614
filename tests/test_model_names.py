"""A mistyped model fails at once, with similar names."""

import socket
import time

import pytest

from debertakit.model_names import check_model, hub_answers, stored_columns


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model, an empty cache, and a hub that refuses connections."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    with socket.socket() as refusing:  # bound, but not listening
        refusing.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{refusing.getsockname()[1]}")
        yield tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-modle", r"my-modle: no such folder, and no hub model in the cache; did you mean my-model\?"),
        ("./my-modle", r"./my-modle: no such folder; did you mean my-model\?"),
        ("/nowhere/at-all", "/nowhere/at-all: no such folder"),
        ("microsoft/deberta-v3-smal", "and the hub cannot be reached"),
        ("my-model/config.json", "is a file; a model is a folder"),
        ("cache", "is not a model: it has no config.json"),
        ("runs", "is not a model: it has no config.json; its models are in runs/seed-0"),
        ("stopped", "is not a model: it has no config.json; its run is not finished"),
    ],
)
def test_wrong_names(name, message, place):
    for folder in ("cache", "runs/seed-0", "stopped", "stopped.part"):
        (place / folder).mkdir(parents=True)
    (place / "runs" / "seed-0" / "config.json").write_text("{}")
    began = time.monotonic()
    with pytest.raises(ValueError, match=message):
        check_model(name)
    assert time.monotonic() - began < 1


def test_names_that_may_be_models(place, monkeypatch):
    check_model("my-model")
    check_model(place / "my-model")
    (place / "cache" / "models--microsoft--deberta-base").mkdir(parents=True)
    check_model("microsoft/deberta-base")
    with socket.create_server(("127.0.0.1", 0)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        assert hub_answers()
        check_model("microsoft/deberta-v3-small")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not hub_answers()


def test_columns_of_the_run(place):
    assert stored_columns("my-model") == stored_columns("nowhere") == {}
    (place / "my-model" / "task.json").write_text('{"columns": {"text": "review"}}')
    assert stored_columns("my-model") == {"text": "review"}
