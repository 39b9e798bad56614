"""Shared by all tests: one thread (unless OMP_NUM_THREADS is set), no network, small models, fixed examples."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny; more threads do not help
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings
from transformers.utils import logging

from debertakit.config import DebertaConfig, preset
from tests.chromium import BINARY, Chromium

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
logging.set_verbosity_error()
logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if BINARY is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on this machine")
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def small(name: str = "deberta-v3-base", **overrides) -> DebertaConfig:
    """Config of a released variant, made narrow and shallow."""
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    return preset(name, **{**shape, "vocab_size": 101, "num_labels": 3, **overrides})


def randomise(model: torch.nn.Module, std: float = 0.2) -> torch.nn.Module:
    """Draw weights large enough that attention is far from uniform and every bias matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, std)
    return model.eval()
