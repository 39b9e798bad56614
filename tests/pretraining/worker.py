"""Training processes that tests start and kill.

They are forked from a server that has torch loaded: processes of their own, without seconds of imports each.
"""

import multiprocessing
import os
import sys
from pathlib import Path

import torch
from torch.distributed import TCPStore

from debertakit.attention import use_backend
from debertakit.pretraining.loop import pretrain
from tests.pretraining.material import config, make_corpus

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.pretraining.worker"])


def train(material: Path, out: Path, assignments: tuple[str, ...], environment: dict[str, str]) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    os.environ.update(environment)
    torch.set_num_threads(1)
    corpus, tokenizer = make_corpus(material)
    with use_backend("reference"):
        pretrain(config(*assignments, name=environment.get("RECIPE", "tiny")), corpus, tokenizer, out, resume=True)


def start(material: Path, out: Path, *assignments: str, environment: dict[str, str] | None = None):
    process = SERVER.Process(target=train, args=(material, out, assignments, environment or {}))
    process.start()
    return process


def torchrun(processes: int, material: Path, out: Path, *assignments: str, name: str = "tiny") -> None:
    """Start the processes that torchrun would start, and wait for them. Their store is here, as in torchrun's agent."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = {"RECIPE": name, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    world |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks = [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    started = [start(material, out, *assignments, environment=rank) for rank in ranks]
    for process in started:
        process.join(300)
    codes = [process.exitcode for process in started]
    for process in started:
        process.kill()
    assert codes == [0] * processes, codes
