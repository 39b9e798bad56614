import pytest

from tests.explain.material import TEXT
from tests.models import word_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return word_tokenizer(TEXT.split())
