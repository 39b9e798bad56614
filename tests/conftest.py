"""Shared by all tests: one thread (unless OMP_NUM_THREADS is set), no network, fixed seeds, one browser."""

import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny; more threads do not help
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings
from transformers.utils import logging

from tests.chromium import BINARY, Chromium

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
logging.set_verbosity_error()
logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _quick_collections():
    """Each Trainer collects garbage: exclude what already exists, or a collection takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if BINARY is None:
        pytest.skip("no browser found; to run this test: apt-get install chromium fonts-wqy-microhei")
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
