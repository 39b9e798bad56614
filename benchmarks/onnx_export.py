"""Compare the speed of our ONNX graph and of transformers' model exported by torch, in fp32 and int8, interleaved.

    python benchmarks/onnx_export.py --threads 2                 # a classifier with 12 layers
    python benchmarks/onnx_export.py --threads 2 --head encoder  # no head, so all layers compute all rows

All graphs run in ONNX Runtime. ``floor`` is our graph without position terms (a BERT): the time that would remain if
disentangled attention cost nothing. No graph with these matrix products can be faster, so hf / floor is the largest
possible speed-up in fp32.
"""

import argparse
import io
import json
import logging
import tempfile
import warnings
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import onnx
import onnxruntime
import torch
import transformers
from onnxruntime.quantization import quantize_dynamic

from debertakit.bench.contest import Measurement, contest
from debertakit.bench.report import machine
from debertakit.bench.suites import batch, shape
from debertakit.heads import DebertaForSequenceClassification
from debertakit.inference.onnx import onnx_model, quantise
from debertakit.model import DebertaModel

WORKS = {"1x16": [16], "1x32": [32], "1x128": [128], "8x128": [128] * 8, "4x512": [512] * 4}
KINDS = {
    "classifier": (DebertaForSequenceClassification, transformers.DebertaV2ForSequenceClassification),
    "encoder": (DebertaModel, transformers.DebertaV2Model),
}
RATIOS = [("hf", "ours"), ("hf", "floor"), ("ours", "ours int8"), ("hf int8", "ours int8")]


def export_hf(model: torch.nn.Module, file: Path) -> None:
    inputs = batch([8, 6])
    sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", min=2, max=4096)}
    with torch.no_grad(), redirect_stdout(io.StringIO()):
        torch.onnx.export(
            model, (), str(file), kwargs=inputs, dynamic_shapes=dict.fromkeys(inputs, sizes), dynamo=True, verbose=False
        )


def quantise_hf(source: Path, target: Path) -> None:
    proto = onnx.load(source)
    del proto.graph.value_info[:]  # the exporter's shape annotations contradict the quantised shapes
    quantize_dynamic(proto, target, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, reduce_range=True)


def contestants(head: str, layers: int, folder: Path, threads: int) -> dict[str, onnxruntime.InferenceSession]:
    ours_kind, hf_kind = KINDS[head]
    config = shape(layers)
    hf = hf_kind(transformers.DebertaV2Config.from_dict(config.to_dict())).eval()
    ours = ours_kind(config).eval()
    ours.load_state_dict(hf.state_dict())
    bare = {"relative_attention": False, "pos_att_type": [], "norm_rel_ebd": "none"}
    floor = ours_kind(type(config)(**{**config.to_dict(), **bare})).eval()
    files = {name: folder / f"{name}.onnx" for name in ("hf", "ours", "floor", "hf int8", "ours int8")}
    export_hf(hf, files["hf"])
    quantise_hf(files["hf"], files["hf int8"])
    onnx.save(onnx_model(ours), files["ours"])
    quantise(files["ours"], files["ours int8"])
    onnx.save(onnx_model(floor), files["floor"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return {
        name: onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        for name, file in files.items()
    }


def ratio(result: Measurement, slow: str, fast: str) -> float:
    times = [result.times[name] for name in (slow, fast)]
    return times[0].median / times[1].median  # type: ignore[union-attr]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", choices=KINDS, default="classifier")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="time per workload, shared by all contestants")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    print(f"{given.head}, {given.layers} layers, {given.threads} threads; {machine()}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sessions = contestants(given.head, given.layers, Path(folder), given.threads)
        print(f"{'workload':<8}" + "".join(f"{name + ' ms':>14}" for name in sessions) + "   ratios")
        for work in given.works:
            inputs = {key: value.numpy() for key, value in batch(WORKS[work]).items()}
            runs = {name: partial(session.run, None, inputs) for name, session in sessions.items()}
            result = contest(work, runs, given.seconds)
            medians = {name: timing.median for name, timing in result.times.items() if timing is not None}
            ratios = {f"{slow} / {fast}": round(ratio(result, slow, fast), 3) for slow, fast in RATIOS}
            rows.append({"work": work, "ms": medians, "ratios": ratios})
            told = ", ".join(f"{name} {value:.2f}" for name, value in ratios.items())
            print(f"{work:<8}" + "".join(f"{ms:>14.1f}" for ms in medians.values()) + f"   {told}", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
