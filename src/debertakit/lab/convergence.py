"""``deberta convergence``: fine-tune successive checkpoints of a pretraining run (section 5.2 of the paper).

OUT/TASK/step-N/seed-S/     fine-tuned models, as ``deberta finetune`` writes them
OUT/results.json, report.md, report.html
"""

import json
import os
from pathlib import Path

from debertakit.files import write_json, write_text
from debertakit.finetuning.charts import Series, chart
from debertakit.finetuning.rendering import Cell, Section, as_html, as_markdown
from debertakit.finetuning.significance import Summary, summary
from debertakit.lab.jobs import Job, Show, run_jobs
from debertakit.lab.options import ConvergenceOptions
from debertakit.lab.report import COLOURS
from debertakit.tasks import suites
from debertakit.theme import Say


def converge(run: Path, out: Path, options: ConvergenceOptions, show: Show) -> str:
    """Fine-tune every checkpoint on every task, and write the report. A repeated command continues."""
    for task in options.task_names:
        suites.task(task)  # raises on an unknown name
    checkpoints = sorted((run / "checkpoints").glob("step-*[0-9]"))
    if len(checkpoints) < 2:
        raise ValueError(
            f"{run} kept {len(checkpoints)} checkpoints; pretrain with --set keep_last=100 to keep them all"
        )
    jobs = [
        _job(out, checkpoint, task, seed, options)
        for seed in range(options.seeds)
        for checkpoint in checkpoints
        for task in options.task_names
    ]
    run_jobs(jobs, show, threads=int(os.environ.get("OMP_NUM_THREADS", "1")))
    found = {task: [_scores(out, each, task, options.seeds) for each in checkpoints] for task in options.task_names}
    tokens = [json.loads((each / "progress.json").read_text(encoding="utf-8"))["tokens"] for each in checkpoints]
    return _write(run, out, found, tokens)


def _folder(out: Path, checkpoint: Path, task: str, seed: int) -> Path:
    return out / task / checkpoint.name / f"seed-{seed}"


def _job(out: Path, checkpoint: Path, task: str, seed: int, options: ConvergenceOptions) -> Job:
    folder = _folder(out, checkpoint, task, seed)
    settings: dict[str, object] = {"model": str(checkpoint), "task": task, "data": str(options.data), "seed": seed}
    settings |= {"out": str(folder), "done": str(folder / "metrics.json")}
    settings["options"] = {} if options.epochs is None else {"epochs": options.epochs}
    name = f"{task} from {checkpoint.name}, seed {seed}"
    return Job(
        name, "finetune", settings, folder / "metrics.json", out / "logs" / f"{task}-{checkpoint.name}-{seed}.log"
    )


def _scores(out: Path, checkpoint: Path, task: str, seeds: int) -> Summary:
    metric = suites.task(task).metric
    files = [_folder(out, checkpoint, task, seed) / "metrics.json" for seed in range(seeds)]
    return summary([json.loads(file.read_text(encoding="utf-8"))["dev"][metric] for file in files])


def _write(run: Path, out: Path, found: dict[str, list[Summary]], tokens: list[int]) -> str:
    lines = [
        Series(
            task,
            [(count / 1e6, each.mean) for count, each in zip(tokens, scores, strict=True)],
            COLOURS[number % len(COLOURS)],
            band=[(count / 1e6, each.low, each.high) for count, each in zip(tokens, scores, strict=True)],
        )
        for number, (task, scores) in enumerate(found.items())
    ]
    drawn = chart(Say("dev score by million tokens of pretraining", "开发集分数（按预训练的百万词元）"), lines)
    rows = [(f"{count:,}", *(str(scores[i]) for scores in found.values())) for i, count in enumerate(tokens)]
    header: tuple[Cell, ...] = (Say("tokens", "词元"), *(f"{task} ({suites.task(task).metric})" for task in found))
    section = Section(Say("Scores of the checkpoints", "各检查点的分数"), header, rows, "", drawn, wide=True)
    title = f"{run.resolve().name}: convergence"
    write_text(out / "report.html", as_html(title, "", [section]))
    text = as_markdown(title, [], [section])
    write_text(out / "report.md", text)
    curves = {
        task: [{"tokens": t, **vars(s)} for t, s in zip(tokens, scores, strict=True)] for task, scores in found.items()
    }
    write_json(out / "results.json", curves)
    return text
