"""A task made of the user's own files (data/files.py)."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from debertakit.data.conll import CONLL_SUFFIXES, has_entities, read_conll, tag_names
from debertakit.data.examples import Example, Kind, Tagged
from debertakit.data.files import kind_of, known_types, read_choices, read_table
from debertakit.data.guessing import require_input, resolve_columns
from debertakit.data.squad import read_squad
from debertakit.data.tables import suffix_of
from debertakit.data.tagged import holds_tags, read_tagged
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


def scoring(kind: Kind, labels: Iterable[str]) -> tuple[Callable[..., dict[str, float]], str]:
    """Score and main metric of the user's own data."""
    plain_tags = kind == "tagging" and not has_entities(labels)
    return (metrics.tags, "accuracy") if plain_tags else SCORES[kind]


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

    Columns that are not given are guessed from the first file (data/guessing.py).
    Without ``train`` (evaluation), the model's ``kind`` and ``labels`` are used if given, else the first file decides.
    """
    paths = {name: path for name, path in (("train", train), ("dev", dev), ("test", test)) if path}
    if not paths:
        raise ValueError("pass at least one file: train, dev or test")
    first_path = next(iter(paths.values()))
    if kind not in ("tagging", "qa") or (kind == "tagging" and suffix_of(first_path) not in CONLL_SUFFIXES):
        given = {"text": text, "pair": pair, "label": label, "options": options}
        columns = resolve_columns(first_path, given, labelled=first_path != test)
        text, pair, label = columns.get("text"), columns.get("pair"), columns.get("label")
    if kind is None and text and label and not options and holds_tags(first_path, text, label):
        kind = "tagging"
    splits: dict[str, list[Any]] = {}
    for split, path in paths.items():
        require_input(path)
        seen: Sequence[Any] = splits.get("train", ())
        labelled = split != "test"
        if options:
            assert text
            assert label
            splits[split] = read_choices(path, text=text, pair=pair, options=options, label=label, labelled=labelled)
        elif text and kind == "tagging":
            splits[split] = read_tagged(path, text, label, labelled=labelled)
        elif text:
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
        elif suffix_of(path) == ".json":
            splits[split] = list(read_squad(path, train=split == "train"))
        else:
            splits[split] = read_conll(path, labelled=labelled, column=label)
        if isinstance(splits[split][0], Tagged):
            known = tag_names(seen) if seen else labels if kind in (None, "tagging") else None
            splits[split] = known_types(path, splits[split], known)
    first = next(iter(splits.values()))
    found = kind or kind_of(first)
    tags = tag_names(first) if found == "tagging" else ()
    score, metric = scoring(found, tags)
    return Task(
        name="own",
        kind=found,
        read=lambda _: splits,
        score=score,
        metric=metric,
        labels=tags or None,
        write=write,
        files={"test": "predictions.jsonl"},
    )


def write(path: Path, examples: Sequence[Example], predictions: Sequence[object]) -> None:
    """Write one {"id": ..., "prediction": ...} per line."""
    with path.open("w", encoding="utf-8") as file:
        for example, prediction in zip(examples, predictions, strict=True):
            file.write(json.dumps({"id": example.id, "prediction": prediction}, ensure_ascii=False) + "\n")
