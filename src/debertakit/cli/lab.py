"""Commands that compare pretraining recipes: compare, ablate, convergence."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import TRAIN, app, quiet
from debertakit.cli.corpus import check_sources
from debertakit.cli.options import Given, build, takes
from debertakit.lab.ablations import ABLATIONS, OF_FINETUNING
from debertakit.lab.options import CompareOptions, ConvergenceOptions
from debertakit.text.progress import working

Report = Annotated[
    bool, typer.Option("--report-only", help="Train nothing. Report what has finished, also while the comparison runs.")
]


@app.command(rich_help_panel=TRAIN)
@takes({"Comparison": CompareOptions})
def compare(
    given: Given,
    recipes: Annotated[
        list[str], typer.Argument(help="Recipes (see 'deberta recipes'); the first one makes the claims.")
    ],
    corpus: Annotated[str, typer.Option(help="Text, JSONL or Parquet file, folder, or hf:NAME.")],
    out: Annotated[
        Path, typer.Option(help="Folder for runs and report. The same command continues an unfinished one.")
    ],
    report: Report = False,
) -> None:
    """Pretrain several recipes with equal parameters, text and budget, and judge the claim that the first is better."""
    if len(recipes) < 2:
        raise ValueError("pass at least two recipes to compare")
    options = build(CompareOptions, given)
    _compare({name: (name, ()) for name in recipes}, corpus, out, options, match=True, report=report)


@app.command(rich_help_panel=TRAIN)
@takes({"Comparison": CompareOptions})
def ablate(
    given: Given,
    part: Annotated[str, typer.Argument(help=f"Parts to switch off or replace: {', '.join(ABLATIONS)}.")],
    corpus: Annotated[str, typer.Option(help="Text, JSONL or Parquet file, folder, or hf:NAME.")],
    out: Annotated[
        Path, typer.Option(help="Folder for runs and report. The same command continues an unfinished one.")
    ],
    report: Report = False,
) -> None:
    """Pretrain DeBERTa with and without its parts, and judge the claim that each part makes it better."""
    if part not in ABLATIONS:
        raise ValueError(f"unknown ablation {part!r}; choose from {', '.join(ABLATIONS)}")
    options = build(CompareOptions, given)
    if part in OF_FINETUNING and not options.tasks:
        raise ValueError(f"ablate {part} compares ways of fine-tuning; it needs --tasks and --data")
    _compare(ABLATIONS[part], corpus, out, options, match=False, report=report)


@app.command(rich_help_panel=TRAIN)
@takes({"Fine-tuning": ConvergenceOptions})
def convergence(
    given: Given,
    run: Annotated[Path, typer.Argument(help="Run of 'deberta pretrain' that kept its checkpoints (keep_last).")],
    out: Annotated[Path, typer.Option(help="Folder for the fine-tuned models and the report.")],
) -> None:
    """Fine-tune successive checkpoints of a pretraining run, and draw one curve per task."""
    options = build(ConvergenceOptions, given)
    if not (run / "checkpoints").is_dir():
        raise ValueError(f"{run}: not a run of deberta pretrain (no checkpoints/)")
    quiet()
    with working("starting"):
        from debertakit.lab.convergence import converge
        from debertakit.lab.table import live_table
    with live_table() as show:
        print(converge(run, out, options, show))


def _compare(
    variants: Mapping[str, tuple[str, tuple[str, ...]]],
    corpus: str,
    out: Path,
    options: CompareOptions,
    *,
    match: bool,
    report: bool,
) -> None:
    check_sources([corpus])
    quiet()
    with working("starting"):
        from debertakit.lab.compare import compare as run
        from debertakit.lab.compare import reopen
        from debertakit.lab.plan import Entry
        from debertakit.lab.report import write_report
        from debertakit.lab.table import live_table
    entries = [Entry(name, recipe, changes) for name, (recipe, changes) in variants.items()]
    match = match and not options.quick
    if report:
        print(write_report(reopen(entries, corpus, out, options, match=match)))
        return
    try:
        with live_table() as show:
            prepared = run(entries, corpus, out, options, show, match=match)
    except KeyboardInterrupt:
        print(f"deberta: stopped; the same command continues {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    print(write_report(prepared))
