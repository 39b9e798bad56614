"""Hyper-parameters by task and model size, from Microsoft's paper and the scripts in its repository.

    epochs / warm-up steps / learning rate / batch size / dropout before the classifier

Missing cells follow the nearest published one: ``small`` and ``xsmall`` v3 models use the learning rates of the MNLI
scripts, and v3-base follows v1's base. A task without a script follows the task in ``LIKE``, but its length comes from
its own data. Models smaller than any released one (``tiny``) use a higher learning rate and more epochs.
"""

from dataclasses import dataclass, replace
from typing import Literal

Size = Literal[
    "tiny", "v3-xsmall", "v3-small", "v3-base", "v3-large", "base", "large", "xlarge", "v2-xlarge", "v2-xxlarge"
]


@dataclass(frozen=True)
class Hyperparameters:
    epochs: int
    warmup: float
    """Steps, or a share of all steps if below 1."""
    lr: float
    batch_size: int
    cls_dropout: float | None
    """None: the head has no dropout."""
    max_length: int | None = None
    """Tokens; None: chosen from the data."""
    sift_lambda: float = 5.0
    """Weight of the SiFT loss, if SiFT is used."""
    weight_decay: float = 0.01


DEFAULT = Hyperparameters(epochs=3, warmup=0.1, lr=2e-5, batch_size=32, cls_dropout=0.1)
"""For the user's own data."""

MAX_LENGTHS = {
    "mnli": 256,
    "cola": 64,
    "qnli": 512,
    "qqp": 320,
    "sst2": 128,
    "rte": 320,
    "mrpc": 128,
    "stsb": 128,
    "copa": 136,
    "record": 512,
    "conll2003": 512,
}

LIKE = {
    "wnli": "rte",
    "superglue-rte": "rte",
    "cb": "rte",
    "boolq": "qnli",
    "wic": "rte",
    "wsc": "rte",
    "multirc": "qnli",
    "ocnli": "mnli",
    "afqmc": "qqp",
    "tnews": "sst2",
    "chnsenticorp": "sst2",
    "wnut17": "conll2003",
    "cluener": "conll2003",
}

_Cells = dict[str, tuple[int, float, float, int, float]]

_SCRIPTS: dict[str, _Cells] = {
    "mnli": {
        "v3-xsmall": (3, 1000, 4.5e-5, 64, 0.10),
        "v3-small": (3, 1500, 4.5e-5, 64, 0.20),
        "v3-base": (3, 1000, 1.5e-5, 64, 0.10),
        "v3-large": (2, 500, 7e-6, 64, 0.30),
        "base": (3, 1000, 3e-5, 64, 0.10),
        "large": (3, 1000, 1e-5, 64, 0.20),
        "xlarge": (3, 1000, 5e-6, 64, 0.30),
        "v2-xlarge": (3, 1000, 4e-6, 64, 0.25),
        "v2-xxlarge": (3, 1000, 3e-6, 64, 0.30),
    },
    "cola": {
        "base": (6, 100, 2e-5, 32, 0.15),
        "large": (6, 100, 7e-6, 32, 0.15),
        "xlarge": (8, 100, 5e-6, 32, 0.20),
        "v2-xlarge": (8, 100, 3e-6, 32, 0.20),
        "v2-xxlarge": (10, 100, 2.5e-6, 32, 0.20),
        "v3-large": (10, 50, 5.5e-6, 32, 0.10),
    },
    "qnli": {
        "base": (4, 500, 2e-5, 32, 0.15),
        "large": (4, 500, 1e-5, 32, 0.15),
        "xlarge": (4, 500, 7e-6, 32, 0.20),
        "v2-xlarge": (4, 500, 4e-6, 64, 0.20),
        "v2-xxlarge": (4, 500, 3e-6, 64, 0.20),
        "v3-large": (6, 200, 7e-6, 64, 0.20),
    },
    "qqp": {
        "base": (8, 500, 2e-5, 64, 0.15),
        "large": (8, 500, 1e-5, 64, 0.15),
        "xlarge": (8, 500, 7e-6, 64, 0.15),
        "v2-xlarge": (10, 1000, 4e-6, 64, 0.15),
        "v2-xxlarge": (10, 1000, 3e-6, 64, 0.15),
        "v3-large": (6, 1000, 1e-5, 64, 0.20),
    },
    "sst2": {
        "base": (6, 500, 2e-5, 32, 0.15),
        "large": (6, 500, 1e-5, 32, 0.15),
        "xlarge": (6, 500, 3e-6, 32, 0.15),
        "v2-xlarge": (4, 500, 4e-6, 32, 0.15),
        "v2-xxlarge": (4, 500, 3e-6, 32, 0.15),
        "v3-large": (8, 500, 6e-6, 32, 0.10),
    },
    "rte": {  # all except v3-large start from the -mnli checkpoint
        "base": (6, 100, 2e-5, 32, 0.20),
        "large": (6, 50, 1e-5, 32, 0.20),
        "xlarge": (6, 50, 5e-6, 48, 0.20),
        "v2-xlarge": (6, 50, 4e-6, 48, 0.20),
        "v2-xxlarge": (6, 50, 3e-6, 48, 0.20),
        "v3-large": (6, 50, 1e-5, 32, 0.30),
    },
    "mrpc": {
        "base": (6, 50, 2e-5, 32, 0.15),
        "large": (6, 50, 1e-5, 32, 0.15),
        "xlarge": (8, 50, 7e-6, 32, 0.30),
        "v2-xlarge": (8, 50, 3.5e-6, 32, 0.20),
        "v2-xxlarge": (8, 50, 2e-6, 32, 0.20),
        "v3-large": (6, 50, 6e-6, 32, 0.20),
    },
    "stsb": {
        "base": (6, 100, 2e-5, 32, 0.15),
        "large": (4, 100, 7e-6, 32, 0.15),
        "xlarge": (4, 100, 7e-6, 32, 0.20),
        "v2-xlarge": (4, 100, 4e-6, 32, 0.20),
        "v2-xxlarge": (4, 100, 3e-6, 32, 0.20),
        "v3-large": (4, 50, 7e-6, 32, 0.10),
    },
    "copa": {  # the ends of the published ranges: 3-8 epochs, 1e-5 to 1e-6, batch 16-32
        "base": (8, 0.1, 1e-5, 16, 0.10),
        "v2-xxlarge": (3, 0.1, 1e-6, 32, 0.10),
    },
    "record": {
        "base": (3, 1000, 2e-5, 64, 0.15),
        "v2-xxlarge": (3, 1000, 3e-6, 64, 0.30),
        "v3-large": (3, 500, 7e-6, 64, 0.10),
    },
    "conll2003": {
        "base": (15, 0.1, 2e-5, 16, 0.0),
        "v2-xxlarge": (15, 0.1, 2.5e-6, 16, 0.0),
        "v3-large": (10, 10, 9e-6, 16, 0.0),
    },
}

_SIFT_MNLI: dict[str, tuple[int, float, float, float]] = {  # epochs, warm-up, learning rate, lambda
    "v3-xsmall": (10, 1500, 5e-5, 3.0),
    "v3-small": (6, 1000, 3.5e-5, 5.0),
    "v3-base": (6, 1000, 1.5e-5, 5.0),
    "base": (6, 1000, 1.5e-5, 5.0),
    "v2-xxlarge": (6, 1000, 3e-6, 5.0),
}

# If a size has no script: fallback sizes (the first with a script is used), and the learning rate to use instead.
_INSTEAD: dict[str, tuple[str, ...]] = {
    "tiny": ("base",),
    "v3-xsmall": ("base",),
    "v3-small": ("base",),
    "v3-base": ("base",),
    "v3-large": ("large", "base"),
    "large": ("v3-large", "base"),
    "xlarge": ("large", "v2-xxlarge"),
    "v2-xlarge": ("v2-xxlarge",),
    "v2-xxlarge": (),
    "base": (),
}
_RATES = {"tiny": 1e-4, "v3-xsmall": 4.5e-5, "v3-small": 4.5e-5, "v3-base": 2e-5, "base": 2e-5, "v3-large": 7e-6}
_RATES |= {"large": 1e-5, "xlarge": 5e-6, "v2-xlarge": 4e-6, "v2-xxlarge": 3e-6}


def hyperparameters(task: str, size: Size, *, sift: bool = False) -> Hyperparameters:
    """Return the recommended values for a benchmark. Any other task name means the user's own data."""
    if size not in _RATES:
        raise ValueError(f"unknown size {size!r}; choose from {', '.join(_RATES)}")
    like = LIKE.get(task, task)
    cells = _SCRIPTS.get(like, {})
    source = next((name for name in (size, *_INSTEAD[size]) if name in cells), None)
    if source is None:
        chosen = replace(DEFAULT, lr=_RATES[size])
    else:
        epochs, warmup, lr, batch_size, dropout = cells[source]
        chosen = Hyperparameters(epochs, warmup, lr if source == size else _RATES[size], batch_size, dropout)
    if size == "tiny":
        chosen = replace(chosen, epochs=max(chosen.epochs, 5), warmup=0.1, cls_dropout=0.1)
    if sift and like == "mnli" and size in _SIFT_MNLI:
        epochs, warmup, lr, weight = _SIFT_MNLI[size]
        chosen = replace(chosen, epochs=epochs, warmup=warmup, lr=lr, sift_lambda=weight)
    return replace(chosen, max_length=MAX_LENGTHS.get(task))


def model_size(name: str, layers: int, hidden: int) -> Size:
    """Size of a model: by name for a released DeBERTa, else by the number of weights in its layers."""
    plain = name.rstrip("/").rpartition("/")[2].removesuffix("-mnli").removeprefix("m").removeprefix("deberta-")
    if plain in _RATES and plain != "tiny":
        return plain  # type: ignore[return-value]
    weights = 12 * layers * hidden * hidden
    bounds: tuple[tuple[float, Size], ...] = (
        (15e6, "tiny"),
        (32e6, "v3-xsmall"),
        (60e6, "v3-small"),
        (160e6, "v3-base"),
        (500e6, "v3-large"),
        (1e9, "v2-xlarge"),
    )
    return next((size for bound, size in bounds if weights < bound), "v2-xxlarge")
