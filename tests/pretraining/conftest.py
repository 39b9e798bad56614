import pytest
import torch

from debertakit.attention import use_backend
from tests.pretraining.fixtures import corpus, material, tokenizer

__all__ = ["corpus", "material", "tokenizer"]


@pytest.fixture(autouse=True)
def _one_thread_and_the_reference():
    """Keep the order of sums fixed: these tests compare bit by bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_backend("reference"):
        yield
    torch.set_num_threads(before)
