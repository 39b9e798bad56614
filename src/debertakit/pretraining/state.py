"""Checkpoints of a run: complete, written atomically, and verified before they are loaded.

    checkpoints/step-00001000/
        config.json, model.safetensors    the model, as transformers loads it
        tokenizer files
        generator/                        the generator of replaced-token detection, same layout
        heads.safetensors                 the objectives' own heads, and other weights used only in training
        optimizer.pt, or optimizer/       torch.save, or torch.distributed.checkpoint under FSDP2
        rng.pt                            torch, CUDA, numpy and Python generators of every rank
        progress.json                     step (also the position in the data), elapsed time, validation loss
        manifest.json                     bytes and sha256 of every other file

A checkpoint is written to ``step-N.part``, flushed to disk, and renamed: a kill at any moment leaves the previous
checkpoint intact, and a folder without ``.part`` that does not match its manifest was damaged later. The schedule has
no state: the learning rate is a function of the step, or of the elapsed time.
"""

import hashlib
import json
import os
import random
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
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
from debertakit.pretraining.backbones import fitting
from debertakit.pretraining.distributed import World
from debertakit.pretraining.rtd import RtdTrainee
from debertakit.pretraining.trainee import Trainee

MANIFEST = "manifest.json"


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


# ------------------------------------------------------------------------------------------------------- writing


def save(
    root: Path,
    trainee: Trainee | RtdTrainee,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    world: World,
    tokenizer: Any,
) -> Path:
    """Write a checkpoint. If this fails, the previous checkpoint stays intact."""
    final = root / f"step-{progress.step:08d}"
    aside = final.with_name(final.name + ".part")
    weights = _full_weights(trainee, world)
    generators = world.gather(_generators())
    try:
        if world.main:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            _write_model(aside, trainee, weights, tokenizer)
            torch.save(generators, aside / "rng.pt")
            (aside / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
        world.barrier()
        _write_optimizer(aside, trainee, optimizer, world)
        world.barrier()
        if world.main:
            seal(aside, final)
    except (OSError, RuntimeError, SafetensorError) as error:
        if world.main:
            shutil.rmtree(aside, ignore_errors=True)
        before = newest(root)
        kept = f"the checkpoint of step {before[0]} is intact" if before else "there is no earlier checkpoint"
        raise OSError(
            f"cannot write the checkpoint of step {progress.step} to {root}: {error}; {kept}. "
            "Free some disk space and continue with --resume"
        ) from error
    world.barrier()
    return final


def seal(aside: Path, final: Path) -> None:
    """Flush every file, write the manifest with checksums, and rename the folder."""
    files = {}
    for path in sorted(p for p in aside.rglob("*") if p.is_file()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        files[path.relative_to(aside).as_posix()] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    with (aside / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(files, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _flush_folder(aside)
    if final.exists():  # an older checkpoint of this step, for example a damaged one
        shutil.rmtree(final)
    aside.rename(final)
    _flush_folder(final.parent)


def prune(root: Path, keep_last: int) -> None:
    """Keep the newest checkpoints and the one with the best validation loss."""
    found = _folders(root)
    losses = {folder: _validation(folder) for _, folder in found}
    known = {folder: loss for folder, loss in losses.items() if loss is not None}
    keep = {folder for _, folder in found[-keep_last:]} | ({min(known, key=lambda f: known[f])} if known else set())
    for _, folder in found:
        if folder not in keep:
            aside = folder.with_name(folder.name + ".part")  # a half-deleted folder must not look like a checkpoint
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)


def _write_model(folder: Path, trainee: Trainee | RtdTrainee, weights: State, tokenizer: Any) -> None:
    # The same files as save_pretrained, but without its progress bar, and always with one weights file.
    for name, model in trainee.models.items():
        inside = folder if name == "model" else folder / name
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(inside)
        if tokenizer is not None:
            fitting(tokenizer, model).save_pretrained(inside)
    for file, tensors in trainee.to_files(weights).items():
        save_file(_apart(tensors), folder / file, metadata={"format": "pt"})


def _write_optimizer(
    folder: Path, trainee: Trainee | RtdTrainee, optimizer: torch.optim.Optimizer, world: World
) -> None:
    if world.sharded:
        import torch.distributed.checkpoint as dcp

        dcp.save({"optimizer": get_optimizer_state_dict(trainee, optimizer)}, checkpoint_id=folder / "optimizer")
    elif world.main:
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")


def _full_weights(trainee: Trainee | RtdTrainee, world: World) -> State:
    """All weights on the CPU; under FSDP2 only on the main process."""
    if world.sharded:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        gathered: dict[str, Any] = get_model_state_dict(trainee, options=options)
        return {key: value.contiguous() for key, value in gathered.items()}
    tied = _tied(trainee)  # transformers ties them again on load
    state = {key: value for key, value in trainee.state_dict().items() if key not in tied}
    return {key: value.detach().cpu().contiguous() for key, value in state.items()}


def _tied(trainee: Trainee | RtdTrainee) -> dict[str, str]:
    """Map each tied weight to its source, for example an output matrix to the word table."""
    return {
        f"{name}.{key}": f"{name}.{source}"
        for name, model in trainee.models.items()
        for key, source in model.all_tied_weights_keys.items()
    }


def _apart(tensors: State) -> State:
    """Clone tensors that share memory (ALBERT's shared layers): the file stores each one separately."""
    seen: set[int] = set()
    apart = {}
    for key, tensor in tensors.items():
        apart[key] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return apart


# ------------------------------------------------------------------------------------------------------- reading


def newest(root: Path) -> tuple[int, Path] | None:
    """Find the newest checkpoint that matches its manifest. Print a line on stderr for each damaged one."""
    for step, folder in reversed(_folders(root)):
        wrong = damage(folder)
        if wrong is None:
            return step, folder
        print(f"the checkpoint {folder} is damaged ({wrong}); trying the one before it", file=sys.stderr)
    return None


def damage(folder: Path) -> str | None:
    """Describe what is wrong with a checkpoint. Returns None if it is intact."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, expected in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"]:
                return f"{name} has {path.stat().st_size} bytes, {expected['bytes']} were written"
            if _sha256(path) != expected["sha256"]:
                return f"the content of {name} has changed"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"unreadable {MANIFEST}: {error}"
    return None


def load(folder: Path, trainee: Trainee | RtdTrainee, optimizer: torch.optim.Optimizer, world: World) -> Progress:
    """Restore weights, optimizer and random generators from a checkpoint. Returns its progress."""
    files = {path.relative_to(folder).as_posix(): load_file(path) for path in folder.rglob("*.safetensors")}
    weights: dict[str, Any] = trainee.from_files(files)
    weights |= {key: weights[source] for key, source in _tied(trainee).items()}
    if world.sharded:
        set_model_state_dict(trainee, weights, options=StateDictOptions(full_state_dict=True))
    else:
        missing, unexpected = nn.Module.load_state_dict(trainee, weights, strict=False)
        if missing or unexpected:
            raise ValueError(
                f"{folder} belongs to another model: {len(missing)} tensors missing, {len(unexpected)} unexpected"
            )
    _read_optimizer(folder, trainee, optimizer, world)
    generators = torch.load(folder / "rng.pt", weights_only=True)
    if world.rank < len(generators):  # additional ranks keep their initial seed
        _restore(generators[world.rank])
    return Progress(**json.loads((folder / "progress.json").read_text(encoding="utf-8")))


def _read_optimizer(
    folder: Path, trainee: Trainee | RtdTrainee, optimizer: torch.optim.Optimizer, world: World
) -> None:
    if world.sharded != (folder / "optimizer").exists():
        raise ValueError(f"{folder} was written with parallel={'ddp' if world.sharded else 'fsdp2'}; resume with that")
    if world.sharded:
        import torch.distributed.checkpoint as dcp

        state = get_optimizer_state_dict(trainee, optimizer)
        dcp.load({"optimizer": state}, checkpoint_id=folder / "optimizer")
        set_optimizer_state_dict(trainee, optimizer, state)
    else:
        optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True, map_location=world.device))


def _folders(root: Path) -> list[tuple[int, Path]]:
    steps = [(path.name.removeprefix("step-"), path) for path in root.glob("step-*")]
    return sorted((int(step), path) for step, path in steps if step.isdigit())


def _validation(folder: Path) -> float | None:
    try:
        return json.loads((folder / "progress.json").read_text(encoding="utf-8"))["validation"]
    except (OSError, ValueError, KeyError):
        return None


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


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
