"""Measure rows per second and peak memory of `deberta predict --file`, and rows per second of a pipeline.

    python benchmarks/predict_file.py MODEL TEXTS [--rows 100000] [--pipeline-rows 4000]

MODEL is the folder of a DeBERTa classifier. TEXTS is a file with one text per line, repeated up to ``--rows``. The
pipeline is transformers' own, with the stock DeBERTa. It runs on the first rows with several batch sizes, and the
fastest batch size is compared.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import transformers

from debertakit.inference.files import predict_file
from debertakit.inference.tasks import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--pipeline-rows", type=int, default=4000)
    arguments = parser.parse_args()
    lines = [line for line in arguments.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    texts = (lines * -(-arguments.rows // len(lines)))[: arguments.rows]
    predictor = load(arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        for share in (10, 1):  # a tenth of the rows first, to see whether memory grows with the file
            source = Path(folder) / f"in-{share}.txt"
            source.write_text("\n".join(texts[: len(texts) // share]) + "\n", encoding="utf-8")
            began = time.perf_counter()
            counts = predict_file(predictor, source, Path(folder) / f"out-{share}.jsonl")
            rate = counts.rows / (time.perf_counter() - began)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"ours: {counts.rows:,} rows, {rate:,.1f} rows/s, peak {peak:,.0f} MB", flush=True)
    pipe = transformers.pipeline("text-classification", model=arguments.model, device="cpu")
    some = texts[: arguments.pipeline_rows]
    best = 0.0
    for size in (1, 8, 32, 64):
        began = time.perf_counter()
        for _ in pipe((text for text in some), batch_size=size):
            pass
        found = len(some) / (time.perf_counter() - began)
        best = max(best, found)
        print(f"pipeline, batch size {size}: {found:,.1f} rows/s", flush=True)
    print(f"ours / fastest pipeline: {rate / best:.2f}")


if __name__ == "__main__":
    main()
