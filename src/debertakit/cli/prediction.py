"""Commands that predict: predict, embed, fill."""

import itertools
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from debertakit.cli.base import USE, app, quiet
from debertakit.cli.defaults import default_model
from debertakit.cli.options import Given, build, only, takes
from debertakit.data.guessing import column_names, require_input, resolve_columns, sample_texts
from debertakit.data.tables import TABLE_SUFFIXES
from debertakit.inference.options import (
    FileOptions,
    FillOptions,
    LengthOptions,
    LoadOptions,
    TextOptions,
    ZeroShotOptions,
)
from debertakit.model_names import check_model, stored_columns
from debertakit.text.progress import working

if TYPE_CHECKING:
    from debertakit.inference.predictor import Input, Predictor, Result


@app.command(rich_help_panel=USE)
@takes(
    {
        "Model": LoadOptions,
        "Texts on the command line": TextOptions,
        "A file of texts": FileOptions,
        "Long texts": LengthOptions,
        "--task zero-shot": ZeroShotOptions,
    }
)
def predict(
    model: Annotated[str, typer.Argument(help="Folder or hub name of a model with a trained head.")],
    given: Given,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="A file, or by task: TEXT..., QUESTION CONTEXT, TEXT PAIR, or TEXT OPTION..."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="classify, zero-shot, ner, answer, choose, fill, score or embed. Default: by the model's head."
        ),
    ] = None,
) -> None:
    """Predict on texts or on a file of any size. An interrupted run on a file resumes when repeated."""
    _predict(model, given, texts, task)


@app.command(rich_help_panel=USE)
@takes({"Model": LoadOptions, "A file of texts": FileOptions, "Long texts": LengthOptions})
def embed(
    texts: Annotated[list[str], typer.Argument(help="A file, or one or more texts.")],
    given: Given,
    model: Annotated[
        str | None, typer.Option(help="Folder or hub name. Default: the bundled model for the language of the text.")
    ] = None,
) -> None:
    """Turn texts into vectors of length 1: the product of two vectors is the similarity of their texts."""
    _predict(model, given, texts, "embed")


def _predict(model: str | None, given: Given, texts: list[str] | None, task: str | None) -> None:
    if "file" not in given and texts is not None and len(texts) == 1 and is_file_name(texts[0]):
        given, texts = {**given, "file": Path(texts[0])}, None
    _check_options(given, texts, task)
    files, loading = build(FileOptions, given), build(LoadOptions, given)
    columns = files.columns()
    local = files.file if files.engine == "local" else None  # with Ray, the file may be on another machine
    if local is not None:
        require_input(local)
    if model is not None:
        model = check_model(model)
    elif files.file is not None and files.file.is_file():
        model = default_model(sample_texts(files.file, columns))
    else:
        model = default_model(texts or [])
    if local is not None:
        columns = complete_columns(model, local, columns)
        files = replace(files, out=files.out or predictions_file(local))
    elif files.file is not None and files.out is None:
        raise ValueError("--engine ray needs --out, the folder for the predictions")
    length = build(LengthOptions, given)
    options: dict[str, Any] = {"long": length.long, "max_length": length.max_length}
    if task == "zero-shot":
        zero_shot = build(ZeroShotOptions, given)
        options |= {"labels": zero_shot.label or [], "template": zero_shot.template}
    options |= {"backend": loading.backend, "precision": loading.precision}
    quiet()
    with working("loading"):
        from debertakit.inference.tasks import load

        predictor = load(model, task, **options)
    if predictor.backend:
        print(f"backend {predictor.backend}", file=sys.stderr)
    if files.file is None:
        _predict_texts(predictor, texts or [], build(TextOptions, given))
    else:
        _predict_file(predictor, model, task, options, files, columns)


def _check_options(given: Given, texts: list[str] | None, task: str | None) -> None:
    """Raise if options of ``predict`` and ``embed`` do not go together."""
    always = (LoadOptions, LengthOptions, ZeroShotOptions)
    if "file" in given:
        only(given, "a run with a file", FileOptions, *always)
    else:
        only(given, "a run without a file", TextOptions, *always)
    if task != "zero-shot":
        only(given, "a run without --task zero-shot", LoadOptions, LengthOptions, TextOptions, FileOptions)
    if ("file" in given) == bool(texts):
        raise ValueError('pass texts (deberta predict MODEL "a text") or a file (deberta predict MODEL my.csv)')


def _predict_file(
    predictor: "Predictor[Result]",
    model: str,
    task: str | None,
    options: dict[str, Any],
    files: FileOptions,
    columns: dict[str, str],
) -> None:
    assert files.file is not None
    assert files.out is not None
    if files.engine == "ray":
        from debertakit.inference.ray import predict_with_ray

        counts = predict_with_ray(
            predictor, model, task, options, files.file, files.out, columns=columns, workers=files.workers
        )
    else:
        from debertakit.inference.files import predict_file

        columns = guess_text(predictor, files.file, columns)
        counts = predict_file(predictor, files.file, files.out, columns=columns, name=model)
    missing = f", {counts.errors:,} without a prediction" if counts.errors else ""
    if counts.first_error:
        missing += f" (the first: {counts.first_error})"
    print(f"{counts.rows:,} rows in {files.out}{missing}")


def _predict_texts(predictor: "Predictor[Result]", texts: list[str], options: TextOptions) -> None:
    from debertakit.inference.embed import Embedding

    for item in inputs_of(predictor, texts, options.pair):
        result = predictor(item)
        if options.json or isinstance(result, Embedding):
            print(json.dumps(asdict(result), ensure_ascii=False))
        else:
            confidence = result.confidence()
            print(result.headline() if confidence is None else f"{result.headline()}  ({confidence:.1%})")


def inputs_of(predictor: "Predictor[Result]", texts: list[str], pair: str | None) -> "list[Input]":
    """Turn command-line texts into inputs: one input per text, or one input from several fields (question, context)."""
    given = {} if pair is None else {"pair": pair}
    known = [field.name for field in predictor.fields]
    if given and "pair" not in known:
        raise ValueError(f"--pair: this task reads {', '.join(known)}, and no pair")
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


def is_file_name(text: str) -> bool:
    """Whether the only text is meant as a file: one word that ends like a table or text file."""
    return len(text.split()) == 1 and Path(text).suffix.lower() in TABLE_SUFFIXES


def predictions_file(source: Path) -> Path:
    """my.csv -> my-predictions.csv, or my-predictions-2.csv if that exists."""
    suffix = {".tsv": ".tsv", ".parquet": ".parquet", ".csv": ".csv", ".txt": ".csv", ".xlsx": ".csv"}
    names = (f"{source.stem}-predictions{'' if n == 1 else f'-{n}'}" for n in itertools.count(1))
    files = (source.with_name(name + suffix.get(source.suffix.lower(), ".jsonl")) for name in names)
    return next(file for file in files if not file.exists())


def complete_columns(model: str, file: Path, given: dict[str, str]) -> dict[str, str]:
    """Add the columns of the run's training file that this file also has."""
    names = column_names(file)
    stored = {field: name for field, name in stored_columns(model).items() if field in ("text", "pair")}
    return {**{field: name for field, name in stored.items() if name in names}, **given}


def guess_text(predictor: "Predictor[Result]", file: Path, columns: dict[str, str]) -> dict[str, str]:
    """Guess the text column, if the task reads a text and no column is named, or called, text."""
    first = predictor.fields[0].name
    if first != "text" or file.suffix.lower() == ".txt" or {"text", "words"} & {*columns, *column_names(file)}:
        return columns
    guessed = resolve_columns(file, columns, labelled=False)
    if guessed.get("text"):
        print(f"{file}: guessed the column text = {guessed['text']!r}; to override: --text NAME", file=sys.stderr)
        return {**columns, "text": guessed["text"]}
    return columns


@app.command(rich_help_panel=USE)
@takes({"Options": FillOptions})
def fill(
    text: Annotated[str, typer.Argument(help="Text with one or more [MASK] tokens.")],
    given: Given,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name of a masked language model. "
            "Default: the bundled model for the language of the text."
        ),
    ] = None,
) -> None:
    """Predict the masked tokens of a text."""
    options = build(FillOptions, given)
    if not text.strip():
        raise ValueError("the text is empty")
    if model is None and "[MASK]" not in text:  # of the bundled models
        raise ValueError('the text has no [MASK] to fill; write it as in "a new [MASK] opened"')
    model = check_model(model) if model is not None else default_model([text])
    quiet()
    from debertakit.inference.fill import fill_mask
    from debertakit.loading import describe

    saved = describe(model)
    if options.generator and not saved.ours:
        raise ValueError(f"--generator needs a DeBERTa v3 checkpoint; {model} is a {saved.config.model_type} model")
    network = saved.network("MaskedLM", **({"generator": True} if options.generator else {}))
    for number, candidates in enumerate(fill_mask(text, network, saved.tokenizer(), options.top), start=1):
        if number > 1:
            print()
        for candidate in candidates:
            print(f"{candidate.probability:7.2%}  {candidate.token:<16} {candidate.text}")
