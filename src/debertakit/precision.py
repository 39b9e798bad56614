"""Device and precision of a job.

Training jobs take a precision: "fp32", "bf16" or "fp16" (autocast; the weights and the optimizer stay in fp32), or
"auto", which is bf16 if the device supports it natively and fp32 otherwise. fp16 is for GPUs without bf16 (V100, T4).
Its range is small, so the loss is multiplied by a scale before the backward pass (``make_scaler``).

A run prints and records the resolved precision, and can only be resumed in the same precision. Inference (evaluate,
predict, serve, export, generate, and the dev scores of a training run) always computes in fp32, so that every command
gives the same answer for the same model folder.

The environment variable DEBERTAKIT_BF16=1 or 0 overrides the detection of native bf16, for example to test both cases
on one machine.
"""

import os
import platform
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal, cast

import torch

from debertakit.protocols import PRECISIONS

Resolved = Literal["fp32", "bf16", "fp16"]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def best_device() -> torch.device:
    """Return the GPU if there is one, else the CPU. DEBERTAKIT_DEVICE=cpu or cuda (``--device``) overrides it."""
    wanted = os.environ.get("DEBERTAKIT_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    if wanted not in ("cpu", "cuda"):
        raise ValueError(f"DEBERTAKIT_DEVICE={wanted!r}: must be cpu or cuda")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no GPU here; leave --device out to use the CPU")
    return torch.device(wanted)


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def has_native_bf16(device: torch.device) -> bool:
    """Return whether the hardware computes bf16 natively. Emulated bf16 works but is slower than fp32."""
    forced = os.environ.get("DEBERTAKIT_BF16", "")
    if forced not in ("", "0", "1"):
        raise ValueError(f"DEBERTAKIT_BF16={forced!r}: must be 0 or 1")
    if forced:
        return forced == "1"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def resolve_precision(requested: str, device: torch.device, recorded: str | None = None) -> Resolved:
    """Resolve the precision of a training run. ``recorded`` is the precision of the run to resume, if any."""
    if requested not in PRECISIONS:
        raise ValueError(f"unknown precision {requested!r}; choose from {', '.join(PRECISIONS)}")
    # Version 1 recorded "auto" instead of the resolved precision. Such a run resumes like a new one.
    if recorded is not None and recorded != "auto":
        if requested not in ("auto", recorded):
            raise ValueError(
                f"the run was started in {recorded} and cannot resume in {requested}; leave precision unset"
            )
        requested = recorded
    if requested == "auto":
        return "bf16" if has_native_bf16(device) else "fp32"
    return cast(Resolved, requested)


def precision_line(precision: Resolved, device: torch.device) -> str:
    """Return the line that a training run prints at its start."""
    if precision == "bf16" and not has_native_bf16(device):
        return f"precision: bf16 (warning: this {device.type} emulates bf16, which is slower than fp32)"
    if precision == "fp16" and device.type == "cpu":
        return "precision: fp16 (warning: fp16 is for GPUs; on a CPU it is slower than fp32)"
    return f"precision: {precision}"


def autocast(precision: Resolved, device: torch.device) -> AbstractContextManager[object]:
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, TYPES[precision])


def make_scaler(precision: Resolved, device: torch.device) -> torch.amp.GradScaler:
    """Return the scaler of the loss. It is enabled for fp16 only, and does nothing otherwise."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
