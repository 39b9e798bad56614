"""Commands over several benchmarks or models: tasks, benchmark, ensemble."""

from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import TRAIN, app, quiet
from debertakit.cli.options import Given, build, check_sift, takes
from debertakit.data.guessing import require_input
from debertakit.finetuning.modes import EnsembleOptions, Seeds, SuiteOptions
from debertakit.finetuning.options import FinetuneOptions
from debertakit.model_names import check_model
from debertakit.tasks.listing import PUBLISHED, SUITES
from debertakit.text.progress import working
from debertakit.training.signals import stop_on_signals


@app.command(rich_help_panel=TRAIN)
def tasks() -> None:
    """List the benchmarks of --task: kind, published sizes, metric that selects the model, and files."""
    from debertakit.tasks import suites

    print(f"{'task':<15}{'collection':<14}{'kind':<14}{'train':>9}{'dev':>8}{'test':>9}  {'metric':<10}files")
    for name, found in PUBLISHED.items():
        task = suites.task(name)
        sizes = "".join(
            f"{count:>{width},}" if count else f"{'-':>{width}}"
            for count, width in ((found.train, 9), (found.dev, 8), (found.test, 9))
        )
        print(f"{name:<15}{found.collection:<14}{task.kind:<14}{sizes}  {task.metric:<10}{found.files}")
    print("translation and summarisation (deberta finetune --task translation) read pairs of texts of your own")


@app.command(rich_help_panel=TRAIN)
@takes({"Suite": SuiteOptions, "Training (all tasks)": FinetuneOptions, "Seeds": Seeds})
def benchmark(
    given: Given,
    suite: Annotated[str, typer.Argument(help=f"Suite: {', '.join(SUITES)}.")],
    model: Annotated[str, typer.Option(help="Folder or hub name of a pretrained model.")],
    data: Annotated[Path, typer.Option(help="Folder with one subfolder per task; hf: the hub.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs, the report and the leaderboard's files.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted benchmark.")] = False,
) -> None:
    """Fine-tune a model on every task of GLUE, SuperGLUE or CLUE, and write the report and the leaderboard's zip."""
    if suite not in SUITES:
        raise ValueError(f"unknown suite {suite!r}; choose from {', '.join(SUITES)}")
    check_sift(given)
    options, training, seeds = build(SuiteOptions, given), build(FinetuneOptions, given), build(Seeds, given)
    options.check(suite)
    for name in (model, *([options.mnli] if options.mnli not in ("auto", "none") else [])):
        check_model(name)
    quiet()
    stop_on_signals()
    with working("starting"):
        from debertakit.finetuning.benchmark import run_suite

    print(run_suite(suite, model, data, out, options, training, seed=seeds.seed, seeds=seeds.seeds, resume=resume))


@app.command(rich_help_panel=TRAIN)
@takes({"Options": EnsembleOptions})
def ensemble(
    given: Given,
    runs: Annotated[list[Path], typer.Argument(help="Fine-tuned models, or folders with one model per seed.")],
    out: Annotated[Path, typer.Option(help="Folder for the ensemble, which predict and serve take like one model.")],
) -> None:
    """Combine fine-tuned models into one, selected on half of the dev set and tested on the other half."""
    options = build(EnsembleOptions, given)
    for run in runs:
        require_input(run, "run")
    quiet()
    with working("starting"):
        from debertakit.finetuning.ensemble import ensemble as make

    print(make(runs, out, **vars(options)))
