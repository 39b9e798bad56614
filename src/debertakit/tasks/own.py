"""A task made of the user's own files (data/files.py)."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from debertakit.data.conll import read_conll, tag_names
from debertakit.data.examples import Example, Kind
from debertakit.data.files import kind_of, known_types, read_choices, read_table
from debertakit.data.squad import read_squad
from debertakit.tasks import metrics
from debertakit.tasks.task import Task

SCORES: dict[Kind, tuple[Callable[..., dict[str, float]], str]] = {
    "single-label": (metrics.classification, "accuracy"),
    "multi-label": (metrics.multi_label, "micro_f1"),
    "regression": (metrics.correlation, "pearson"),
    "tagging": (metrics.entities, "f1"),
    "qa": (metrics.squad, "f1"),
    "choice": (metrics.accuracy, "accuracy"),
}


def own_task(
    train: Path | None,
    dev: Path | None = None,
    test: Path | None = None,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    options: Sequence[str] = (),
    separator: str | None = None,
    kind: Kind | None = None,
    labels: Collection[str] | None = None,
) -> Task:
    """Build a task from files. The files are read immediately; ``Task.read`` returns them for any folder.

    Without ``train`` (evaluation), the model's ``kind`` and ``labels`` are used if given, else the first file decides.
    """
    paths = {name: path for name, path in (("train", train), ("dev", dev), ("test", test)) if path}
    if not paths:
        raise ValueError("pass at least one file: train, dev or test")
    splits: dict[str, list[Any]] = {}
    for split, path in paths.items():
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
        seen: Sequence[Any] = splits.get("train", ())
        labelled = split != "test"
        if options:
            if not text or not label:
                raise ValueError("a file with options also needs the columns text and label")
            splits[split] = read_choices(path, text=text, pair=pair, options=options, label=label, labelled=labelled)
        elif text:
            if not label:
                raise ValueError("a table needs the column label")
            splits[split] = read_table(
                path,
                text=text,
                pair=pair,
                label=label,
                separator=separator,
                kind=kind,
                seen=seen,
                labels=labels,
                labelled=labelled,
            )
        elif path.suffix == ".json":
            splits[split] = list(read_squad(path, train=split == "train"))
        else:
            known = tag_names(seen) if seen else labels if kind in (None, "tagging") else None
            splits[split] = known_types(path, read_conll(path, labelled=labelled), known)
    first = next(iter(splits.values()))
    found = kind or kind_of(first)
    score, metric = SCORES[found]
    return Task(
        name="own",
        kind=found,
        read=lambda _: splits,
        score=score,
        metric=metric,
        labels=tag_names(first) if found == "tagging" else None,
        write=write,
        files={"test": "predictions.jsonl"},
    )


def write(path: Path, examples: Sequence[Example], predictions: Sequence[object]) -> None:
    """Write one {"id": ..., "prediction": ...} per line."""
    with path.open("w", encoding="utf-8") as file:
        for example, prediction in zip(examples, predictions, strict=True):
            file.write(json.dumps({"id": example.id, "prediction": prediction}, ensure_ascii=False) + "\n")
