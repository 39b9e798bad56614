"""Distributed training: ranks and devices under torchrun, and the DDP or FSDP2 wrapper.

``ddp`` copies the model to each rank; ``fsdp2`` shards parameters, gradients and optimiser state over the ranks. The
data is independent of the number of ranks: a step always contains the same sequences (text/packing.py).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from debertakit.objectives.training_module import TrainingModule
from debertakit.precision import best_device
from debertakit.training.ranks import connect
from debertakit.training.sharding import shard

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    sharded: bool = False

    @property
    def main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all ranks; every rank gets the result."""
        if self.size == 1:
            return values
        moved = values.to(self.device)  # NCCL needs GPU tensors
        dist.all_reduce(moved)
        return moved.to(values.device)

    def gather(self, value: T) -> list[T]:
        """Gather every rank's object, in rank order; every rank gets the list."""
        if self.size == 1:
            return [value]
        values = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def start(parallel: str) -> World:
    """Join torchrun's process group, or run as a single process.

    The timeout is two hours, because the main process may be preparing the corpus.
    """
    cuda = best_device().type == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 and parallel != "fsdp2":
        return World(device=device)
    if "MASTER_ADDR" not in os.environ:
        raise ValueError("parallel=fsdp2 needs torchrun: torchrun --nproc-per-node N -m debertakit.cli pretrain ...")
    if not dist.is_initialized():
        connect("nccl" if cuda else "gloo", timedelta(hours=2))
    return World(dist.get_rank(), size, device, sharded=parallel == "fsdp2")


def stop(world: World) -> None:
    if dist.is_initialized() and (world.size > 1 or world.sharded):
        dist.destroy_process_group()


def wrap_distributed(module: TrainingModule, world: World) -> nn.Module:
    """Move the module to its device, and shard it or wrap it with DDP. Returns the module to call."""
    module.to(world.device)
    if world.sharded:
        return shard(module, list(module.models.values()), world.device.type)
    if world.size > 1:
        devices = None if world.device.index is None else [world.device.index]
        unused = not module.trains_all_parameters
        return DistributedDataParallel(module, device_ids=devices, find_unused_parameters=unused)
    return module


@contextmanager
def gradient_sync(module: nn.Module, enabled: bool) -> Iterator[None]:
    """Synchronise gradients in this backward pass if ``enabled``; otherwise accumulate them locally."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(enabled)
        yield
    elif isinstance(module, DistributedDataParallel) and not enabled:
        with module.no_sync():
            yield
    else:
        yield
