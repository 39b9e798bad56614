import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_collections():
    """A Trainer collects garbage when it ends. The collector need not visit what was imported before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
