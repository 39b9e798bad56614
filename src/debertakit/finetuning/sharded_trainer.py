"""Fine-tuning under FSDP2: every process holds a share of the weights, the gradients and the optimiser's state.

The Trainer's own FSDP (accelerate) needs GPUs. This one calls torch's ``fully_shard``, as pretraining does, so that two
gloo processes on a CPU can test it. Checkpoints contain whole tensors and do not depend on the number of processes.
"""

from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from debertakit.finetuning.trainer import FinetuneTrainer
from debertakit.training.sharding import shard

GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""Whole tensors on the CPU of the main process; nothing on the others."""
WHOLE = StateDictOptions(full_state_dict=True)
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"  # the Trainer's names


class ShardedTrainer(FinetuneTrainer):
    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Shard the model first. The Trainer has loaded a checkpoint before, into whole weights."""
        if self.optimizer is None:
            shard(self.model, [self.model], self.args.device.type)
            self.model._is_accelerate_prepared = True  # otherwise accelerate wraps it with DDP
        return super().create_optimizer(model)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        weights = get_model_state_dict(self.model, options=GATHERED)
        if self.args.should_save:
            self._save(output_dir, state_dict=weights)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = get_optimizer_state_dict(self.model, self.optimizer.optimizer, options=GATHERED)
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state = torch.load(Path(checkpoint) / OPTIMIZER, map_location="cpu", weights_only=True)
        set_optimizer_state_dict(self.model, self.optimizer.optimizer, state, options=WHOLE)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER, weights_only=True))

    def _load_best_model(self) -> None:
        """Do nothing: the main process opens the best checkpoint itself, whole (train.py)."""
