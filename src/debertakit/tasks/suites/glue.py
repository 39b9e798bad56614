"""GLUE: nine tasks of one or two sentences (gluebenchmark.com).

Reads the archive's .tsv files, the original CoLA and STS benchmark files, and JSON lines with the hub's field names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from debertakit.data.examples import Kind, TextExample
from debertakit.data.folders import SPLITS, Patterns
from debertakit.data.texts import Columns, ReadLabel, hidden, number, one_of, reader
from debertakit.tasks import metrics
from debertakit.tasks.task import Task

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
HUB_NLI = ("entailment", "neutral", "contradiction")
"""Meaning of 0, 1 and 2 on the hub. Microsoft's -mnli checkpoints have their logits in the reverse order."""

SENTENCES = Columns(("sentence1",), ("sentence2",))

_COLA = Columns(("sentence",), headless=("source", "label", "mark", "sentence"))
_STSB_HEADLESS = ("genre", "file", "year", "old_index", "score", "sentence1", "sentence2")
_MNLI: Patterns = {
    "train": SPLITS["train"],
    "dev": ("dev_matched.*", *SPLITS["dev"]),
    "dev-mismatched": ("dev_mismatched.*",),
    "test": ("test_matched.*", *SPLITS["test"]),
    "test-mismatched": ("test_mismatched.*",),
}

V = TypeVar("V", bound=str | float)
Metric = Callable[[Sequence[TextExample], Sequence[V]], dict[str, float]]


def _task(
    name: str,
    folder: str,
    columns: Columns,
    score: Metric[V],
    metric: str,
    *,
    labels: tuple[str, ...] | None = BINARY,
    label: ReadLabel | None = None,
    patterns: Patterns = SPLITS,
    files: Mapping[str, str] | None = None,
) -> Task[TextExample, V]:
    kind: Kind = "single-label" if labels else "regression"
    return Task(
        name=name,
        kind=kind,
        read=reader(
            columns,
            label or one_of(labels or (), labels or ()),
            names=(folder, name),
            patterns=patterns,
            hub=f"nyu-mll/glue:{name}",
        ),
        score=score,
        metric=metric,
        labels=labels,
        write=write,
        files=files or {"test": f"{folder}.tsv"},
    )


def write(path: Path, examples: Sequence[TextExample], predictions: Sequence[str | float]) -> None:
    """Write index and prediction: the class name, or the score clipped to 0-5."""
    with path.open("w", encoding="utf-8") as file:
        file.write("index\tprediction\n")
        for example, prediction in zip(examples, predictions, strict=True):
            value = prediction if isinstance(prediction, str) else f"{min(max(prediction, 0.0), 5.0):.3f}"
            file.write(f"{example.id}\t{value}\n")


def _read_cola(folder: Path) -> dict[str, list[TextExample]]:
    """Read CoLA. The original dev set is in two files, in and out of domain; GLUE's dev set is both."""
    patterns: Patterns = {**SPLITS, "dev": ("in_domain_dev.*", *SPLITS["dev"]), "more": ("out_of_domain_dev.*",)}
    read = reader(_COLA, one_of(BINARY, BINARY), names=("CoLA",), patterns=patterns, hub="nyu-mll/glue:cola")
    splits = read(folder)
    if "more" in splits:
        both = splits["dev"] + splits.pop("more")
        splits["dev"] = [replace(example, id=str(index)) for index, example in enumerate(both)]
    return splits


GLUE = (
    Task(
        name="cola",
        kind="single-label",
        read=_read_cola,
        score=metrics.matthews,
        metric="mcc",
        labels=BINARY,
        write=write,
        files={"test": "CoLA.tsv"},
    ),
    _task("sst2", "SST-2", Columns(("sentence", "content")), metrics.accuracy, "accuracy"),
    _task(
        "mrpc",
        "MRPC",
        Columns(("#1 string", "sentence1"), ("#2 string", "sentence2"), ("quality", "label")),
        metrics.accuracy_and_f1,
        "average",
    ),
    _task(
        "stsb",
        "STS-B",
        Columns(("sentence1",), ("sentence2",), ("score", "label"), headless=_STSB_HEADLESS),
        metrics.correlation,
        "average",
        labels=None,
        label=lambda value: None if hidden(value) else number(value),
    ),
    _task(
        "qqp",
        "QQP",
        Columns(("question1",), ("question2",), ("is_duplicate", "label")),
        metrics.accuracy_and_f1,
        "average",
    ),
    _task(
        "mnli",
        "MNLI",
        Columns(("premise", "sentence1"), ("hypothesis", "sentence2"), ("gold_label", "label")),
        metrics.accuracy,
        "accuracy",
        labels=HUB_NLI[::-1],
        label=one_of(HUB_NLI, HUB_NLI),
        patterns=_MNLI,
        files={"test": "MNLI-m.tsv", "test-mismatched": "MNLI-mm.tsv"},
    ),
    _task("qnli", "QNLI", Columns(("question",), ("sentence",)), metrics.accuracy, "accuracy", labels=ENTAILMENT),
    _task("rte", "RTE", SENTENCES, metrics.accuracy, "accuracy", labels=ENTAILMENT),
    _task("wnli", "WNLI", SENTENCES, metrics.accuracy, "accuracy"),
)
