"""Random streams: their numbers are part of every earlier result."""

import numpy as np

from debertakit.objectives.random_streams import PAIRS, PERMUTATION, REPLACEMENT, chunk_generator


def test_the_numbers_of_earlier_runs():
    assert (PAIRS, PERMUTATION, REPLACEMENT) == (1, 2, 2)
    drawn = chunk_generator(3, np.int64(7), np.int64(2), PAIRS).random(4)
    assert drawn.tolist() == np.random.default_rng([3, 7, 2, 1]).random(4).tolist()
