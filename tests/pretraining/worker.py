"""Training runs in processes of their own, for tests that kill them or that need several ranks."""

import os
from pathlib import Path

from debertakit.attention import use_backend
from debertakit.pretraining.loop import pretrain
from tests import ranks
from tests.pretraining.material import config, make_corpus


def train(material: Path, out: Path, assignments: tuple[str, ...], name: str = "tiny") -> None:
    corpus, tokenizer = make_corpus(material)
    with use_backend("reference"):
        pretrain(config(*assignments, name=name), corpus, tokenizer, out, resume=True)


def start(material: Path, out: Path, *assignments: str):
    return ranks.start(os.environ, os.devnull, train, material, out, assignments)


def torchrun(processes: int, material: Path, out: Path, *assignments: str, name: str = "tiny") -> None:
    """Train in the processes that torchrun would start."""
    ranks.run_ranks(processes, train, material, out, assignments, name)
