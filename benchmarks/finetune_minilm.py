"""Fine-tune a real pretrained model: MiniLM on the full SST-2, RTE, STS-B and WNUT-17, one seed each.

RTE starts from the MNLI model in DIR/mnli, as in the paper, if that model exists.

    python benchmarks/finetune_minilm.py DATA --out DIR [--model DIR] [--only rte]

DATA contains glue/MNLI, glue/RTE, glue/STS-B, glue/SST-2 and wnut17. Repeat the command to resume an interrupted run.
The results are written to DIR/table.md.
"""

import argparse
import json
import time
from pathlib import Path

from minilm import minilm
from transformers.utils import logging

from debertakit import evaluate, finetune

# Overrides of the recommended values for models of this size (finetuning/hyperparameters.py: learning rate 1e-4,
# warm-up 0.1).
JOBS = {
    "mnli": ("glue/MNLI", "accuracy", {"epochs": 1, "lr": 1e-4, "batch_size": 16, "max_length": 128}),
    "rte": ("glue/RTE", "accuracy", {"epochs": 3, "lr": 5e-5, "batch_size": 16, "max_length": 256}),
    "stsb": ("glue/STS-B", "spearman", {"epochs": 3, "lr": 1e-4}),
    "wnut17": ("wnut17", "f1", {"epochs": 4, "lr": 2e-4, "batch_size": 16}),
    "sst2": ("glue/SST-2", "accuracy", {"epochs": 1, "lr": 1e-4, "batch_size": 32}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=None, help="model to fine-tune instead of MiniLM")
    parser.add_argument("--only", choices=JOBS, action="append")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = arguments.model or minilm()
    lines = [f"{model.parent.name if arguments.model is None else model.name}", ""]
    lines += ["| task | metric | dev | test | training | evaluation of dev |", "|---|---|---|---|---|---|"]
    for task in arguments.only or JOBS:
        folder, metric, settings = JOBS[task]
        out = arguments.out / task
        begin = arguments.out / "mnli" if task == "rte" and (arguments.out / "mnli").exists() else model
        result = finetune(begin, out, task=task, data=arguments.data / folder, resume=True, **settings)
        began = time.monotonic()
        evaluate(out, task=task, data=arguments.data / folder)
        seconds = time.monotonic() - began
        test = test_score(out, task, arguments.data / folder, metric)
        lines.append(
            f"| {task} | {metric} | {result.scores[metric]:.2f} | {'-' if test is None else f'{test:.2f}'} | "
            f"{result.seconds:,.0f} s | {seconds:.1f} s |"
        )
        print(lines[-1], flush=True)
        (arguments.out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (arguments.out / "versions.json").write_text(json.dumps(versions(), indent=1), encoding="utf-8")


def test_score(model: Path, task: str, data: Path, metric: str) -> float | None:
    try:
        return evaluate(model, task=task, data=data, split="test").scores.get(metric)
    except ValueError:  # the data has no test set
        return None


def versions() -> dict[str, str | int]:
    import torch
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()
