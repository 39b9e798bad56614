"""Benchmarks by name: ``task("rte").read(folder)``."""

import difflib

from debertakit.finetuning import choices, clue, conll, glue, qa, superglue
from debertakit.finetuning.examples import Task

TASKS: dict[str, Task] = {
    task.name: task for family in (glue, superglue, qa, choices, conll, clue) for task in family.TASKS
}


def task(name: str) -> Task:
    if name not in TASKS:
        plain = {known.replace("-", ""): known for known in TASKS}
        close = difflib.get_close_matches(name.lower().replace("-", "").replace("_", ""), plain, n=1)
        hint = f"did you mean {plain[close[0]]}?" if close else f"choose from {', '.join(TASKS)}"
        raise ValueError(f"unknown task {name!r}; {hint}")
    return TASKS[name]
