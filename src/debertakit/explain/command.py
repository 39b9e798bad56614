"""What ``deberta explain`` does."""

from itertools import islice
from pathlib import Path

from debertakit.explain.parts import Subject, shares, take_apart

CORPUS_TEXTS, CORPUS_TOKENS = 256, 128  # a corpus's shares settle long before


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
    """The lines to print."""
    if out is None and png is None and shares_png is None and not attribution:
        raise ValueError("say what to make: --out page.html, --png figure.png, --shares map.png or --attribution")
    if (out or png or attribution) and not texts:
        raise ValueError("give a text to explain")
    if shares_png is not None and corpus is None and not texts:
        raise ValueError("--shares needs texts, or --corpus FILE")
    lines = []
    if out is not None or png is not None or shares_png is not None:
        subjects = [Subject.load(name) for name in (model, against) if name is not None]
    if out is not None or png is not None:
        anatomies = [[take_apart(subject, text, pair) for text in texts] for subject in subjects]
        if out is not None:
            from debertakit.explain.page import write_page

            write_page(anatomies, out)
            lines.append(f"{out}: {out.stat().st_size / 1e6:.1f} MB, open it in a browser")
        if png is not None:
            from debertakit.explain.figure import pattern_figure

            pattern_figure([of_model[0] for of_model in anatomies], png)
            lines.append(str(png))
    if shares_png is not None:
        from debertakit.explain.figure import shares_figure

        if corpus is not None:
            from debertakit.text.documents import source

            pieces = source(corpus, txt_document="line").pieces()
            texts = [text for _, text in islice(pieces, CORPUS_TEXTS)]
        of_heads = shares(take_apart(subjects[0], text, longest=CORPUS_TOKENS) for text in texts)
        shares_figure(of_heads, shares_png, f"{subjects[0].name}: position's share, %, over {len(texts)} texts")
        lines.append(f"{shares_png}: position {of_heads.position.mean():.0%} of the scores' variation, mean of heads")
    if attribution:
        lines += _attributions(texts, model, pair)
    return lines


def _attributions(texts: list[str], model: str, pair: str | None) -> list[str]:
    from debertakit.checkpoints import load_whole
    from debertakit.explain.attribution import attribute
    from debertakit.heads import DebertaForSequenceClassification
    from debertakit.text.tokenizers import load_tokenizer

    classifier, tokenizer = load_whole(DebertaForSequenceClassification, model), load_tokenizer(model)
    lines = []
    for text in texts:
        found = attribute(classifier, tokenizer, text, pair)
        lines.append(f"{found.label}: the scores of its tokens sum to {sum(found.scores):+.3f}, of {found.change:+.3f}")
        lines += [f"{score:+8.3f}  {token}" for token, score in zip(found.tokens, found.scores, strict=True)]
    return lines
