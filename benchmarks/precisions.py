"""Compare the ways to run one model: torch in fp32 and bf16, and our ONNX graph in fp32 and int8, interleaved.

    python benchmarks/precisions.py [--layers 12] [--seconds 10] [--threads 2]
    python benchmarks/precisions.py --model MODEL --int8 DIR      # a model folder, and its export

Without --model: a classifier of v3-base's shape with random weights. Milliseconds, median of random-order rounds.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from debertakit.attention.projections import freeze
from debertakit.bench.contest import contest
from debertakit.bench.report import machine
from debertakit.bench.suites import batch, shape
from debertakit.heads import DebertaForSequenceClassification
from debertakit.inference.onnx import OnnxModel, export_onnx
from debertakit.loading import describe

WORKS = {"1x16": [16], "1x32": [32], "1x128": [128], "8x128": [128] * 8, "4x512": [512] * 4}


def runner(model: Callable[..., object], inputs: dict[str, torch.Tensor]) -> object:
    with torch.inference_mode():
        return model(**inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--int8", type=Path, help="int8 export of --model (default: a new one)")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10, help="time per workload (default: 10)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    exact, lower = (network(options.model, options.layers) for _ in range(2))
    lower.load_state_dict(exact.state_dict())
    lower.bfloat16()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_onnx(exact, folder / "fp32")
        if options.int8 is None:
            export_onnx(exact, folder / "int8", int8=True)
        graphs = {"ONNX fp32": OnnxModel(folder / "fp32"), "ONNX int8": OnnxModel(options.int8 or folder / "int8")}
    freeze(exact), freeze(lower)
    models = {"torch fp32": exact, "torch bf16": lower, **graphs}
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    print(
        "".join(f"{each:>14}" for each in ("work", *models))
        + f"{'fp32 / bf16':>14}{'torch / ONNX':>14}{'fp32 / int8':>14}"
    )
    for work, lengths in WORKS.items():
        inputs = batch(lengths)
        found = contest(work, {key: partial(runner, model, inputs) for key, model in models.items()}, options.seconds)
        times = [found.times[key].median for key in models]
        fp32, bf16, onnx, int8 = times
        row = "".join(f"{each:>14.2f}" for each in (*times, fp32 / bf16, fp32 / onnx, onnx / int8))
        print(f"{work:>14}{row}", flush=True)


def network(folder: Path | None, layers: int) -> nn.Module:
    return (DebertaForSequenceClassification(shape(layers)) if folder is None else describe(folder).network()).eval()


if __name__ == "__main__":
    main()
