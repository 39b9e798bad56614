import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_collections():
    """Speed up the garbage collection at the end of each Trainer: freeze all objects that exist before the tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
