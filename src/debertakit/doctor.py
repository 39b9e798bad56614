"""``deberta doctor``: what this machine and installation can do, for a bug report or before a long run."""

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

import debertakit
from debertakit.attention import cpu
from debertakit.attention.linear import choice
from debertakit.installation import EXTRAS, install, missing
from debertakit.model_names import BUNDLED, bundled_folder, hub_answers
from debertakit.precision import best_device, cpu_name, has_native_bf16

FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "bf16")
"""Names in /proc/cpuinfo of the instruction sets that the kernel or torch use."""
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def report() -> list[tuple[str, str]]:
    """Return (what, finding) lines."""
    name, features = cpu_info()
    device = best_device()
    cuda = torch.cuda.is_available()
    packages = ", ".join(f"{package} {metadata.version(package)}" for package in PACKAGES)
    return [
        ("debertakit", f"{debertakit.__version__} in {Path(debertakit.__file__).parent}"),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("packages", packages),
        ("CPU", f"{name}, {os.cpu_count()} cores; {', '.join(features) or 'features unknown'}"),
        ("fused kernel", cpu.reason() or f"{cpu.instruction_set()} (DEBERTAKIT_KERNEL)"),
        ("linear layers", choice()),
        ("threads", f"{torch.get_num_threads()} (--threads)"),
        ("GPU", ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) if cuda else "none"),
        ("training in", f"{'bf16' if has_native_bf16(device) else 'fp32'} on {device.type} (--precision, --device)"),
        ("bundled models", ", ".join(filter(bundled_folder, BUNDLED.values())) or "none: pass --model"),
        ("hub", "can be reached" if hub_answers() else "cannot be reached: use model folders or the cache"),
    ]


def extras() -> list[tuple[str, str]]:
    """Return (extra, what it adds, and how to install it if packages are missing)."""
    found = []
    for extra, adds in EXTRAS.items():
        absent = missing(extra)
        found.append(
            (extra, f"{adds}: " + (f"missing {', '.join(absent)}; {install(extra)}" if absent else "installed"))
        )
    return found


def cpu_info() -> tuple[str, list[str]]:
    """Name and useful instruction sets of the CPU. Without /proc/cpuinfo, the instruction set that torch found."""
    try:
        rows = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return cpu_name(), [torch.backends.cpu.get_cpu_capability()]
    fields = {key.strip(): value.split() for key, _, value in (row.partition(":") for row in rows)}
    there = fields.get("flags") or fields.get("Features") or []
    return cpu_name(), [feature for feature in FEATURES if feature in there]
