"""Fixtures for the conftest.py of this package and of tests/objectives."""

import pytest
import torch

from debertakit.attention import use_backend
from tests.pretraining.material import make_corpus


@pytest.fixture(scope="session")
def material(tmp_path_factory):
    """Folder with a corpus and its tokenizer."""
    folder = tmp_path_factory.mktemp("material")
    make_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def corpus(material):
    return make_corpus(material)[0]


@pytest.fixture(scope="session")
def tokenizer(material):
    return make_corpus(material)[1]


@pytest.fixture
def exact_sums():
    """One thread and the reference attention keep the order of sums fixed, for tests that compare bit by bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_backend("reference"):
        yield
    torch.set_num_threads(before)
