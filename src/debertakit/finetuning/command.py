"""Run ``deberta finetune`` and ``deberta evaluate``, and print their results."""

from pathlib import Path
from typing import Any

from debertakit.finetuning.evaluation import check_packages, compare_runs, evaluate, load_evaluator, write_predictions
from debertakit.finetuning.significance import summary
from debertakit.finetuning.train import finetune
from debertakit.tasks import suites


def run_finetune(model: str, out: Path, seeds: int, **settings: Any) -> None:
    """``settings``: keyword arguments of ``finetune``; None means not given."""
    result = finetune(model, out, seeds=seeds, **given(settings))
    if seeds > 1:
        for name in result.scores:
            print(f"{name}: {summary([run.scores[name] for run in result.runs])} over {seeds} seeds")
    print(f"{out}: {figures(result.scores)} on the dev set, {result.seconds:,.0f} s")


def run_evaluate(model: Path, out: Path | None, **settings: Any) -> None:
    evaluation = evaluate(model, **given(settings))
    print(figures(evaluation.scores) if evaluation.scores else f"{len(evaluation.values)} predictions, no labels")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_predictions(out / f"predictions-{settings['split']}.jsonl", evaluation)


def run_predict_test(model: Path, task: str, data: Path, out: Path) -> None:
    """Predict every test set of a benchmark and write the files that its leaderboard accepts."""
    check_packages(task)
    chosen = suites.task(task)
    splits = chosen.read(data)
    found = [name for name in chosen.files if splits.get(name)]
    if not found or chosen.write is None:
        raise ValueError(f"{data}: no test set for {task}; available splits: {', '.join(splits)}")
    evaluator = load_evaluator(model, chosen)
    out.mkdir(parents=True, exist_ok=True)
    for name in found:
        path = out / chosen.files[name]
        aside = path.with_name(path.name + ".part")
        chosen.write(aside, splits[name], evaluator(splits[name]).values)
        aside.replace(path)
        print(f"{path}: {len(splits[name]):,} predictions")


def run_compare(a: Path, b: Path, split: str, resamples: int) -> None:
    found = compare_runs(a, b, split, resamples)
    print(f"{a}: {found.a:.2f}   {b}: {found.b:.2f}")
    print(f"difference {found.difference:+.2f}, 95 % interval [{found.low:+.2f}, {found.high:+.2f}]")
    tests = {"paired bootstrap": found.bootstrap_p, "approximate randomisation": found.randomisation_p}
    if found.mcnemar_p is not None:
        tests["McNemar"] = found.mcnemar_p
    for name, p in tests.items():
        print(f"{name}: p = {p:.4f}")


def figures(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None and value != []}
