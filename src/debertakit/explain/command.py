"""``deberta explain``."""

from itertools import islice
from pathlib import Path

from debertakit.explain.parts import Subject, cells, encode, look, shares, take_apart

CORPUS_TEXTS, CORPUS_TOKENS = 256, 128  # enough for stable shares


def run(
    texts: list[str],
    model: str,
    *,
    against: str | None = None,
    pair: str | None = None,
    out: Path | None = None,
    png: Path | None = None,
    corpus: str | None = None,
    shares_png: Path | None = None,
    attribution: bool = False,
) -> list[str]:
    """Create the requested files and return the lines to print."""
    if out is None and png is None and shares_png is None and not attribution:
        raise ValueError("say what to make: --out page.html, --png figure.png, --shares map.png or --attribution")
    if (out or png or attribution) and not texts:
        raise ValueError("give a text to explain")
    if shares_png is not None and corpus is None and not texts:
        raise ValueError("--shares needs texts, or --corpus FILE")
    _refuse_unused(texts, against, pair, out, png, corpus, shares_png, attribution)
    lines = []
    if out is not None or png is not None or shares_png is not None:
        subjects = [Subject.load(name) for name in (model, against) if name is not None]
    if out is not None or png is not None:
        lines += _page_and_figure(subjects, texts, pair, out, png)
    if shares_png is not None:
        lines.append(_shares(subjects[0], texts, corpus, shares_png))
    if attribution:
        lines += _attributions(texts, model, pair)
    return lines


def _refuse_unused(
    texts: list[str],
    against: str | None,
    pair: str | None,
    out: Path | None,
    png: Path | None,
    corpus: str | None,
    shares_png: Path | None,
    attribution: bool,
) -> None:
    """Raise if a given option has no effect on the requested outputs."""
    if corpus is not None and shares_png is None:
        raise ValueError("--corpus is for --shares map.png; give that too, or leave the corpus out")
    if against is not None and out is None and png is None:
        raise ValueError("--against is for --out and --png; --shares and --attribution look at one model")
    if out is None and png is None and not attribution:
        if pair is not None:
            raise ValueError("--pair is for --out, --png and --attribution; --shares reads single texts")
        if corpus is not None and texts:
            raise ValueError("--shares takes its texts from --corpus; leave the others out")
    if png is not None and out is None and not attribution and len(texts) > 1:
        raise ValueError(f"--png draws one text, and there are {len(texts)}; --out page.html shows them all")


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
        lines.append(str(png) if len(texts) == 1 else f"{png}: of the first text")
    return lines


def _shares(subject: Subject, texts: list[str], corpus: str | None, png: Path) -> str:
    from debertakit.explain.figure import shares_figure

    if corpus is not None:
        from debertakit.text.documents import open_documents

        pieces = open_documents(corpus, txt_document="line").pieces()
        texts = [text for _, text in islice(pieces, CORPUS_TEXTS)]
    of_heads = shares(take_apart(subject, text, longest=CORPUS_TOKENS) for text in texts)
    shares_figure(of_heads, png, f"{subject.name}: position's share, %, over {len(texts)} texts")
    return f"{png}: position {of_heads.position.mean():.0%} of the scores' variation, mean of heads"


def _attributions(texts: list[str], model: str, pair: str | None) -> list[str]:
    from debertakit.explain.attribution import attribute
    from debertakit.loading import describe

    saved = describe(model)
    if not saved.ours or saved.head != "SequenceClassification":
        raise ValueError(f"--attribution needs a DeBERTa classifier, and {model} has {saved.head_name}")
    classifier, tokenizer = saved.network(), saved.tokenizer()
    lines = []
    for text in texts:
        found = attribute(classifier, tokenizer, text, pair)
        lines.append(f"{found.label}: the scores of its tokens sum to {sum(found.scores):+.3f}, of {found.change:+.3f}")
        lines += [f"{score:+8.3f}  {token}" for token, score in zip(found.tokens, found.scores, strict=True)]
    return lines
