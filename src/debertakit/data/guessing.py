"""Guess which columns of a table hold the text, the second text and the label, so that ``finetune my.csv`` just works.

A name that people commonly give to such a column decides. Without one, the contents decide: the label is the column
with the fewest different values, the text is the column with the longest cells. A table without a header has columns
"1", "2", ... Only the first ``SAMPLE`` rows are read. Light to import.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from debertakit.data.conll import CONLL_SUFFIXES, looks_like_conll
from debertakit.data.files import DELIMITED, table_rows
from debertakit.data.problems import Problems, shorten
from debertakit.data.squad import looks_like_squad
from debertakit.data.tables import NUMBERS, TABLE_SUFFIXES, quoting_of, suffix_of, table
from debertakit.data.tagged import aligned
from debertakit.data.texts import blank, looks_like_data

SAMPLE = 1000
MOST_LABELS = 200
"""A column with more different values is not guessed to be a label."""
LABELS = (
    *"label labels class category target sentiment stars rating polarity gold intent topic emotion tag tags y".split(),
    *"score similarity grade answer output spam toxic 标签 类别 分类 情感 标注 评分 星级".split(),
)
TEXTS = (
    *"text sentence review content comment message body tweet document article post question utterance query".split(),
    *"description title headline input x 文本 内容 评论 句子 正文 文章 标题 问题".split(),
)
WORDS = ("tokens", "words", "characters", "chars", "text", "sentence")
TAGS = ("ner_tags", "tags", "ner", "labels", "label", "pos_tags", "upos", "pos")
"""Columns of lists, the most likely ones first."""
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text", "pair"),
    ("text", "text_pair"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
    ("claim", "evidence"),
)
IGNORED = frozenset("id idx index uid guid qid no number row date time datetime timestamp created url link".split())
_WORDS = re.compile(r"[^\W_]+")
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")  # of JSON in ASCII
_FIRST_OF_TWO = re.compile(r"(.*?)([ _-]?)(1|a)", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    name: str
    values: list[Any]
    """Cells of the sample that are not blank."""

    @property
    def key(self) -> str:
        return self.name.strip().casefold()

    @property
    def words(self) -> set[str]:
        return set(_WORDS.findall(self.key))

    @property
    def distinct(self) -> int:
        return len({str(value) for value in self.values})

    @property
    def length(self) -> float:
        """Mean number of characters."""
        return sum(len(str(value)) for value in self.values) / max(len(self.values), 1)

    @property
    def numeric(self) -> bool:
        return bool(self.values) and all(_is_number(value) for value in self.values)

    @property
    def lists(self) -> bool:
        return any(isinstance(value, (list, tuple)) for value in self.values)

    @property
    def texts(self) -> bool:
        """Whether the cells could be texts to classify."""
        return bool(self.values) and not (self.numeric or self.lists or self.key in IGNORED)

    @property
    def repeats(self) -> bool:
        """Whether the cells could be labels: a few values that occur again and again."""
        most = min(MOST_LABELS, len(self.values) // 2)
        return self.key not in IGNORED and self.length <= 40 and (self.lists or 2 <= self.distinct <= max(most, 2))


def is_table(path: Path) -> bool:
    """Whether a file of examples is a table with columns, not CoNLL or SQuAD. Raises if the format is unknown."""
    suffix = suffix_of(path)
    if suffix == ".json":
        return not looks_like_squad(path)
    if suffix in (".tsv", ".txt"):
        return not looks_like_conll(path)
    if suffix in TABLE_SUFFIXES:
        return True
    if suffix not in CONLL_SUFFIXES and not looks_like_conll(path):
        raise ValueError(f"{path}: unknown kind of file; a table is one of {', '.join(TABLE_SUFFIXES)}")
    return False


def resolve_columns(path: Path, given: Mapping[str, Any], *, labelled: bool = True) -> dict[str, Any]:
    """Complete the columns ``given`` (text, pair, label, options, ...) with guesses. Raises if a given one is missing.

    Returns ``given`` for files without columns (CoNLL, SQuAD). ``labelled``: whether a label is needed.
    """
    require_input(path)
    if not given.get("text") and not is_table(path):
        return dict(given)
    wanted = [given[name] for name in ("text", "pair", "label") if given.get(name)]
    columns = _columns(path, wanted, strict=labelled)
    names = [column.name for column in columns]
    if not any(column.values for column in columns):
        raise ValueError(f"{path}: no rows below the header {_list(names)}")
    folded = {name.casefold() for name in names}
    for field in ("text", "pair", "label"):
        name = given.get(field)
        if name and name.casefold() not in folded:
            hint = similar(name, names)
            if not hint and any(map(looks_like_data, names)):
                hint = " (if the file has no header, give column numbers, from 1)"
            raise ValueError(f"{path}: no column {name!r}; it has {', '.join(map(shorten, names))}{hint}")
    found = {name: value for name, value in given.items() if value}
    free = [column for column in columns if column.name not in found.values() and column.values]
    if not found and (pair := _tagged(free)):
        return {"text": pair[0].name, "label": pair[1].name}
    if labelled and "label" not in found:
        label = _label(free, texts_known="text" in found)
        if label is None:
            raise ValueError(f"{path}: cannot tell which column is the label: pass --label NAME; it has {_list(names)}")
        found["label"] = label.name
    elif labelled and not (found.get("options") or found.get("separator")):
        _not_free_text(path, next(column for column in columns if column.key == found["label"].strip().casefold()))
    free = [column for column in free if column.name != found.get("label")]
    if "text" not in found:
        pair = None if "pair" in found or "options" in found else _pair(free)
        text = pair[0] if pair else _text(free)
        if text is None:
            raise ValueError(f"{path}: cannot tell which column is the text: pass --text NAME; it has {_list(names)}")
        found |= {"text": text.name} | ({"pair": pair[1].name} if pair else {})
    return found


def guess_line(path: Path, given: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """One line that names the guessed columns and how to change them. Empty if there is no guess."""
    guessed = [field for field in ("text", "pair", "label") if found.get(field) and not given.get(field)]
    if not guessed:
        return ""
    columns = ", ".join(f"{field} = {found[field]!r}" for field in guessed)
    return f"{path}: guessed the columns {columns}; to override: " + " ".join(f"--{field} NAME" for field in guessed)


def sample_texts(path: Path, columns: Mapping[str, Any]) -> list[str]:
    """Return some texts of a file, to detect its language. ``columns``: text and pair, if they are known."""
    named = [columns[field] for field in ("text", "pair", "label") if columns.get(field)]
    texts = {str(columns[field]).casefold() for field in ("text", "pair") if columns.get(field)}
    if texts or suffix_of(path) in (".parquet", ".xlsx"):
        wanted = [column for column in _columns(path, named) if not texts or column.key in texts]
        return [str(value) for column in wanted for value in column.values]
    with path.open("rb") as file:
        raw = file.read(1 << 16).decode("utf-8", errors="ignore")
    if suffix_of(path) in (".tsv", ".txt") and looks_like_conll(path):
        return [line.split()[0] for line in raw.splitlines() if line.strip()]  # without the tags
    return [_ESCAPED.sub(lambda match: chr(int(match[1], 16)), raw)]


def column_names(path: Path) -> list[str]:
    """Column names of a table; [] for CoNLL and SQuAD."""
    return [column.name for column in _columns(path, ())] if path.is_file() and is_table(path) else []


def similar(name: str, names: Sequence[str]) -> str:
    """ " (did you mean 'review'?)", or "" if no name is close."""
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def require_input(path: Path, what: Literal["file", "file or folder", "run"] = "file") -> None:
    """Raise if an input of a command does not exist. The message names similar files."""
    exists = {"file": path.is_file, "file or folder": path.exists, "run": path.is_dir}[what]
    if not exists():
        names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise ValueError(f"{path}: no such {what}{similar(path.name, names)}")


def _columns(path: Path, wanted: Sequence[str], *, strict: bool = False) -> list[Column]:
    """Columns of the first rows. ``wanted``: names that the user gave.

    ``strict``: raise if these are all rows, and too many of them cannot be read.
    """
    problems = Problems(path)
    if suffix_of(path) in DELIMITED:
        rows = [
            list(row.values.values())
            for row in islice(table(path, problems, quoting=quoting_of(path), headless=NUMBERS), SAMPLE + 1)
        ]
        first, *rest = rows or [[]]
        if strict and len(rest) < SAMPLE and (rest or problems.skipped):
            problems.check(len(rest))
        named = bool(wanted) and {name.casefold() for name in wanted} <= {cell.strip().casefold() for cell in first}
        numbered = bool(wanted) and not named and all(name.isdecimal() for name in wanted)
        if numbered or (not named and not wanted and _is_data(first, rest)):
            names, rest = list(NUMBERS[: len(first)]), rows
        else:
            names = [cell.strip() for cell in first]
        return [Column(name, _filled([row[i] for row in rest if i < len(row)])) for i, name in enumerate(names)]
    sample = [row.values for row in islice(table_rows(path, problems, ()), SAMPLE)]
    found = dict.fromkeys(name for row in sample for name in row)
    if not found:
        problems.finish(0)
    return [Column(name, _filled([row.get(name) for row in sample])) for name in found]


def _filled(values: list[Any]) -> list[Any]:
    return [value for value in values if not blank(value)]


def _is_data(first: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Whether the first line of a table is a row, not a header: a number, a long text, or a value that repeats."""
    if any(looks_like_data(cell) for cell in first):
        return True
    return any(cell and cell in {row[i] for row in rest if i < len(row)} for i, cell in enumerate(first))


def _label(columns: Sequence[Column], texts_known: bool) -> Column | None:
    for known in LABELS:
        for column in columns:
            if column.key == known and (column.numeric or column.lists or column.repeats or known == "label"):
                return column
    some = [column for column in columns if column.repeats]
    named = [column for column in some if column.words & set(LABELS)]
    if named:
        return named[0]
    if not texts_known and columns:  # the text is no label, even if it repeats
        longest = max(columns, key=lambda column: column.length)
        some = [column for column in some if column is not longest]
    return min(reversed(some), key=lambda column: column.distinct, default=None)


def _not_free_text(path: Path, label: Column) -> None:
    """Raise if nearly every row has another label. ``files.read_table`` counts all rows, this only the sample."""
    if len(label.values) >= 20 and label.distinct > 0.9 * len(label.values) and not (label.numeric or label.lists):
        raise ValueError(
            f"{path}: {label.distinct} different labels in {len(label.values)} rows "
            f"({_list(label.values[:3])}); is {label.name!r} the right label column?"
        )


def _tagged(columns: Sequence[Column]) -> tuple[Column, Column] | None:
    """Lists of words, and lists with a tag for each word."""
    lists = [column for column in columns if column.lists]
    words = [column for column in lists if column.key in WORDS and len(column.values) == len(lists[0].values)]
    if not words:
        return None
    tags = [column for column in lists if column is not words[0] and len(column.values) == len(words[0].values)]
    tags = [column for column in tags if aligned(words[0].values, column.values)]
    order = {name: place for place, name in enumerate(TAGS)}
    tags.sort(key=lambda column: order.get(column.key, len(TAGS)))
    return (words[0], tags[0]) if tags else None


def _text(columns: Sequence[Column]) -> Column | None:
    some = [column for column in columns if column.texts]
    for known in TEXTS:
        for column in some:
            if column.key == known:
                return column
    named = [column for column in some if column.words & set(TEXTS)]
    return max(named or some, key=lambda column: column.length, default=None)


def _pair(columns: Sequence[Column]) -> tuple[Column, Column] | None:
    some = {column.key: column for column in columns if column.texts}
    for first, second in PAIRS:
        if first in some and second in some:
            return some[first], some[second]
    for key, column in some.items():
        if match := _FIRST_OF_TWO.fullmatch(key):
            other = some.get(f"{match[1]}{match[2]}{'2' if match[3] == '1' else 'b'}")
            if match[1] and other is not None:
                return column, other
    return None


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(shorten, names))
