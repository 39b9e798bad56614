"""CPU time of the attention kernel per call: each instruction set of this CPU, and torch's SDPA without position terms.

    python benchmarks/kernel.py [--seconds 10] [--backward]

One thread, one layer of a v3-base (12 heads of size 64). The contestants run in random order. Reported: the shortest
CPU time of a call in milliseconds, which other processes on the machine disturb least.
"""

import argparse
import random
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from debertakit.attention import Layout, PositionTables, RelativePositions, cpu

SHAPES = ((1, 16), (1, 32), (8, 128), (4, 512), (1, 2048))
HEADS, SIZE = 12, 64
V3 = RelativePositions(span=256, buckets=256, max_position=512)


def contestants(batch: int, length: int, backward: bool) -> dict[str, Callable[[], object]]:
    layout = Layout.from_lengths(torch.full((batch,), length, dtype=torch.int32))
    d_out = torch.randn(batch * length, HEADS, SIZE)
    found: dict[str, Callable[[], object]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = torch.randn(3, batch * length, HEADS, SIZE, dtype=dtype, requires_grad=backward).unbind(0)
        tables = torch.randn(2, 512, HEADS, SIZE, dtype=dtype, requires_grad=backward).unbind(0)
        positions = PositionTables(("c2p", "p2c"), *tables, V3)
        padded = [t.view(batch, length, HEADS, SIZE).transpose(1, 2) for t in (q, k, v)]

        def fused(isa: str, q=q, k=k, v=v, tables=tables, positions=positions) -> object:
            cpu._library()[0].attention_select(isa.encode())
            out = cpu.attend(q, k, v, positions, layout, (3 * SIZE) ** -0.5)
            return out.backward(d_out.to(out.dtype), inputs=[q, k, v, *tables]) if backward else out

        def sdpa(padded=padded, dtype=dtype) -> object:
            out = scaled_dot_product_attention(*padded)
            return out.backward(d_out.view(batch, length, HEADS, SIZE).transpose(1, 2).to(dtype)) if backward else out

        name = str(dtype).removeprefix("torch.")
        for isa in cpu.ISAS[: cpu.ISAS.index("baseline")]:
            if cpu._library()[0].attention_select(isa.encode()):
                found[f"{isa} {name}"] = lambda isa=isa, fused=fused: fused(isa)
        found[f"SDPA {name}"] = sdpa
    return found


def measure(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    names, end = list(calls), time.process_time() + seconds
    for call in calls.values():
        call()
    while time.process_time() < end:
        random.shuffle(names)
        for name in names:
            start = time.process_time()
            calls[name]()
            best[name] = min(best[name], time.process_time() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="CPU time per shape (default: 10)")
    parser.add_argument("--backward", action="store_true", help="measure forward and backward")
    options = parser.parse_args()
    if not cpu.available():
        raise SystemExit(cpu.reason())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for batch, length in SHAPES:
        best = measure(contestants(batch, length, options.backward), options.seconds)
        row = ", ".join(f"{name} {1000 * time:.3f}" for name, time in best.items())
        print(f"{batch} x {length}: {row}", flush=True)


if __name__ == "__main__":
    with torch.enable_grad():
        main()
