"""Make the outputs of ``deberta explain``: the page, the figures and the attributions."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from debertakit.explain.options import Inputs, Outputs, check_outputs
from debertakit.explain.parts import Subject, cells, encode, look, shares, take_apart

CORPUS_TEXTS, CORPUS_TOKENS = 256, 128  # enough for stable shares


def make_outputs(models: Sequence[str], texts: list[str], inputs: Inputs, outputs: Outputs) -> list[str]:
    """Create the requested files and return the lines to print."""
    check_outputs(models, texts, inputs, outputs)
    lines, model = [], models[0]
    if inputs.corpus is not None and outputs.out is not None and outputs == Outputs(out=outputs.out):
        return _corpus_page(models, inputs.corpus, outputs.out)
    if outputs.out is not None or outputs.png is not None or outputs.shares is not None:
        subjects = [Subject.load(name) for name in (model, inputs.against) if name is not None]
    if outputs.out is not None or outputs.png is not None:
        lines += _page_and_figure(subjects, texts, inputs.pair, outputs.out, outputs.png)
    if outputs.shares is not None:
        lines.append(_shares(subjects[0], texts, inputs.corpus, outputs.shares))
    if outputs.attribution:
        lines += _attributions(texts, model, inputs.pair)
    return lines


def _page_and_figure(
    subjects: list[Subject], texts: list[str], pair: str | None, out: Path | None, png: Path | None
) -> list[str]:
    shown = texts if out is not None else texts[:1]  # the figure draws one text
    encoded = [[encode(subject, text, pair) for text in shown] for subject in subjects]
    if out is not None:
        from debertakit.explain.page import check_size

        size = sum(cells(subject, text) for subject, own in zip(subjects, encoded, strict=True) for text in own)
        check_size(size, max(len(text.tokens) for own in encoded for text in own))
    anatomies = [[look(subject, text) for text in own] for subject, own in zip(subjects, encoded, strict=True)]
    lines = []
    if out is not None:
        from debertakit.explain.page import write_page

        write_page(anatomies, out)
        lines.append(f"{out}: {out.stat().st_size / 1e6:.1f} MB, open it in a browser")
    if png is not None:
        from debertakit.explain.figure import pattern_figure

        pattern_figure([of_model[0] for of_model in anatomies], png)
        lines.append(str(png) if len(texts) == 1 else f"{png}: shows the first text")
    return lines


def _shares(subject: Subject, texts: list[str], corpus: str | None, png: Path) -> str:
    from debertakit.explain.figure import shares_figure

    if corpus is not None:
        texts = _texts_of(corpus)
    of_heads = shares(take_apart(subject, text, longest=CORPUS_TOKENS) for text in texts)
    shares_figure(of_heads, png, f"{subject.name}: position's share, %, over {len(texts)} texts")
    return f"{png}: position {of_heads.position.mean():.0%} of the scores' variation, mean of heads"


def _corpus_page(models: Sequence[str], corpus: str, out: Path) -> list[str]:
    from debertakit.explain.corpus import corpus_patterns, write_corpus_page

    texts = _texts_of(corpus)
    found = [corpus_patterns(Subject.load(name), texts) for name in models]
    write_corpus_page(found, out)
    lines = []
    for each in found:
        strongest = ", ".join(f"{name} {values.max():.0%}" for name, values in each.strength.items())
        lines.append(f"{each.model}: strongest heads over {each.texts} texts: {strongest}")
    return [*lines, f"{out}: open it in a browser"]


def _texts_of(corpus: str) -> list[str]:
    from debertakit.text.documents import open_documents

    pieces = open_documents(corpus, txt_document="line").pieces()
    return [text for _, text in islice(pieces, CORPUS_TEXTS)]


def _attributions(texts: list[str], model: str, pair: str | None) -> list[str]:
    from debertakit.explain.attribution import attribute
    from debertakit.loading import describe

    saved = describe(model)
    if not saved.ours or saved.head != "SequenceClassification":
        raise ValueError(f"--attribution needs a DeBERTa classifier; {model} has {saved.head_name}")
    classifier, tokenizer = saved.network(), saved.tokenizer()
    lines = []
    for text in texts:
        found = attribute(classifier, tokenizer, text, pair, max_length=saved.settings.max_length)
        lines.append(
            f"{found.label}: token scores sum to {sum(found.scores):+.3f}; the logit changes by {found.change:+.3f}"
        )
        lines += [f"{score:+8.3f}  {token}" for token, score in zip(found.tokens, found.scores, strict=True)]
    return lines
