"""FSDP2: weights, gradients and optimiser state in shares, one on each rank."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def shard(module: nn.Module, models: Sequence[PreTrainedModel], device: str) -> nn.Module:
    """Shard ``module`` over all ranks with FSDP2: a group for each layer of its ``models``, and a root group.

    The last layer and the mask decoder's own layers stay in the root group: classifiers and the mask decoder use their
    parameters without calling them.
    """
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for model in models:
        for layer in layers(model)[: model.config.num_hidden_layers - 1]:
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def layers(module: nn.Module) -> list[nn.Module]:
    """List the encoder layers of a module, ours and transformers'."""
    return [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
