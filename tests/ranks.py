"""Processes that tests start: the ranks of a torchrun job, and runs to kill.

They are forked from a server that has torch loaded: processes of their own, without seconds of imports each.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "tests.pretraining.worker",
        "tests.finetuning.pairs",
        "debertakit.finetuning.train",
        "debertakit.finetuning.seq2seq",
    ]
)
SECONDS = 300
"""Time limit of a rank. Only a rank that hangs reaches it."""


def start(environment: Mapping[str, str], errors: Path | str, work: Callable[..., object], *arguments: Any):
    """Call ``work(*arguments)`` in a new process. ``errors``: file for its stderr."""
    process = SERVER.Process(target=_work, args=(dict(environment), str(errors), work, arguments))
    process.start()
    return process


def _work(environment: dict[str, str], errors: str, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    os.environ.clear()  # the server has the environment of the test that started it
    os.environ.update(environment)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    torch.set_num_threads(1)
    work(*arguments)


def run_ranks(size: int, work: Callable[..., object], *arguments: Any, codes: Sequence[int] = ()) -> list[str]:
    """Call ``work(*arguments)`` in each rank of a job, as torchrun would, and wait. Returns the stderr of each rank.

    ``codes``: the expected exit codes of the ranks. Default: 0 each.

    The store is in this process, as it is in torchrun's agent, so no port is chosen before it is used.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = {**os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    job |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    with tempfile.TemporaryDirectory() as folder:
        errors = [Path(folder, str(rank)) for rank in range(size)]
        started = [
            start({**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}, errors[rank], work, *arguments)
            for rank in range(size)
        ]
        for process in started:
            process.join(SECONDS)
        ended = [process.exitcode for process in started]
        for process in started:
            process.kill()
        said = [file.read_text(encoding="utf-8") if file.exists() else "" for file in errors]
    assert ended == list(codes or [0] * size), (ended, *(text[-3000:] for text in said))
    return said
