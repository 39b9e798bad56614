"""Benchmarks by name: ``task("rte").read(folder)``."""

import difflib

from debertakit.tasks.suites.clue import CLUE
from debertakit.tasks.suites.diagnostics import DIAGNOSTICS
from debertakit.tasks.suites.glue import GLUE
from debertakit.tasks.suites.multiple_choice import MULTIPLE_CHOICE
from debertakit.tasks.suites.ner import NER
from debertakit.tasks.suites.squad import SQUAD
from debertakit.tasks.suites.superglue import SUPERGLUE
from debertakit.tasks.task import Task

BENCHMARKS: dict[str, Task] = {
    task.name: task for task in (*GLUE, *SUPERGLUE, *SQUAD, *MULTIPLE_CHOICE, *NER, *CLUE, *DIAGNOSTICS)
}


def task(name: str) -> Task:
    if name not in BENCHMARKS:
        plain = {known.replace("-", ""): known for known in BENCHMARKS}
        close = difflib.get_close_matches(name.lower().replace("-", "").replace("_", ""), plain, n=1)
        hint = f"did you mean {plain[close[0]]}?" if close else f"choose from {', '.join(BENCHMARKS)}"
        raise ValueError(f"unknown task {name!r}; {hint}")
    return BENCHMARKS[name]
