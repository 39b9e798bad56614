"""Compile the Triton attention kernels for GPUs that this machine does not have, and print what they use of a GPU.

    python benchmarks/triton_cubins.py [--arch 80 --arch 90] [--dtype bf16] [--head-size 64] [--dropout]

Needs triton (3.7.1 for torch 2.13; ``make test-triton`` installs it into build/triton: PYTHONPATH=build/triton) and no
GPU: triton includes ptxas. Registers are per thread, of at most 255. Shared memory is per block of threads, of at most
163 KB (sm_80), 99 KB (sm_86, sm_89) or 227 KB (sm_90). Spills are stack memory per thread: registers that did not fit.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from debertakit.attention import triton as kernels

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FP32 = {"lse", "delta", "d_pos_k", "d_pos_q"}
INT32 = {"lookup", "q_offsets", "k_offsets", "q_positions", "k_positions", "visible"}
STRIDES = {"q_stride", "q_head", "k_stride", "k_head", "v_stride", "v_head"}
INTEGERS = STRIDES | {"queries", "rows", "reach"}
FLOATS = {"scale", "keep_scale"}


def options_for(head_size: int, consecutive: bool, dropout: bool) -> dict:
    return {
        **{"D": head_size, "BD": max(16, triton.next_power_of_2(head_size)), "B": kernels.TILE},
        **{"CONSECUTIVE": consecutive, "DROPOUT": dropout, "PRECISION": "tf32x3"},
    }


def compiled(kernel, arch: int, dtype: str, head_size: int, consecutive: bool, dropout: bool):
    options = options_for(head_size, consecutive, dropout)
    signature, attributes = {}, {}
    for n, name in enumerate(kernel.arg_names):
        if name in options or name == "visible":  # visible=None: bidirectional
            signature[name] = "constexpr"
        elif name in FLOATS:
            signature[name] = "fp32"
        elif name in INTEGERS:
            signature[name] = "i32"
        elif name in ("seed", "drop_below"):
            signature[name] = "i64"
        else:
            signature[name] = "*fp32" if name in FP32 else "*i32" if name in INT32 else f"*{dtype}"
        if signature[name].startswith("*") or name in STRIDES:
            attributes[(n,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {**options, "visible": None}, attributes)
    flags = {"num_warps": kernels.warps(head_size, TYPES[dtype]), "num_stages": kernels.STAGES}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=flags)


def usage(cubin: bytes) -> tuple[int, int]:
    """Return registers and spilled bytes per thread."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", shown).groups()
    return int(registers), int(stack)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", type=int, action="append")
    parser.add_argument("--dtype", choices=TYPES, action="append")
    parser.add_argument("--head-size", type=int, action="append")
    parser.add_argument("--gaps", action="store_true", help="the kernels for positions with gaps")
    parser.add_argument("--dropout", action="store_true")
    given = parser.parse_args()
    if kernels.INTERPRETED:
        parser.error("unset TRITON_INTERPRET")
    print(f"triton {triton.__version__}, tiles of {kernels.TILE} queries and keys")
    print("| kernel | GPU | type | head size | warps | registers | shared memory | spills |\n" + "|---" * 8 + "|")
    for head_size in given.head_size or (32, 64, 128):
        for dtype in given.dtype or ("bf16", "fp32"):
            for name in ("forward", "d_queries", "d_keys"):
                for arch in given.arch or (80, 90):
                    kernel = getattr(kernels, f"_{name}_kernel")
                    code = compiled(kernel, arch, dtype, head_size, not given.gaps, given.dropout)
                    registers, stack = usage(code.asm["cubin"])
                    shared = f"{code.metadata.shared / 1024:.0f} KB"
                    warps = kernels.warps(head_size, TYPES[dtype])
                    row = (name, f"sm_{arch}", dtype, head_size, warps, registers, shared, f"{stack} B")
                    print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
