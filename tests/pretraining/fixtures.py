"""Fixtures for the conftest.py of this package and of tests/objectives."""

import pytest

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
