"""deberta doctor."""

from typer.testing import CliRunner

from debertakit import doctor, installation
from debertakit.cli import app


def test_the_report(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = CliRunner().invoke(app, ["doctor"])
    assert found.exit_code == 0, found.exception
    for name in ("debertakit", "Python", "torch", "CPU", "fused kernel", "threads", "GPU", "training in", "hub"):
        assert name in found.stdout
    assert all(f"\n{extra} " in found.stdout for extra in installation.EXTRAS)


def test_an_extra_that_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "missing", lambda extra: ["fastapi", "uvicorn"] if extra == "serve" else [])
    found = dict(doctor.extras())
    assert found["serve"].startswith("the HTTP server and its web page: missing fastapi, uvicorn; pip install ")
    assert found["finetune"].endswith("installed")
