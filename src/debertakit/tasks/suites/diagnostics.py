"""Diagnostic test sets that leaderboards ask for besides their tasks. They have no training data.

    ax      GLUE: 1,104 pairs of many linguistic phenomena, predicted by a model of MNLI
    ax-b    SuperGLUE: the same pairs with two labels, predicted by a model of RTE
    ax-g    SuperGLUE: Winogender, pairs of sentences that differ only in a pronoun, predicted by a model of RTE

The labels of ax are not published; those of ax-b and ax-g are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from debertakit.data.examples import TextExample
from debertakit.data.folders import Patterns, read_splits
from debertakit.data.problems import Problems
from debertakit.data.tables import TableRow
from debertakit.data.texts import Columns, ReadLabel, lookup, one_of, texts
from debertakit.tasks import metrics
from debertakit.tasks.suites.glue import ENTAILMENT, HUB_NLI, write
from debertakit.tasks.suites.superglue import write_labels
from debertakit.tasks.task import Task

_COLUMNS = Columns(("sentence1", "premise"), ("sentence2", "hypothesis"))


def _reader(
    label: ReadLabel, names: Sequence[str], patterns: Patterns, hub: str
) -> Callable[[Path], dict[str, list[TextExample]]]:
    def read(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[TextExample]:
        kept = list(rows)
        groups = {
            str(lookup(row.values, ("idx", "index"))): str(row.values["pair_id"])
            for row in kept
            if "pair_id" in row.values
        }
        found = texts(iter(kept), problems, _COLUMNS, label, labelled)
        return [replace(example, group=groups.get(example.id)) for example in found]

    return lambda folder: read_splits(folder, read, names=names, patterns=patterns, hub=hub)


def accuracy_and_parity(examples: Sequence[TextExample], predictions: Sequence[str]) -> dict[str, float]:
    """Accuracy, and the share of pairs for which both pronouns get the same prediction (gender parity)."""
    pairs: dict[str | None, set[str]] = defaultdict(set)
    for example, prediction in zip(examples, predictions, strict=True):
        pairs[example.group].add(prediction)
    same = 100 * sum(len(found) == 1 for found in pairs.values()) / len(pairs)
    return {**metrics.accuracy(examples, predictions), "parity": same}


DIAGNOSTICS = (
    Task(
        name="ax",
        kind="single-label",
        read=_reader(
            one_of(HUB_NLI, HUB_NLI), ("diagnostic", "AX"), {"test": ("diagnostic.*", "AX.*")}, "nyu-mll/glue:ax"
        ),
        score=metrics.matthews,
        metric="mcc",
        labels=HUB_NLI[::-1],
        write=write,
        files={"test": "AX.tsv"},
    ),
    Task(
        name="ax-b",
        kind="single-label",
        read=_reader(one_of(ENTAILMENT, ENTAILMENT), ("AX-b",), {"test": ("AX-b.*",)}, "aps/super_glue:axb"),
        score=metrics.matthews,
        metric="mcc",
        labels=ENTAILMENT,
        write=write_labels,
        files={"test": "AX-b.jsonl"},
    ),
    Task(
        name="ax-g",
        kind="single-label",
        read=_reader(one_of(ENTAILMENT, ENTAILMENT), ("AX-g",), {"test": ("AX-g.*",)}, "aps/super_glue:axg"),
        score=accuracy_and_parity,
        metric="accuracy",
        labels=ENTAILMENT,
        write=write_labels,
        files={"test": "AX-g.jsonl"},
    ),
)
