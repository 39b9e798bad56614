"""Checkpoints of a run: complete, written atomically, and verified before they are loaded.

    checkpoints/step-00001000/
        config.json, model.safetensors    the model, as transformers loads it
        tokenizer files
        generator/                        the generator of replaced-token detection, same layout
        heads.safetensors                 the objectives' own heads, and other weights used only in training
        optimizer.pt, or optimizer/       torch.save, or torch.distributed.checkpoint under FSDP2
        rng.pt                            torch, CUDA, numpy and Python generators of every rank
        progress.json                     step (also the position in the data), elapsed time, validation loss, scaler
        run.json                          the config of the run; --resume compares it with the new config
        manifest.json                     bytes and sha256 of every other file

A checkpoint is written to ``step-N.part``, flushed to disk, and renamed: a kill at any moment leaves the previous
checkpoint intact, and a folder without ``.part`` that does not match its manifest was damaged later. The schedule has
no state: the learning rate is a function of the step, or of the elapsed time.
"""

import json
import math
import random
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from debertakit.checkpoints import State
from debertakit.files import TEMPORARY, remove, replacing, temporary_path
from debertakit.objectives.training_module import TrainingModule
from debertakit.pretraining.distributed import World
from debertakit.pretraining.families import fit_tokenizer
from debertakit.protocols import Tokenizer
from debertakit.text.tokenizers import write_tokenizer
from debertakit.training.checksums import WRITE_ERRORS, damage, write_checksums
from debertakit.training.ranks import is_lost_rank

CONFIG = "run.json"


@dataclass
class Progress:
    step: int = 0
    """Completed steps; also the position of the next step in the data."""
    elapsed: float = 0.0
    """Seconds of training so far, including the time before a resume."""
    tokens: int = 0
    bad_steps: int = 0
    """Consecutive steps whose update was skipped."""
    validation: float | None = None
    """The last validation loss."""
    scaler: dict[str, float] = field(default_factory=dict)
    """State of the fp16 gradient scaler; empty in other precisions."""


# ------------------------------------------------------------------------------------------------------- writing


def save(
    root: Path,
    module: TrainingModule,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    world: World,
    tokenizer: Tokenizer,
    config: str,
) -> Path:
    """Write a checkpoint. If this fails, the previous checkpoint stays intact. ``config``: the run's run.json."""
    final = root / f"step-{progress.step:08d}"
    weights = _full_weights(module, world)
    generators = world.gather(_generators())
    # All ranks write to the temporary folder, and the main process renames it.
    writing: AbstractContextManager[Path] = replacing(final) if world.main else nullcontext(temporary_path(final))
    try:
        with writing as folder:
            if world.main:
                folder.mkdir(parents=True)
                _write_model(folder, module, weights, tokenizer)
                torch.save(generators, folder / "rng.pt")
                (folder / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
                (folder / CONFIG).write_text(config, encoding="utf-8")
            world.barrier()
            _write_optimizer(folder, module, optimizer, world)
            world.barrier()
            if world.main:
                write_checksums(folder)
    except WRITE_ERRORS as error:
        if is_lost_rank(error):
            raise
        if world.main:
            remove(temporary_path(final))
        before = newest(root)
        kept = f"the checkpoint of step {before[0]} is intact" if before else "there is no earlier checkpoint"
        raise OSError(
            f"cannot write the checkpoint of step {progress.step} to {root}: {error}; {kept}. "
            "Free some disk space and continue with --resume"
        ) from error
    world.barrier()
    return final


def prune(root: Path, keep_last: int) -> None:
    """Keep the newest ``keep_last`` intact checkpoints and the one with the best validation loss.

    A damaged checkpoint does not count. Nothing is deleted while there are fewer than ``keep_last`` intact ones.
    """
    found = [folder for _, folder in reversed(_folders(root))]
    keep: set[Path] = set()
    for folder in found:
        if len(keep) < keep_last and damage(folder) is None:
            keep.add(folder)
    if len(keep) < keep_last:
        return
    losses = {folder: _validation(folder) for folder in found if damage(folder, checksums=False) is None}
    known = {folder: loss for folder, loss in losses.items() if loss is not None}
    keep |= {min(known, key=lambda folder: known[folder])} if known else set()
    for folder in found:
        if folder not in keep:
            temporary = temporary_path(folder)  # a half-deleted folder must not look like a checkpoint
            remove(temporary)
            folder.rename(temporary)
            remove(temporary)


def _write_model(folder: Path, module: TrainingModule, weights: State, tokenizer: Tokenizer) -> None:
    # The same files as save_pretrained, but without its progress bar, and always with one weights file.
    for name, model in module.models.items():
        inside = folder if name == "model" else folder / name
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(inside)
        write_tokenizer(fit_tokenizer(tokenizer, model), inside)
    for file, tensors in module.to_files(weights).items():
        save_file(_unshared(tensors), folder / file, metadata={"format": "pt"})


def _write_optimizer(folder: Path, module: TrainingModule, optimizer: torch.optim.Optimizer, world: World) -> None:
    if world.sharded:
        import torch.distributed.checkpoint as dcp

        dcp.save({"optimizer": get_optimizer_state_dict(module, optimizer)}, checkpoint_id=folder / "optimizer")
    elif world.main:
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")


def _full_weights(module: TrainingModule, world: World) -> State:
    """All weights on the CPU; under FSDP2 only on the main process."""
    if world.sharded:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        gathered: dict[str, Any] = get_model_state_dict(module, options=options)
        return {key: value.contiguous() for key, value in gathered.items()}
    tied = _tied(module)  # transformers ties them again on load
    state = {key: value for key, value in module.state_dict().items() if key not in tied}
    return {key: value.detach().cpu().contiguous() for key, value in state.items()}


def _tied(module: TrainingModule) -> dict[str, str]:
    """Map each tied weight to its source, for example an output matrix to the word table."""
    return {
        f"{name}.{key}": f"{name}.{source}"
        for name, model in module.models.items()
        for key, source in model.all_tied_weights_keys.items()
    }


def _unshared(tensors: State) -> State:
    """Clone tensors that share memory (ALBERT's shared layers): the file stores each one separately."""
    seen: set[int] = set()
    unshared = {}
    for key, tensor in tensors.items():
        unshared[key] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return unshared


# ------------------------------------------------------------------------------------------------------- reading


def newest(root: Path) -> tuple[int, Path] | None:
    """Find the newest checkpoint that matches its manifest. Print a line on stderr for each damaged one."""
    for step, folder in reversed(_folders(root)):
        wrong = damage(folder)
        if wrong is None:
            return step, folder
        print(f"the checkpoint {folder} is damaged ({wrong}); trying the one before it", file=sys.stderr)
    return None


def remove_unfinished(root: Path) -> None:
    """Delete what a killed process was writing or deleting."""
    for path in root.glob("step-*"):
        if path.suffix == TEMPORARY:
            remove(path)


def has_checkpoints(root: Path) -> bool:
    """Whether a run has saved a checkpoint, intact or damaged."""
    return bool(_folders(root))


def load(folder: Path, module: TrainingModule, optimizer: torch.optim.Optimizer, world: World) -> Progress:
    """Restore weights, optimizer and random generators from a checkpoint. Returns its progress."""
    files = {path.relative_to(folder).as_posix(): load_file(path) for path in folder.rglob("*.safetensors")}
    weights: dict[str, Any] = module.from_files(files)  # invariant in torch's annotations
    weights |= {key: weights[source] for key, source in _tied(module).items()}
    if world.sharded:
        set_model_state_dict(module, weights, options=StateDictOptions(full_state_dict=True))
    else:
        missing, unexpected = nn.Module.load_state_dict(module, weights, strict=False)
        if missing or unexpected:
            raise ValueError(
                f"{folder} belongs to another model: {len(missing)} tensors missing, {len(unexpected)} unexpected"
            )
    _read_optimizer(folder, module, optimizer, world)
    generators = torch.load(folder / "rng.pt", weights_only=True)
    if world.rank < len(generators):  # additional ranks keep their initial seed
        _restore(generators[world.rank])
    progress = Progress(**json.loads((folder / "progress.json").read_text(encoding="utf-8")))
    progress.bad_steps = 0  # counted again: the resumed run may have another learning rate
    return progress


def _read_optimizer(folder: Path, module: TrainingModule, optimizer: torch.optim.Optimizer, world: World) -> None:
    if world.sharded != (folder / "optimizer").exists():
        raise ValueError(f"{folder} was written with parallel={'ddp' if world.sharded else 'fsdp2'}; resume with that")
    if world.sharded:
        import torch.distributed.checkpoint as dcp

        state = get_optimizer_state_dict(module, optimizer)
        dcp.load({"optimizer": state}, checkpoint_id=folder / "optimizer")
        set_optimizer_state_dict(module, optimizer, state)
    else:
        optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True, map_location=world.device))


def _folders(root: Path) -> list[tuple[int, Path]]:
    steps = [(path.name.removeprefix("step-"), path) for path in root.glob("step-*")]
    return sorted((int(step), path) for step, path in steps if step.isdigit())


def _validation(folder: Path) -> float | None:
    try:
        loss = json.loads((folder / "progress.json").read_text(encoding="utf-8"))["validation"]
    except (OSError, ValueError, KeyError):
        return None
    return loss if loss is not None and math.isfinite(loss) else None


# ------------------------------------------------------------------------------------------------------- details


def _generators() -> dict[str, Any]:
    _, keys, position, has_gauss, cached = np.random.get_state()
    version, internal, gauss = random.getstate()
    cuda: Tensor | None = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "numpy": [torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, cached],
        "python": [version, list(internal), gauss],
    }


def _restore(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
