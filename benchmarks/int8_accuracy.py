"""Compare the dev accuracy of a fine-tuned classifier in torch, in our ONNX graph, and in the int8 graph.

python benchmarks/int8_accuracy.py MODEL DATA [--task sst2]
"""

import argparse
import tempfile
from pathlib import Path

from debertakit.inference.onnx import export_onnx
from debertakit.inference.tasks import load
from debertakit.tasks import suites


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", default="sst2")
    arguments = parser.parse_args()
    examples = suites.task(arguments.task).read(arguments.data)["dev"]
    inputs = [{"text": e.text} | ({} if e.pair is None else {"pair": e.pair}) for e in examples]
    with tempfile.TemporaryDirectory() as folder:
        predictors = {"torch": load(arguments.model)}
        for name, int8 in (("onnx", False), ("int8", True)):
            export_onnx(arguments.model, Path(folder) / name, int8=int8)
            predictors[name] = load(Path(folder) / name, backend="onnx")
        for name, predict in predictors.items():
            right = sum(result.labels[0] == e.label for result, e in zip(predict(inputs), examples, strict=True))
            print(f"{name:<6} {100 * right / len(examples):.2f} % of {len(examples):,}", flush=True)


if __name__ == "__main__":
    main()
