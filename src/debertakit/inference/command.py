"""``deberta predict``: predictions for command-line texts or for a file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from debertakit.inference.embed import Embedding
from debertakit.inference.files import predict_file
from debertakit.inference.predictor import Predictor
from debertakit.inference.tasks import load

OPTIONS = {"labels": "label"}
"""Python argument name -> command-line option, where they differ."""


def predict(
    model: str,
    texts: list[str],
    *,
    task: str | None = None,
    pair: str | None = None,
    file: Path | None = None,
    out: Path | None = None,
    columns: list[str] | None = None,
    as_json: bool = False,
    engine: str = "local",
    workers: int | None = None,
    **options: Any,
) -> None:
    given = {name: value for name, value in options.items() if value is not None}
    if (file is None) == (not texts):
        raise ValueError("give texts, or --file and --out")
    if file is not None and out is None:
        raise ValueError("--file needs --out, the file for the predictions")
    alone = {"--out": out, "--column": columns} if file is None else {"--pair": pair, "--json": as_json or None}
    for option, value in alone.items():
        if value is not None and value != []:
            raise ValueError(f"{option} belongs to --file" if file is None else f"{option} does not go with --file")
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine {engine}: local or ray")
    if engine == "ray" and file is None:
        raise ValueError("--engine ray is for files: give --file and --out")
    if workers is not None and engine != "ray":
        raise ValueError("--workers belongs to --engine ray")
    fields = named(columns or [])
    predictor = make(model, task, given)
    if file is not None and out is not None:
        if engine == "ray":
            from debertakit.inference.ray import predict_with_ray

            counts = predict_with_ray(predictor, model, task, given, file, out, columns=fields, workers=workers)
        else:
            counts = predict_file(predictor, file, out, columns=fields, name=model)
        print(f"{counts.rows:,} rows in {out}" + (f", {counts.errors:,} without a prediction" * bool(counts.errors)))
        return
    for item in inputs(predictor, texts, pair):
        result = predictor(item)
        if as_json or isinstance(result, Embedding):
            print(json.dumps(asdict(result), ensure_ascii=False))
        else:
            print(result.headline())


def make(model: str, task: str | None, options: dict[str, Any]) -> Predictor:
    try:
        return load(model, task, **options)
    except TypeError as error:  # the option belongs to another task
        name = str(error).rpartition(" ")[2].strip("'").replace("_", "-")
        raise ValueError(f"--{OPTIONS.get(name, name)} is not an option of this task") from None


def inputs(predictor: Predictor, texts: list[str], pair: str | None) -> list[dict[str, Any]]:
    """Turn command-line texts into inputs: one input per text, or one input from several fields (question, context)."""
    given = {} if pair is None else {"pair": pair}
    known = [field.name for field in predictor.fields]
    if given and "pair" not in known:
        raise ValueError(f"--pair: this task has no pair; it reads {', '.join(known)}")
    required = [field for field in predictor.fields if field.required and field.name not in given]
    fields = [field.name for field in required]
    if required[-1].holds != "text":  # a list takes all remaining texts
        *first, last = fields
        return [{**dict(zip(first, texts, strict=False)), last: texts[len(first) :], **given}]
    if len(fields) == 1:
        return [{fields[0]: text, **given} for text in texts]
    if len(texts) != len(fields):
        raise ValueError(f"this task needs {' and '.join(fields)}, in that order; got {len(texts)} texts")
    return [dict(zip(fields, texts, strict=True))]


def named(columns: list[str]) -> dict[str, str]:
    """["text=review"] -> {"text": "review"}"""
    pairs = [column.partition("=") for column in columns]
    for column, (field, equals, name) in zip(columns, pairs, strict=True):
        if not (field and equals and name):
            raise ValueError(f"--column {column}: write it as field=column, for example text=review")
    return {field: name for field, _, name in pairs}
