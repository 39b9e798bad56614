"""Measure the share of inference time per operation, on one thread (the table in docs/results/speed.md).

python benchmarks/profile_inference.py
"""

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from debertakit.attention import cpu
from debertakit.attention.projections import freeze
from debertakit.bench.suites import batch, models

LINEAR = ("aten::addmm", "aten::linear", "aten::mm", "mkldnn::_linear_pointwise")
KINDS = {"linear": LINEAR, "gelu": ("aten::gelu",), "layer norm": ("layer_norm",)}


def main() -> None:
    torch.set_num_threads(1)
    model = models(4)["ours"].eval()
    freeze(model)  # as in a predictor
    attend = cpu.attend

    def recorded(*arguments):  # the kernel is called outside the dispatcher, where the profiler cannot see it
        with record_function("attention kernel"):
            return attend(*arguments)

    cpu.attend = recorded
    print(f"{'workload':<8}{'linear':>10}{'attention':>11}{'gelu':>8}{'layer norm':>12}{'other':>10}")
    for name, lengths in {"1x16": [16], "8x128": [128] * 8, "4x512": [512] * 4, "1x2048": [2048]}.items():
        inputs = batch(lengths)
        with torch.inference_mode():
            model(**inputs)
            with profile(activities=[ProfilerActivity.CPU]) as record:
                for _ in range(20 if name == "1x16" else 3):
                    with record_function("whole"):
                        model(**inputs)
        times = {event.key: event.self_cpu_time_total for event in record.key_averages()}
        whole = sum(times.values())
        attention = next(e.cpu_time_total for e in record.key_averages() if e.key == "attention kernel")
        shares = {
            kind: sum(t for key, t in times.items() if any(n in key for n in names)) for kind, names in KINDS.items()
        }
        rest = whole - attention - sum(shares.values())
        print(
            f"{name:<8}{shares['linear'] / whole:>10.1%}{attention / whole:>11.1%}{shares['gelu'] / whole:>8.1%}"
            f"{shares['layer norm'] / whole:>12.1%}{rest / whole:>10.1%}"
        )


if __name__ == "__main__":
    main()
