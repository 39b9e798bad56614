"""Tagged words in CoNLL files: one word per line, its tag in the last column, an empty line between sentences.

Tags of named entities are converted to BIO from any of these schemes:

    BIO      B-PER I-PER O      kept
    IOB1     I-PER I-PER O      the first I- becomes B-; CoNLL-2003 is distributed in this scheme
    BIOES    B-PER E-PER S-LOC  E- becomes I-, S- becomes B-; likewise BILOU and BMES

An I- that continues no entity is changed to B- and counted as a repair, unless the whole file is IOB1.

If most tags are in none of these schemes, every word has its own tag, such as its part of speech, and the tags are
kept as they are. In CoNLL-U (.conllu), the word is in column 2 and its part of speech in column 4.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from debertakit.data.examples import Tagged
from debertakit.data.problems import Problems, logger, shorten
from debertakit.data.tables import decodable, lines, suffix_of

CONLL_U = ".conllu"
CONLL_SUFFIXES = (
    ".conll",
    CONLL_U,
    ".bio",
    ".iob",
    ".iob2",
    ".txt",
    ".tsv",
    ".annotated",
    ".train",
    ".testa",
    ".testb",
)
BOUNDARY = "-DOCSTART-"

_TAG = re.compile(r"O|[BIESLUM]-\S+")
_TO_BIO = {"S": "B", "U": "B", "E": "I", "L": "I", "M": "I"}


@dataclass(frozen=True)
class Sentence:
    number: int
    """Line number of the first word (Parquet: row)."""
    words: tuple[str, ...]
    tags: tuple[str | None, ...]


def read_conll(path: Path, *, labelled: bool = True, column: str | None = None) -> list[Tagged]:
    """Read a CoNLL file. If ``labelled`` is False, words may have no tag or an invalid one.

    ``column``: number of the column with the tags, from 1, if it is not the usual one.
    """
    problems = Problems(path)
    return tagged(path, _sentences(path, problems, labelled, column), problems)


def tagged(path: Path, sentences: Sequence[Sentence], problems: Problems) -> list[Tagged]:
    """Make examples of sentences, with the tags of entities in BIO."""
    given = [sentence.tags for sentence in sentences]
    if has_entities(tag for tags in given for tag in tags if tag is not None):
        sentences = _with_entity_tags(sentences, problems)
        given = [tuple(map(_in_bio, sentence.tags)) for sentence in sentences]
        iob1 = _is_iob1(given)
        if iob1:
            logger.info("%s: tags are IOB1; read as BIO", path)
        repaired = [tuple(bio(tags)) for tags in given]
        for sentence, before, after in zip(sentences, given, repaired, strict=True):
            if before != after and not iob1:
                problems.repair(sentence.number, "I- tag that continues no entity, read as B-")
        given = repaired
    examples = []
    for index, (sentence, tags) in enumerate(zip(sentences, given, strict=True)):
        known = tuple(tag for tag in tags if tag is not None)
        complete = known if len(known) == len(sentence.words) else None
        examples.append(Tagged(str(index), sentence.words, complete, sentence.number))
    problems.finish(len(examples))
    return examples


def _with_entity_tags(sentences: Sequence[Sentence], problems: Problems) -> list[Sentence]:
    """Skip the sentences with a tag that is in none of the schemes."""
    kept = []
    for sentence in sentences:
        unknown = next((tag for tag in sentence.tags if tag is not None and not _TAG.fullmatch(tag)), None)
        if unknown is None:
            kept.append(sentence)
        else:
            problems.skip(sentence.number, "not a BIO tag", shorten(unknown))
    return kept


def has_entities(tags: Iterable[str]) -> bool:
    """Whether a set of tags marks entities. Otherwise every word has its own tag, such as its part of speech."""
    distinct = set(tags)
    return _are_entities(list(distinct), len(distinct))


def looks_like_conll(path: Path) -> bool:
    """Whether the first lines are words with BIO tags, or groups of lines with the same number of words each."""
    rows = [line.split() for _, line in islice(lines(path, Problems(path)), 200)]
    words = [row for row in rows if row]
    if _are_entities([row[-1] for row in words if len(row) > 1], len(words)):
        return True
    groups = [len(list(group)) for filled, group in groupby(rows, bool) if filled]
    widths = {len(row) for row in words}
    return len(groups) > 1 and sum(groups) >= 2 * len(groups) and len(widths) == 1 and widths.pop() > 1


def bio(tags: Sequence[str | None]) -> list[str | None]:
    """Change I- to B- if it does not continue an entity of its type."""
    repaired: list[str | None] = []
    for tag in tags:
        before = repaired[-1] if repaired else None
        starts = tag is not None and tag.startswith("I-") and (before is None or before[2:] != tag[2:])
        repaired.append("B-" + tag[2:] if tag is not None and starts else tag)
    return repaired


def tag_names(examples: Iterable[Tagged]) -> tuple[str, ...]:
    """O, then B- and I- of every type: a type with only one-word entities here may have longer ones elsewhere.

    Tags that mark no entities are returned in alphabetical order.
    """
    tags = {tag for example in examples for tag in example.tags or ()}
    if not has_entities(tags):
        return tuple(sorted(tags))
    kinds = sorted({tag[2:] for tag in tags if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


def write(path: Path, examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for example, tags in zip(examples, predictions, strict=True):
            file.writelines(f"{word}\t{tag}\n" for word, tag in zip(example.words, tags, strict=True))
            file.write("\n")


@dataclass(frozen=True)
class _Layout:
    """Columns of the word and of the tag."""

    word: int
    tag: int
    entities: bool
    width: int
    """Usual number of columns."""

    def tag_of(self, cells: Sequence[str]) -> str | None:
        if not _has_tag(cells, self.tag) or (not self.entities and len(cells) != self.width):
            return None
        tag = cells[self.tag]
        return tag if not self.entities or _TAG.fullmatch(tag) else None

    def word_of(self, cells: Sequence[str]) -> str:
        return cells[self.word] if self.word < len(cells) else cells[0]

    def skips(self, cells: Sequence[str]) -> bool:
        """Whether a line is a comment ("# id 17 domain=news") or, in CoNLL-U, no word ("3-4", "3.1")."""
        if cells[0].startswith("#") and self.tag_of(cells) is None:
            return True
        return self.word > 0 and not cells[0].isdecimal()


def _layout(path: Path, rows: Sequence[Sequence[str]], column: str | None) -> _Layout:
    word, tag = (1, 3) if suffix_of(path) == CONLL_U else (0, -1)
    if column is not None:
        if not column.isdecimal() or column == "0":
            raise ValueError(f"{path}: the label of a CoNLL file is a column number, from 1; not {column!r}")
        tag = int(column) - 1
    tags = [cells[tag] for cells in rows if _has_tag(cells, tag)]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    entities = not tags or _are_entities(tags, len(tags))
    if not entities and len(tags) >= 20 and len(set(tags)) > len(tags) / 2:
        some = ", ".join(map(shorten, sorted(set(tags))[:3]))
        raise ValueError(
            f"{path}: {len(set(tags))} different tags for {len(tags)} words ({some}); is it the right column?"
        )
    return _Layout(word, tag, entities, width)


def _sentences(path: Path, problems: Problems, labelled: bool, column: str | None) -> list[Sentence]:
    """Read sentences. A sentence with a bad line is skipped completely."""
    rows = [(number, line, _cells(line)) for number, line in lines(path, problems, keep_undecodable=True)]
    layout = _layout(path, [cells for _, _, cells in rows if not _separates(cells)], column)
    found = []
    for separator, group in groupby(rows, lambda row: _separates(row[2])):
        sentence = [] if separator else [row for row in group if not layout.skips(row[2])]
        bad = next((row for row in sentence if labelled and layout.tag_of(row[2]) is None), None)
        if undecodable := next((number for number, line, _ in sentence if not decodable(line)), 0):
            problems.skip(undecodable, "not UTF-8")
        elif bad is not None:
            tag = "BIO tag" if layout.entities else "tag"
            problems.skip(bad[0], f"not a word and a {tag}", shorten(bad[1].strip()))
        elif sentence:
            words, tags = zip(*((layout.word_of(cells), layout.tag_of(cells)) for _, _, cells in sentence), strict=True)
            found.append(Sentence(sentence[0][0], words, tags))
    return found


def _cells(line: str) -> list[str]:
    cells = line.split("\t") if "\t" in line.strip() else [cell for cell in line.strip().split(" ") if cell]
    return [cell.strip(" \r\n") for cell in cells]


def _separates(cells: Sequence[str]) -> bool:
    return not any(cells) or cells[0] == BOUNDARY


def _has_tag(cells: Sequence[str], place: int) -> bool:
    """Whether a line has a tag. CoNLL-U writes "_" for a missing one."""
    return len(cells) > max(place, 1) and cells[place] not in ("", "_")


def _are_entities(tags: Sequence[str], count: int) -> bool:
    """Whether most of ``count`` words have a BIO tag."""
    return sum(_TAG.fullmatch(tag) is not None for tag in tags) > count / 2


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
