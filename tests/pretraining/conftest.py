import pytest

from tests.pretraining.fixtures import corpus, exact_sums, material, tokenizer

__all__ = ["corpus", "exact_sums", "material", "tokenizer"]


@pytest.fixture(autouse=True)
def _exact_sums_everywhere(exact_sums):
    pass
