"""Score a small pretrained model: minimal pairs, and the dev sets of small tasks after fine-tuning. One seed each.

    python benchmarks/scores.py MODEL --language en --data DATA --pairs PAIRS --out DIR

DATA contains glue/SST-2, glue/CoLA, glue/RTE, glue/STS-B and wnut17 (en), or chinese/tnews, chinese/chnsenticorp and
chinese/cluener (zh). The results are written to DIR/scores.md, the format that benchmarks/bundle.py takes. Repeat the
command to resume an interrupted run.
"""

import argparse
from pathlib import Path

from transformers.utils import logging

from debertakit import finetune
from debertakit.files import write_text
from debertakit.lab.minimal_pairs import score_pairs

# task: folder, metric, epochs, sequence length. All: 5e-4 (--lr), 32 examples per step.
JOBS = {
    "en": {
        "sst2": ("glue/SST-2", "accuracy", 1, 64),
        "cola": ("glue/CoLA", "mcc", 3, 64),
        "rte": ("glue/RTE", "accuracy", 3, 256),
        "stsb": ("glue/STS-B", "spearman", 3, 128),
        "wnut17": ("wnut17", "f1", 5, 128),
    },
    "zh": {
        "tnews": ("chinese/tnews", "accuracy", 1, 64),
        "chnsenticorp": ("chinese/chnsenticorp", "accuracy", 2, 256),
        "cluener": ("chinese/cluener", "f1", 3, 128),
    },
}
PAIRS = {"en": "BLiMP", "zh": "ZhoBLiMP"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--language", choices=JOBS, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, help="folder of .jsonl files of minimal pairs")
    parser.add_argument("--limit", type=int, default=100, help="minimal pairs of each paradigm")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--only", action="append", choices=[task for jobs in JOBS.values() for task in jobs])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    rows = ["| task | score | baseline | epochs |", "|---|---|---|---|"]
    if given.pairs is not None:
        found = score_pairs(given.model, [given.pairs], given.limit)
        write_text(given.out / "pairs.txt", f"{found}\n")
        pairs = sum(total for _, total in found.correct.values())
        about = f"{pairs:,} minimal pairs of {len(found.correct)} paradigms of {PAIRS[given.language]}"
        rows.append(f"| {about} | {100 * found.mean:.1f} % | chance: 50 % | not fine-tuned |")
    jobs = JOBS[given.language]
    for task in given.only or jobs:
        folder, metric, epochs, length = jobs[task]
        settings = {"epochs": epochs, "max_length": length, "lr": given.lr, "batch_size": 32}
        result = finetune(given.model, given.out / task, task=task, data=given.data / folder, resume=True, **settings)
        baseline = result.verdict.partition("(")[2].partition(")")[0]
        shown = baseline if ":" in baseline else ""
        rows.append(f"| {task}, dev, {metric} | {result.scores[metric]:.1f} | {shown} | {epochs} |")
        print(rows[-1], flush=True)
        write_text(given.out / "scores.md", "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
