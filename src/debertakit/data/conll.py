"""Named entities in CoNLL files: one word per line, its tag in the last column, an empty line between sentences.

Tags are converted to BIO from any of these schemes:

    BIO      B-PER I-PER O      kept
    IOB1     I-PER I-PER O      the first I- becomes B-; CoNLL-2003 is distributed in this scheme
    BIOES    B-PER E-PER S-LOC  E- becomes I-, S- becomes B-; likewise BILOU and BMES

An I- that continues no entity is changed to B- and counted as a repair, unless the whole file is IOB1.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from debertakit.data.examples import Tagged
from debertakit.data.problems import Problems, logger, shorten
from debertakit.data.tables import decodable, lines

CONLL_SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".txt", ".tsv", ".annotated", ".train", ".testa", ".testb")
BOUNDARY = "-DOCSTART-"

_TAG = re.compile(r"O|[BIESLUM]-\S+")
_TO_BIO = {"S": "B", "U": "B", "E": "I", "L": "I", "M": "I"}

Sentence = list[tuple[str, str | None]]


def read_conll(path: Path, *, labelled: bool = True) -> list[Tagged]:
    """Read a CoNLL file. If ``labelled`` is False, words may have no tag or an invalid one."""
    problems = Problems(path)
    sentences = list(_sentences(lines(path, problems, keep_undecodable=True), problems, labelled))
    converted = [[_in_bio(tag) for _, tag in sentence] for _, sentence in sentences]
    iob1 = _is_iob1(converted)
    if iob1:
        logger.info("%s: tags are IOB1; read as BIO", path)
    examples = []
    for index, ((number, sentence), tags) in enumerate(zip(sentences, converted, strict=True)):
        repaired = bio(tags)
        if repaired != tags and not iob1:
            problems.repair(number, "I- tag that continues no entity, read as B-")
        known = tuple(tag for tag in repaired if tag is not None)
        words = tuple(word for word, _ in sentence)
        examples.append(Tagged(str(index), words, known if len(known) == len(words) else None))
    problems.finish(len(examples))
    return examples


def bio(tags: Sequence[str | None]) -> list[str | None]:
    """Change I- to B- if it does not continue an entity of its type."""
    repaired: list[str | None] = []
    for tag in tags:
        before = repaired[-1] if repaired else None
        starts = tag is not None and tag.startswith("I-") and (before is None or before[2:] != tag[2:])
        repaired.append("B-" + tag[2:] if tag is not None and starts else tag)
    return repaired


def tag_names(examples: Iterable[Tagged]) -> tuple[str, ...]:
    """O, then B- and I- of every type: a type with only one-word entities here may have longer ones elsewhere."""
    kinds = sorted({tag[2:] for example in examples for tag in example.tags or () if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


def write(path: Path, examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for example, tags in zip(examples, predictions, strict=True):
            file.writelines(f"{word}\t{tag}\n" for word, tag in zip(example.words, tags, strict=True))
            file.write("\n")


def _sentences(
    numbered: Iterable[tuple[int, str]], problems: Problems, labelled: bool
) -> Iterator[tuple[int, Sentence]]:
    """Yield sentences with the number of their first line. A sentence with a bad line is skipped completely."""
    begin, bad = 1, False
    sentence: Sentence = []
    for number, line in chain(numbered, [(0, "")]):
        cells = line.split("\t") if "\t" in line.strip() else line.strip().split(" ")
        cells = [cell.strip(" \r\n") for cell in cells]
        if not any(cells) or cells[0] == BOUNDARY:
            if sentence and not bad:
                yield begin, sentence
            sentence, bad = [], False
            continue
        if not sentence and not bad:
            begin = number
        tag = cells[-1] if len(cells) > 1 else None
        is_tag = tag is not None and _TAG.fullmatch(tag) is not None
        if line.startswith("#") and not is_tag:  # a comment, "# id 17 domain=news"
            continue
        if not bad and not decodable(line):
            bad = True
            problems.skip(number, "not UTF-8")
        elif not bad and labelled and not is_tag:
            bad = True
            problems.skip(number, "not a word and a BIO tag", shorten(line.strip()))
        sentence.append((cells[0], tag if is_tag else None))


def _in_bio(tag: str | None) -> str | None:
    return None if tag is None else _TO_BIO.get(tag[0], tag[0]) + tag[1:]


def _is_iob1(sentences: Sequence[Sequence[str | None]]) -> bool:
    """Whether B- occurs only where an entity directly follows another one of its type."""
    starts = 0
    for tags in sentences:
        for before, tag in zip([None, *tags], tags, strict=False):
            continues = before is not None and tag is not None and before[2:] == tag[2:] and tag != "O"
            if tag is not None and tag.startswith("B-") and not continues:
                return False
            starts += tag is not None and tag.startswith("I-") and not continues
    return starts > 0
