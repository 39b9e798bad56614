"""One text and random attention scores."""

import numpy as np

from debertakit.explain.parts import Anatomy

TEXT = "a new store opened beside the new mall"


def random_anatomy(length=7, **parts):
    rng = np.random.default_rng(length)
    given = {name: rng.normal(size=(2, 3, length, length)) for name in ("c2c", "c2p", "p2c")}
    given |= parts
    scores = sum(given.values())
    attention = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return Anatomy("random", [f"t{i}" for i in range(length)], attention, given)
