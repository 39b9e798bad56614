"""Random numbers of the objectives: one generator per chunk of text, so that they do not depend on the batch.

Each use has its own stream. Masking (text/masking.py) seeds its generators with (seed, chunk, epoch) and no stream.
"""

import numpy as np

PAIRS = 1
PERMUTATION = 2
PREFIX = 3
REPLACEMENT = 2
"""The same number as PERMUTATION: changing it would change the results of earlier runs. No run uses both."""


def chunk_generator(seed: int, chunk: int, epoch: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, int(chunk), int(epoch), stream])
