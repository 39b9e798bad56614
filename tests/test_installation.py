"""Install hints: from an index, from a checkout, and with uv."""

import json
import re
from pathlib import Path

import pytest

from debertakit import installation


@pytest.fixture
def recorded(monkeypatch):
    """Install debertakit from this place, as direct_url.json records it; None: from an index."""

    def record(source):
        class Distribution:
            @staticmethod
            def read_text(name):
                return None if source is None else json.dumps(source)

        monkeypatch.setattr(installation.metadata, "distribution", lambda name: Distribution)
        installation.checkout.cache_clear()

    yield record
    monkeypatch.undo()
    installation.checkout.cache_clear()


def test_the_command_for_an_extra(recorded, monkeypatch):
    recorded(None)
    assert installation.install("serve") == "pip install 'debertakit[serve]'"
    recorded({"url": "file:///home/ann/my%20code", "dir_info": {"editable": True}})
    assert installation.install("serve") == "pip install --editable '/home/ann/my code[serve]'"
    recorded({"url": "file:///src/debertakit", "dir_info": {}})
    assert installation.install("serve") == "pip install '/src/debertakit[serve]'"
    recorded({"url": "https://example.com/debertakit.whl", "archive_info": {}})
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    assert installation.install("serve") == "uv pip install 'debertakit[serve]'"


def test_every_extra_for_users_is_described():
    settings = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    section = settings.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert set(installation.EXTRAS) == set(re.findall(r"^(\w+) = \[", section, re.MULTILINE)) - {
        "dev",
        "docs",
        "clients",
    }


def test_missing_packages(monkeypatch):
    needs = ["torch>=2", 'no-such-package>=1; extra == "serve"', "numpy>=1; extra == 'serve'", 'other; extra == "zh"']
    monkeypatch.setattr(installation.metadata, "requires", lambda name: needs)
    assert installation.missing("serve") == ["no-such-package"]
