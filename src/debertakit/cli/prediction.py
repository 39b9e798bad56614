"""Commands that predict: predict, fill."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from debertakit.cli.base import USE, app, quiet
from debertakit.cli.options import Given, build, only, takes
from debertakit.inference.options import (
    FileOptions,
    FillOptions,
    LengthOptions,
    LoadOptions,
    TextOptions,
    ZeroShotOptions,
)

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
        list[str] | None, typer.Argument(help="By task: TEXT..., QUESTION CONTEXT, TEXT PAIR, or TEXT OPTION...")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="classify, zero-shot, ner, answer, choose, fill, score or embed. Default: by the model's head."
        ),
    ] = None,
) -> None:
    """Predict on texts or on a file of any size. An interrupted run on a file resumes when repeated."""
    always = (LoadOptions, LengthOptions, ZeroShotOptions)
    if "file" in given:
        only(given, "a run with --file", FileOptions, *always)
    else:
        only(given, "a run without --file", TextOptions, *always)
    if task != "zero-shot":
        only(given, "a run without --task zero-shot", LoadOptions, LengthOptions, TextOptions, FileOptions)
    if ("file" in given) == bool(texts):
        raise ValueError("pass either texts, or --file and --out")
    files = build(FileOptions, given)
    if files.file is not None and files.out is None:
        raise ValueError("--file needs --out, the file for the predictions")
    columns = column_names(files.column or [])
    length = build(LengthOptions, given)
    options: dict[str, str | int | list[str] | None] = {"long": length.long, "max_length": length.max_length}
    if task == "zero-shot":
        zero_shot = build(ZeroShotOptions, given)
        options |= {"labels": zero_shot.label or [], "template": zero_shot.template}
    backend = build(LoadOptions, given).backend
    from debertakit.inference.tasks import load

    quiet()
    predictor = load(model, task, backend=backend, **options)
    if files.file is None or files.out is None:
        _predict_texts(predictor, texts or [], build(TextOptions, given))
        return
    if files.engine == "ray":
        from debertakit.inference.ray import predict_with_ray

        options["backend"] = backend
        counts = predict_with_ray(
            predictor, model, task, options, files.file, files.out, columns=columns, workers=files.workers
        )
    else:
        from debertakit.inference.files import predict_file

        counts = predict_file(predictor, files.file, files.out, columns=columns, name=model)
    missing = f", {counts.errors:,} without a prediction" if counts.errors else ""
    print(f"{counts.rows:,} rows in {files.out}{missing}")


def _predict_texts(predictor: "Predictor[Result]", texts: list[str], options: TextOptions) -> None:
    from debertakit.inference.embed import Embedding

    for item in inputs_of(predictor, texts, options.pair):
        result = predictor(item)
        if options.json or isinstance(result, Embedding):
            print(json.dumps(asdict(result), ensure_ascii=False))
        else:
            print(result.headline())


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


def column_names(columns: list[str]) -> dict[str, str]:
    """["text=review"] -> {"text": "review"}"""
    pairs = [column.partition("=") for column in columns]
    for column, (field, equals, name) in zip(columns, pairs, strict=True):
        if not (field and equals and name):
            raise ValueError(f"--column {column}: write it as field=column, for example text=review")
    return {field: name for field, _, name in pairs}


@app.command(rich_help_panel=USE)
@takes({"Options": FillOptions})
def fill(
    text: Annotated[str, typer.Argument(help="Text with one or more [MASK] tokens.")],
    model: Annotated[str, typer.Option(help="Folder or hub name of a masked language model.")],
    given: Given,
) -> None:
    """Predict the masked tokens of a text."""
    from debertakit.inference.fill import fill_mask
    from debertakit.loading import describe

    quiet()
    options = build(FillOptions, given)
    if not text.strip():
        raise ValueError("the text is empty")
    saved = describe(model)
    if options.generator and not saved.ours:
        raise ValueError(f"--generator needs a DeBERTa v3 checkpoint; {model} is a {saved.config.model_type} model")
    network = saved.network("MaskedLM", **({"generator": True} if options.generator else {}))
    for number, candidates in enumerate(fill_mask(text, network, saved.tokenizer(), options.top), start=1):
        if number > 1:
            print()
        for candidate in candidates:
            print(f"{candidate.probability:7.2%}  {candidate.token:<16} {candidate.text}")
