"""The user's own files: tables of texts, tagged words, questions or options. The kind of task is inferred from them.

    file                                       examples     kind
    CSV, TSV, JSONL, JSON, Parquet, Excel      TextExample  regression if the labels are numbers with fractions,
      with columns ``text``, ``label``                      multi-label if they are lists or ``separator`` joins them,
                                                            else single-label
      and ``options``                          Choice       choice
      with lists ``text`` and ``label``        Tagged       tagging (tagged.py)
    CoNLL                                      Tagged       tagging
    SQuAD's .json                              Question     qa

guessing.py tells tables, CoNLL and SQuAD apart, and guesses columns that are not given.

Rows of dev and test whose label does not occur in training cannot be predicted. They are skipped and counted.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from debertakit.data.choices import choices
from debertakit.data.conll import has_entities
from debertakit.data.examples import Choice, Example, Kind, Tagged, TextExample, gold
from debertakit.data.problems import LIMIT, Problems, shorten
from debertakit.data.tables import NUMBERS, TABLE_SUFFIXES, TableRow, quoting_of, read_rows, suffix_of, table
from debertakit.data.texts import Columns, LabelValue, ReadLabel, blank, number, texts

DELIMITED = (".tsv", ".csv", ".txt")


def read_table(
    path: Path,
    *,
    text: str,
    pair: str | None = None,
    label: str | None = None,
    separator: str | None = None,
    kind: Kind | None = None,
    seen: Sequence[TextExample] = (),
    labels: Collection[str] | None = None,
    labelled: bool = True,
) -> list[TextExample]:
    """Read texts from a table.

    ``seen``: training examples, which fix the kind and the labels of the other files.
    ``labels``: all allowed labels, if a model fixes them.
    ``labelled``: if False, labels may be missing.
    """
    problems = Problems(path)
    rows = list(table_rows(path, problems, [name for name in (text, pair, label) if name]))
    columns = Columns(
        (text.casefold(),), (pair.casefold(),) if pair else (), (label.casefold(),) if label else (), id=("id",)
    )
    inferred = not seen and kind is None
    if seen:
        kind = kind_of(seen)
    elif kind is None and label:
        values = [{key.casefold(): value for key, value in row.values.items()}.get(label.casefold()) for row in rows]
        kind = infer_kind(
            [value.split(separator) if separator and isinstance(value, str) else value for value in values]
        )
    if labels is None and seen and kind != "regression":
        labels = _labels(seen)
    read_label = _label_reader(kind or "single-label", separator, labels)
    examples = texts(iter(rows), problems, columns, read_label, labelled and label is not None)
    problems.finish(len(examples))
    if kind == "single-label" and inferred:
        _not_free_text(path, examples)
    return examples


def read_choices(
    path: Path, *, text: str, options: Sequence[str], label: str, pair: str | None = None, labelled: bool = True
) -> list[Choice]:
    """Read multiple-choice examples. ``options``: one column per option, or a single column that holds a list."""
    problems = Problems(path)
    rows = table_rows(path, problems, [name for name in (text, pair, label, *options) if name])
    examples = choices(rows, problems, text, pair, options, label, labelled=labelled)
    problems.finish(len(examples))
    return examples


def infer_kind(labels: Sequence[object]) -> Kind:
    """Infer the kind from a label column. Regression allows up to 5 % non-numbers; NaN counts as a missing label."""
    given = [value for value in labels if not blank(value) and not _is_nan(value)]
    if any(isinstance(value, (list, tuple)) for value in given):
        return "multi-label"
    scores = [score for value in given if (score := _as_number(value)) is not None]
    fractions = any(math.isfinite(score) and score % 1 for score in scores)
    return "regression" if fractions and len(scores) >= (1 - LIMIT) * len(given) else "single-label"


def kind_of(examples: Sequence[Example]) -> Kind:
    """Infer the kind from examples that have been read."""
    first = examples[0]
    if isinstance(first, TextExample):
        label = gold(first)
        return {tuple: "multi-label", float: "regression"}.get(type(label), "single-label")  # type: ignore[return-value]
    return "tagging" if isinstance(first, Tagged) else "choice" if isinstance(first, Choice) else "qa"


def table_rows(path: Path, problems: Problems, columns: Sequence[str]) -> Iterator[TableRow]:
    """Read a table. If all ``columns`` are numbers (from 1), it has no header unless its first line has these names."""
    if suffix_of(path) not in TABLE_SUFFIXES:
        raise ValueError(f"{path}: not a table; expected one of {', '.join(TABLE_SUFFIXES)}")
    if suffix_of(path) not in DELIMITED:
        return read_rows(path, problems)
    headless = NUMBERS if all(name.isdecimal() for name in columns) else ()
    needed = {name.casefold() for name in columns}
    return table(path, problems, quoting=quoting_of(path), headless=headless, needed=needed)


def _label_reader(kind: Kind, separator: str | None, known: Collection[str] | None) -> ReadLabel:
    def checked(name: str) -> str:
        if known is not None and name not in known:
            raise ValueError("label unseen in training", shorten(name))
        return name

    def single(value: object) -> LabelValue | None:
        if isinstance(value, (list, dict)):
            raise ValueError("not a single label", shorten(value))
        return None if blank(value) or _is_nan(value) else checked(str(value).strip())

    def several(value: object) -> LabelValue | None:
        if value is None or _is_nan(value):
            return None
        names = value if isinstance(value, (list, tuple)) else str(value).split(separator) if separator else [value]
        return tuple(checked(str(name).strip()) for name in names if not blank(name))

    def score(value: object) -> LabelValue | None:
        return None if blank(value) else number(value)

    readers: Mapping[Kind, ReadLabel] = {"single-label": single, "multi-label": several, "regression": score}
    if kind not in readers:
        raise ValueError(f"a table of texts cannot be read as {kind}; it can be read as {', '.join(readers)}")
    return readers[kind]


def _labels(examples: Sequence[TextExample]) -> set[str]:
    return {name for e in examples for name in (e.label if isinstance(e.label, tuple) else (str(e.label),))}


def _not_free_text(path: Path, examples: Sequence[TextExample]) -> None:
    labels = _labels(examples)
    if len(examples) >= 20 and len(labels) > len(examples) / 2:
        some = ", ".join(shorten(label) for label in sorted(labels)[:3])
        raise ValueError(
            f"{path}: {len(labels)} different labels in {len(examples)} rows ({some}); is it the right label column?"
        )


def known_types(path: Path, examples: list[Tagged], known: Collection[str] | None) -> list[Tagged]:
    """Skip sentences with an entity type that no ``known`` tag has, or with an unknown tag if tags mark no entities."""
    if known is None:
        return examples
    prefix = len("B-") if has_entities(known) else 0
    types, problems = {tag[prefix:] for tag in known} | ({""} if prefix else set()), Problems(path, "sentence")
    kept = []
    for example in examples:
        new = sorted(tag for tag in set(example.tags or ()) if tag[prefix:] not in types)
        if new:
            problems.skip(int(example.id) + 1, "label unseen in training", new[0])
        else:
            kept.append(example)
    problems.finish(len(kept))
    return kept


def _is_nan(value: object) -> bool:
    score = _as_number(value)
    return score is not None and math.isnan(score)


def _as_number(value: object) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
