"""deberta corpus: prepare text for pretraining, and describe it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from debertakit.cli.base import TRAIN, app
from debertakit.cli.options import Given, build, takes
from debertakit.data.guessing import require_input
from debertakit.text.documents import split_weight
from debertakit.text.options import CorpusOptions, ReadingOptions
from debertakit.training.signals import stop_on_signals

corpora = typer.Typer(no_args_is_help=True, help="Prepare text for pretraining, or describe it.")
app.add_typer(corpora, name="corpus", rich_help_panel=TRAIN)
Sources = Annotated[list[str], typer.Argument(help="Text, JSONL or Parquet files, folders, or hf:NAME.")]


def check_sources(sources: Sequence[str]) -> None:
    for name, _ in map(split_weight, sources):
        if not name.startswith("hf:"):
            require_input(Path(name), "file or folder")


@corpora.command("prepare")
@takes({"Options": CorpusOptions})
def prepare_corpus(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Folder to write the corpus to. An interrupted command resumes.")],
    tokenizer: Annotated[str, typer.Option(help="Folder or hub name (deberta tokenizer train makes one).")],
    given: Given,
) -> None:
    """Tokenise text into memory-mapped shards, for deberta pretrain --corpus OUT."""
    check_sources(sources)
    stop_on_signals(resume_option="")
    from debertakit.text.corpus import prepare
    from debertakit.text.tokenizers import load_tokenizer

    options = build(CorpusOptions, given)
    dropped = {"keep": None, "exact": "exact", "near": options.similarity}[options.duplicates]
    corpus = prepare(
        sources,
        load_tokenizer(tokenizer),
        out,
        validation=int(options.validation) if options.validation >= 1 else options.validation,
        language=options.language,
        text_field=options.text_field,
        txt_document=options.txt_document,
        entities=options.entities,
        drop_duplicates=dropped,  # type: ignore[arg-type]
        workers=options.workers,
        engine=options.engine,
        overwrite=options.overwrite,
    )
    counts = corpus.manifest["counts"]
    removed = f", {counts['duplicates']:,} duplicates left out" if options.duplicates != "keep" else ""
    print(
        f"{out}: {counts['documents']:,} documents{removed}; {corpus.train.tokens:,} tokens for training, "
        f"{corpus.validation.tokens:,} for validation"
    )


@corpora.command("stats")
@takes({"Options": ReadingOptions})
def corpus_stats(
    sources: Sources,
    given: Given,
    tokenizer: Annotated[str | None, typer.Option(help="Count tokens with this tokenizer: folder or hub name.")] = None,
    near: Annotated[
        float | None, typer.Option(help="Also count near duplicates, from this Jaccard similarity (0.8).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count documents, tokens, lengths, duplicates and scripts of text or of a prepared corpus."""
    check_sources(sources)
    from debertakit.text.manifest import MANIFEST
    from debertakit.text.statistics import corpus_statistics, table, text_statistics
    from debertakit.text.tokenizers import load_tokenizer

    options = build(ReadingOptions, given)
    if len(sources) == 1 and (Path(sources[0]) / MANIFEST).exists():
        if tokenizer is not None or near is not None:
            raise ValueError(f"{sources[0]} is a prepared corpus: --tokenizer and --near read text")
        found = corpus_statistics(sources[0])
    else:
        loaded = None if tokenizer is None else load_tokenizer(tokenizer)
        found = text_statistics(sources, options, loaded, near)
    print(json.dumps(found, ensure_ascii=False) if as_json else table(found))
