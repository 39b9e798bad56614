"""Compare fine-tuning with and without SiFT on RTE and CoLA, five seeds each: p-values and the cost of a step.

    python benchmarks/sift.py DATA --out DIR [--model DIR] [--seeds 5] [--epochs 3] [--only cola]

DATA contains glue/RTE and glue/CoLA. Repeat the command to resume an interrupted run. The results are written to
DIR/table.md.
"""

import argparse
import json
from pathlib import Path

from minilm import minilm
from transformers.utils import logging

from debertakit import compare_runs, finetune

JOBS = {
    "rte": ("glue/RTE", "accuracy", {"batch_size": 16}),
    "cola": ("glue/CoLA", "mcc", {"batch_size": 32}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=None, help="model to fine-tune instead of MiniLM")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--sift-lambda", type=float, default=5.0)
    parser.add_argument("--only", choices=JOBS, nargs="*", default=list(JOBS))
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    header = ("task", "metric", "plain", "SiFT", "difference", "95 %", "bootstrap p", "randomisation p", "step / plain")
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for task in arguments.only:
        folder, metric, settings = JOBS[task]
        found = {}
        for name, more in (("plain", {}), ("sift", {"sift": True, "sift_lambda": arguments.sift_lambda})):
            found[name] = finetune(
                arguments.model or minilm(),
                arguments.out / f"{task}-{name}",
                task=task,
                data=arguments.data / folder,
                seeds=arguments.seeds,
                resume=True,
                epochs=arguments.epochs,
                lr=arguments.lr,
                **settings,
                **more,
            )
        test = compare_runs(arguments.out / f"{task}-sift", arguments.out / f"{task}-plain")
        costs = [
            json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))["sift_overhead"]
            for run in found["sift"].runs or [found["sift"]]
        ]
        cells = (
            task,
            metric,
            str(found["plain"].summary(metric)),
            str(found["sift"].summary(metric)),
            f"{test.difference:+.2f}",
            f"[{test.low:+.2f}, {test.high:+.2f}]",
            f"{test.bootstrap_p:.3f}",
            f"{test.randomisation_p:.3f}",
            f"{sum(costs) / len(costs):.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
        (arguments.out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
