"""The processes of a torchrun job: connect them, and name the one that ended."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

GLOO = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "connectFullMesh failed",
    "Timed out waiting",
    "Socket Timeout",
)
"""In the errors that gloo raises, as plain RuntimeError, when another process has ended."""
ANSWER_SECONDS = 5
"""Time for the other ranks to notice that one is lost."""


def connect(backend: str, timeout: timedelta) -> None:
    """Join the process group of torchrun.

    torchrun --max-restarts keeps its store, in which the restarted processes would find the addresses of dead ones
    (torch 2.13). Each start therefore uses its own prefix.
    """
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    store = dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def is_lost_rank(error: BaseException) -> bool:
    """Whether an error of torch.distributed says that another rank ended or does not answer."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in GLOO)
    )


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """If another rank ends, raise a ConnectionError that names it."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        yield
    except RuntimeError as error:
        if size == 1 or not is_lost_rank(error):
            raise
        lost = ", ".join(map(str, _silent_ranks(rank, size)))
        raise ConnectionError(
            f"rank {rank} stopped because rank {lost} of {size} ended or does not answer; repeat the "
            "command with --resume (torchrun --max-restarts does this by itself)"
        ) from error


def _silent_ranks(rank: int, size: int) -> list[int]:
    """Every rank that notices the loss leaves a mark in torchrun's store. Returns the ranks without a mark."""
    others = [each for each in range(size) if each != rank]
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"noticed/{rank}", "")
    except ValueError:  # the ranks had not connected yet
        return others
    except RuntimeError:  # the store was in rank 0 (started without torchrun)
        return [0]
    end = time.monotonic() + ANSWER_SECONDS
    silent = set(others)
    while silent and time.monotonic() < end:
        try:
            silent -= {each for each in silent if store.check([f"noticed/{each}"])}
        except RuntimeError:
            return [0]
        time.sleep(0.1)
    return sorted(silent) or others
