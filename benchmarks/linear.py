"""Compare the products of linear layers in torch's default (MKL on x86) with those in oneDNN, with and without packing.

    python benchmarks/linear.py [--threads 1] [--seconds 2]
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/linear.py     # as on a CPU with AVX2 only

Layers of a v3-base, fp32 and bf16. Prints the time of the fastest call in milliseconds, which other processes disturb
least. If oneDNN is faster on your CPU, set DEBERTAKIT_LINEAR=onednn (attention/linear.py has the default).
"""

import argparse
import time

import torch
from torch.nn import functional as F

ROWS = (1, 16, 32, 128, 1024)
LAYERS = ((768, 768), (768, 3072), (3072, 768))


def measure(rows: int, inputs: int, outputs: int, dtype: torch.dtype, seconds: float) -> list[float]:
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    product = torch.ops.mkldnn._linear_pointwise
    runs = (
        lambda: F.linear(x, weight, bias),
        lambda: product(x, weight, bias, "none", [], ""),
        lambda: product(x, packed, bias, "none", [], ""),
    )
    best = [float("inf")] * len(runs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[number] = min(best[number], time.perf_counter() - start)
    return [1e3 * each for each in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2, help="time per layer and precision (default: 2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{torch.backends.cpu.get_cpu_capability()}, {options.threads} threads, milliseconds")
    print(f"{'rows':>5} {'layer':>10}{'default':>10}{'oneDNN':>9}{'packed':>9}   bf16:{'default':>10}{'packed':>9}")
    for rows in ROWS:
        for inputs, outputs in LAYERS:
            fp32 = measure(rows, inputs, outputs, torch.float32, options.seconds)
            bf16 = measure(rows, inputs, outputs, torch.bfloat16, options.seconds)
            print(
                f"{rows:>5} {inputs:>5}x{outputs:<4}{fp32[0]:>10.3f}{fp32[1]:>9.3f}{fp32[2]:>9.3f}"
                f"        {bf16[0]:>10.3f}{bf16[2]:>9.3f}",
                flush=True,
            )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
