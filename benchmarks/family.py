"""Compare the small recipes at equal wall-clock time on one text: steps, tokens per second, validation metrics.

    python benchmarks/family.py TEXT OUT [--minutes 10] [--seeds 2] [--threads 2] [--only NAME ...]

By default all small recipes run, one after another, each in its own process. Finished runs are skipped and interrupted
runs resume, so repeat the same command after an interruption. Each kind of tokenizer (vocabulary of 8,192) and its
corpus are prepared once. OUT/table.md is rewritten after every run; its column "first" is the validation at step 200,
after the warm-up.

Metrics of different objectives, vocabularies, masks or text formats (pairs, blocks) are not comparable: compare a row
with its own first validation, or with rows that differ only in the model. The mlm metrics of v3 and ELECTRA are those
of the generator.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from debertakit.pretraining.from_text import get_corpus, get_tokenizer
from debertakit.pretraining.recipes import RECIPES, recipe
from debertakit.pretraining.settings import override
from debertakit.training.log import read

SMALL = [name for name in RECIPES if "tiny" in name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=SMALL, choices=SMALL)
    parser.add_argument("--at", type=int, help="add a column with the metrics at this step")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        for name in arguments.only:
            run(name, seed, arguments)
            (arguments.out / "table.md").write_text(table(arguments.out, arguments.at), encoding="utf-8")
    print(table(arguments.out, arguments.at))


def run(name: str, seed: int, arguments: argparse.Namespace) -> None:
    out = arguments.out / f"{name}-{seed}"
    if (out / "README.md").exists():
        return
    config = override(recipe(name), arguments.set)
    shared = arguments.out / config.data.tokenizer
    shared.mkdir(parents=True, exist_ok=True)
    tokenizer = get_tokenizer(config, None, arguments.text, shared)
    get_corpus(config, arguments.text, tokenizer, shared)
    command = [sys.executable, "-m", "debertakit.cli", "pretrain", name, "--corpus", str(shared / "corpus")]
    command += ["--tokenizer", str(shared / "tokenizer"), "--out", str(out), "--minutes", str(arguments.minutes)]
    assignments = [f"seed={seed}", "evaluate_every=200", "evaluate_tokens=131072", *arguments.set]
    command += ["--resume", *(word for assignment in assignments for word in ("--set", assignment))]
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)})


def table(out: Path, at: int | None) -> str:
    """Markdown table with one row per recipe; each cell lists the seeds in order."""
    titles = ["recipe", "steps", "tokens/s", "first", "last"] + ([f"at step {at:,}"] if at else [])
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    runs: dict[str, list[tuple[list[dict], list[float]]]] = {}
    for path in sorted(out.glob("*/log.jsonl")):
        records = read(path)
        checks = [record for record in records if record["kind"] == "validation"]
        speeds = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
        if checks and speeds:
            runs.setdefault(path.parent.name.rpartition("-")[0], []).append((checks, speeds))
    for name, seeds in runs.items():
        steps = ", ".join(f"{checks[-1]['step']:,}" for checks, _ in seeds)
        speed = ", ".join(f"{median(speeds):,.0f}" for _, speeds in seeds)
        cells = [name, steps, speed, metrics([checks[0] for checks, _ in seeds]), metrics([c[-1] for c, _ in seeds])]
        if at:
            there = [[check for check in checks if check["step"] >= at] for checks, _ in seeds]
            cells.append(metrics([checks[0] for checks in there]) if all(there) else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def metrics(checks: list[dict]) -> str:
    """Each metric's name, and its value for every seed."""
    names = [name for name in checks[0] if name not in ("kind", "step", "elapsed") and "perplexity" not in name]
    return "; ".join(f"{name} {', '.join(f'{check[name]:.3f}' for check in checks)}" for name in names)


if __name__ == "__main__":
    main()
