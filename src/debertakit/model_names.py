"""Check the name of a model before anything slow happens: a mistyped path fails at once. Light to import.

A name is a folder, or the name of a hub model. A folder that does not exist is not looked up on the hub if the name
is a path, if a folder nearby has a similar name, or if the hub cannot be reached.

Two models can be part of the package, in bundled/ (``BUNDLED``). Their names work like the names of hub models, unless
a folder in the current directory has the same name. DEBERTAKIT_MODELS names another folder to search for them.
"""

import difflib
import json
import os
import re
import socket
import threading
from pathlib import Path
from urllib.parse import urlparse

from debertakit.files import temporary_path

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
HUB_WAIT = 0.7
"""Seconds to wait for a connection to the hub before the name is reported as wrong."""
BUNDLED = {"en": "en-small", "zh": "zh-small"}
"""Models of the package, by language."""
CONFIG_FILES = ("config.json", "adapter_config.json")


def check_model(name: str | Path, *, connect: bool = True) -> str:
    """Raise if ``name`` is no model folder and cannot be a hub model. ``connect``: try to reach the hub.

    Returns the name to open: the folder of a bundled model, or else ``name``.
    """
    name = resolve_bundled(name)
    folder = Path(name)
    if folder.is_dir():
        _check_folder(folder)
        return name
    if name in BUNDLED.values():
        raise ValueError(f"this installation has no bundled model {name}; use a folder, or the name of a hub model")
    if folder.exists():
        raise ValueError(f"{name} is a file; a model is a folder with config.json, or the name of a hub model")
    similar = _similar(folder)
    hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"{name}: no such folder{hint}")
    if _cached(name):
        return name
    if similar:
        raise ValueError(f"{name}: no such folder, and no hub model in the cache{hint}")
    if connect and not hub_answers():
        raise ValueError(f"{name}: no such folder, no hub model in the cache, and the hub cannot be reached")
    return name


def check_has_task(name: str) -> None:
    """Raise if ``name`` is the folder of a pretrained language model, which has no head for a task."""
    folder = Path(name)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (head,) = config["architectures"]
    except (OSError, ValueError, TypeError, KeyError):
        return  # a hub model, or a folder that loading.py judges
    if head.endswith(("ForMaskedLM", "ForPreTraining")):
        raise ValueError(f"{folder.name} is not trained for a task ({head}); fine-tune it first: deberta finetune")


def resolve_bundled(name: str | Path) -> str:
    """Return the folder of a bundled model, and every other name unchanged."""
    found = None if Path(name).exists() else bundled_folder(str(name))
    return str(name if found is None else found)


def bundled_folder(name: str) -> Path | None:
    """Folder of a bundled model. None if there is no such model, or if the installation lacks it."""
    places = os.environ.get("DEBERTAKIT_MODELS") or Path(__file__).parent / "bundled"
    folder = Path(places) / name
    return folder if name in BUNDLED.values() and (folder / "config.json").is_file() else None


def stored_columns(name: str | Path) -> dict[str, str]:
    """Columns of the file that a model folder was fine-tuned on (``loading.TaskSettings``)."""
    try:
        stored = json.loads((Path(name) / "task.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stored.get("columns", {}) if isinstance(stored, dict) else {}


def hub_answers() -> bool:
    """Whether the hub accepts a connection. True with a proxy, because a connection to the proxy proves nothing."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlparse(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    answered, finished = threading.Event(), threading.Event()

    def connect() -> None:
        try:
            port = address.port or (80 if address.scheme == "http" else 443)
            socket.create_connection((address.hostname or "", port), timeout=5).close()
            answered.set()
        except OSError:
            pass
        finished.set()

    threading.Thread(target=connect, daemon=True).start()  # a thread, because a name lookup has no timeout
    finished.wait(HUB_WAIT)
    return answered.is_set()


def _check_folder(folder: Path) -> None:
    if any((folder / file).is_file() for file in CONFIG_FILES):
        return
    inside = sorted(path.parent.name for path in folder.glob("*/config.json"))
    hint = f"; its models are in {', '.join(str(folder / name) for name in inside[:3])}" if inside else ""
    if not hint and temporary_path(folder).is_dir():
        hint = "; its run is not finished"
    raise ValueError(f"{folder} is not a model: it has no config.json{hint}")


def _similar(folder: Path) -> list[str]:
    """Folders next to ``folder`` with a similar name, as the user would write them."""
    try:
        names = [path.name for path in folder.parent.iterdir() if path.is_dir()]
    except OSError:
        names = []
    if folder.parent == Path():  # bundled models have no folder in their name
        names += [name for name in BUNDLED.values() if bundled_folder(name) is not None]
    return [str(folder.parent / name) for name in difflib.get_close_matches(folder.name, names, n=2, cutoff=0.7)]


def _cached(name: str) -> bool:
    """Whether the hub's cache has files of this model."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or Path(home) / "hub"
    return (Path(cache) / f"models--{name.replace('/', '--')}").is_dir()
