"""Predict on a large file with `deberta predict`, and record rows per second and memory over time.

    python benchmarks/big_file.py [--megabytes 1000] [--out big_file.json]

The model is a random classifier with two narrow layers, so that reading and writing take a large part of the time. Rows
have 20 to 1,800 words; the tokenizer reads them completely, the model reads 64 tokens of each. The input and the output
need about 2.5 times the size on disk. The command fails if memory grows: the peak of the second half of the prediction
must be within 5 % of the peak of the first half, and no phase may need more than prediction.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from debertakit.config import preset
from debertakit.files import write_json
from debertakit.heads import DebertaForSequenceClassification
from debertakit.text.tokenizer_training import train_tokenizer

SHAPE = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
GROWTH = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="JSON file for the figures.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, model, target = folder / "in.jsonl", make_model(folder), folder / "out.jsonl"
        rows = write_rows(source, arguments.megabytes * 10**6)
        print(f"{rows:,} rows, {source.stat().st_size / 1e6:,.0f} MB", flush=True)
        samples, seconds = run_and_sample(model, source, target)
        written = check_order(source, target)
    report = {"rows": rows, "written": written, "megabytes": arguments.megabytes, "seconds": seconds}
    report |= summary(samples, rows, seconds)
    print(json.dumps(report, indent=1))
    if arguments.out is not None:
        write_json(arguments.out, {**report, "samples": samples})
    if written != rows or not report["flat"]:
        sys.exit("memory grew with the file, or rows were lost")


def words() -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices("abcdefghijklmnoprstuvwy", k=draw.randint(2, 9))) for _ in range(2000)]


def make_model(folder: Path) -> Path:
    text, model = folder / "text.txt", folder / "model"
    text.write_text("\n".join(" ".join(words()[i : i + 20]) for i in range(0, 2000, 20)), encoding="utf-8")
    tokenizer = train_tokenizer([text], kind="wordpiece", vocab_size=6000)
    tokenizer.save_pretrained(model)
    torch.manual_seed(0)
    config = preset("deberta-v3-base", vocab_size=len(tokenizer), num_labels=3, **SHAPE)
    DebertaForSequenceClassification(config).save_pretrained(model)
    return model


def write_rows(source: Path, size: int) -> int:
    draw, known, rows, written = random.Random(1), words(), 0, 0
    with source.open("w", encoding="utf-8") as stream:
        while written < size:
            text = " ".join(draw.choices(known, k=draw.randint(20, 1800)))
            written += stream.write(json.dumps({"id": rows, "text": text}) + "\n")
            rows += 1
    return rows


def run_and_sample(model: Path, source: Path, target: Path) -> tuple[list[tuple[float, str, float]], float]:
    """Run the command. Returns (seconds, phase, resident MB) once per second, and the total seconds."""
    command = [sys.executable, "-c", "from debertakit.cli import main; main()", "predict", str(model)]
    command += ["--file", str(source), "--out", str(target), "--long", "cut", "--max-length", "64"]
    began, samples = time.monotonic(), []
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)
    parts, temporary = target.with_name(target.name + ".parts"), target.with_name(target.name + ".part")
    while process.poll() is None:
        phase = "write" if temporary.exists() else "predict" if parts.exists() else "read"
        samples.append((round(time.monotonic() - began, 1), phase, resident(process.pid)))
        time.sleep(1)
    if process.returncode:
        sys.exit(f"deberta predict ended with code {process.returncode}")
    return samples, time.monotonic() - began


def resident(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # the process has just ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


def check_order(source: Path, target: Path) -> int:
    """Compare ids and texts of the output with the input, row by row. Returns the number of rows with a prediction."""
    count = 0
    with source.open(encoding="utf-8") as given, target.open(encoding="utf-8") as found:
        for before, after in zip(given, found, strict=True):
            row, result = json.loads(before), json.loads(after)
            assert (row["id"], row["text"]) == (result["id"], result["text"])
            count += result["prediction"] is not None and result["error"] is None
    return count


def summary(samples: list[tuple[float, str, float]], rows: int, seconds: float) -> dict[str, object]:
    by_phase = {phase: [s for s in samples if s[1] == phase] for phase in ("read", "predict", "write")}
    predicting = [memory for _, _, memory in by_phase["predict"]]
    half = len(predicting) // 2
    first, second = max(predicting[:half], default=0.0), max(predicting[half:], default=0.0)
    tenths = [predicting[min(i * len(predicting) // 10, len(predicting) - 1)] for i in range(11)]
    peaks = {phase: round(max((s[2] for s in found), default=0.0)) for phase, found in by_phase.items()}
    return {
        "rows_per_second": round(rows / seconds, 1),
        "seconds_by_phase": {phase: len(found) for phase, found in by_phase.items()},
        "peak_mb_by_phase": peaks,
        "peak_mb_first_half": round(first),
        "peak_mb_second_half": round(second),
        "curve_mb": [round(memory) for memory in tenths],
        "flat": bool(second <= GROWTH * first and peaks["write"] <= GROWTH * max(first, second)),
    }


if __name__ == "__main__":
    main()
