"""Encode examples as rows of tokens.

    TextExample  [CLS] text [SEP]   or   [CLS] text [SEP] pair [SEP]
    Tagged       [CLS] w1 w2 w2' w3 [SEP]: the first piece of a word carries its tag, the other pieces have no label. A
                 long text is split into overlapping windows; each word is tagged in the window with the most context
                 around it
    Question     [CLS] question [SEP] context [SEP]: a long context is split into overlapping windows. The label is the
                 start and end token of the answer, or [CLS] for both if the window does not contain the answer
    Choice       [CLS] text [SEP] pair option [SEP], once per option

``long`` says how to read a text that is longer than ``max_length``:

    windows  as overlapping windows, whose logits are averaged (decisions.py); not for Choice
    whole    in one pass; distant relative positions share buckets (not for models with absolute positions)
    cut      truncated to ``max_length``, as in training; not for Tagged and Question
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal

import numpy as np

from debertakit.data.examples import Choice, Example, Kind, Question, Tagged, TextExample
from debertakit.model import IGNORED
from debertakit.protocols import Tokenizer
from debertakit.text.characters import is_han

Long = Literal["windows", "whole", "cut"]
UNLIMITED = 10**6
"""Maximum length for ``long="whole"``."""
RowLabel = int | float | list[int] | list[float]
"""single-label, choice: int
regression: float
multi-label: a float per label
tagging: an int per token
qa: [start, end] tokens
"""
BATCH = 1000
SAMPLE = 5000
"""About this many examples are sampled to choose the maximum length."""


@dataclass(frozen=True)
class TokenRow:
    example: int
    """Index of the example. A long example has several rows (windows)."""
    ids: list[list[int]]
    """Token ids: one sequence; for Choice, one sequence per option."""
    segments: list[list[int]] | None = None
    label: RowLabel | None = None
    places: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    """Tagged: (word, token) pairs. Question: each token's (start, end) characters in the context, -1 outside it."""

    @property
    def tokens(self) -> int:
        """Number of tokens, including padding between options."""
        return len(self.ids) * max(map(len, self.ids))


@dataclass(frozen=True)
class Features:
    rows: list[TokenRow]
    cut: int
    """Number of truncated examples."""


@dataclass(frozen=True)
class ExampleEncoder:
    """Encodes examples of one kind of task."""

    kind: Kind
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    max_length: int
    long: Long | None = None
    """None: the kind's default (``long_modes``)."""

    def __post_init__(self) -> None:
        modes = long_modes(self.kind)
        if self.long is None:
            object.__setattr__(self, "long", modes[0])
        elif self.long not in modes:
            raise ValueError(f"long={self.long!r} does not work for {self.kind}; choose from {', '.join(modes)}")

    @property
    def _room(self) -> int:
        return UNLIMITED if self.long == "whole" else self.max_length

    def encode(self, examples: Sequence[Example], strict: bool = False) -> Features:
        """With ``strict``, a label that is not in ``labels`` raises; otherwise no prediction is correct for it."""
        rows: list[TokenRow] = []
        cut = 0
        for first in _progress(range(0, len(examples), BATCH)):
            batch = examples[first : first + BATCH]
            for row, was_cut in self._rows(batch, strict):
                rows.append(TokenRow(first + row.example, row.ids, row.segments, row.label, row.places))
                cut += was_cut
        return Features(rows, cut)

    def _rows(self, batch: Sequence[Any], strict: bool) -> Iterator[tuple[TokenRow, bool]]:
        match self.kind:
            case "single-label" | "multi-label" | "regression":
                return self._texts(batch, strict)
            case "tagging":
                return self._tagged(batch, strict)
            case "qa":
                return self._questions(batch)
            case "choice":
                return self._choices(batch)

    # ------------------------------------------------------------------------------------------------------- texts

    def _texts(self, batch: Sequence[TextExample], strict: bool) -> Iterator[tuple[TokenRow, bool]]:
        texts = [(example.text, example.pair) for example in batch]
        if self.long == "windows":
            for index, ids, segments in self._windows(texts):
                label = self._label(batch[index], strict)
                yield TokenRow(index, [ids], [segments] if segments else None, label), False
            return
        for index, (example, (ids, segments, cut)) in enumerate(zip(batch, self._pairs(texts), strict=True)):
            yield TokenRow(index, [ids], [segments] if segments else None, self._label(example, strict)), cut

    def _pairs(self, texts: list[tuple[str, str | None]]) -> Iterator[tuple[list[int], list[int] | None, bool]]:
        """Yield ids, segments, and whether the text was truncated.

        Truncates as the tokenizer does ("longest_first"). The tokenizer would also keep what it cuts off: for a pair,
        every window of one text with every window of the other, 9 GB for two texts of 16,000 characters.
        """
        encoded = self.tokenizer([_stripped(*text) for text in texts], verbose=False)
        segments = encoded.get("token_type_ids") or [None] * len(texts)
        for ids, segment, encoding in zip(encoded["input_ids"], segments, encoded.encodings, strict=True):
            if len(ids) <= self._room:
                yield ids, segment, False
                continue
            sequences = np.array([-1 if number is None else number for number in encoding.sequence_ids])
            kept = _longest_first(sequences, self._room, self.tokenizer.truncation_side)
            yield [ids[i] for i in kept], segment and [segment[i] for i in kept], True

    def _windows(self, texts: list[tuple[str, str | None]]) -> Iterator[tuple[int, list[int], list[int] | None]]:
        """Yield (index, ids, segments): one row per text, or several windows of a text that is too long.

        Windows overlap by max_length / 4. In a pair, only the longer text is split, and its windows overlap by
        max_length / 8.
        """
        given = [_stripped(*text) for text in texts]
        encoded = self.tokenizer(given, verbose=False)
        segments = encoded.get("token_type_ids") or [None] * len(texts)
        for index, (ids, segment) in enumerate(zip(encoded["input_ids"], segments, strict=True)):
            if len(ids) <= self.max_length:
                yield index, ids, segment
                continue
            text = given[index]
            parts, which, stride = (
                ((text,), "only_first", self.max_length // 4) if isinstance(text, str) else self._halve(*text)
            )
            windows = self.tokenizer(
                *parts, truncation=which, max_length=self.max_length, stride=stride, return_overflowing_tokens=True
            )
            for ids, segment in zip(windows["input_ids"], windows.get("token_type_ids") or repeat(None), strict=False):
                yield index, ids, segment

    def _halve(self, text: str, pair: str) -> tuple[tuple[str, str], str, int]:
        """Truncate the shorter text of a pair to half of ``max_length``, or less if special tokens take the other half.

        Returns both texts, which one to split, and the overlap of its windows.
        """
        both = [text, pair]
        lengths = [len(ids) for ids in self.tokenizer(both, add_special_tokens=False)["input_ids"]]
        longer = int(lengths[1] >= lengths[0])
        free = self.max_length - self.tokenizer.backend_tokenizer.num_special_tokens_to_add(True)
        both[1 - longer], kept = self._clip(both[1 - longer], min(self.max_length // 2, free - 2))
        stride = min(self.max_length // 8, free - kept - 1)  # tokenizers panics if the overlap is a whole window
        return (both[0], both[1]), ("only_first", "only_second")[longer], stride

    def _clip(self, text: str, most: int) -> tuple[str, int]:
        """Truncate a text to at most ``most`` tokens. Returns the text and its number of tokens."""
        shown = most
        while True:
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            offsets = encoded["offset_mapping"]
            if len(offsets) <= most:
                return text, len(offsets)
            text = text[: offsets[shown - 1][1]] if shown > 0 else ""
            shown -= 1  # the end of a text may be tokenised into more pieces than it had before the cut

    def _label(self, example: TextExample, strict: bool) -> RowLabel | None:
        label = example.label
        if self.kind == "regression" and label is not None:
            return float(label)  # type: ignore[arg-type]
        if isinstance(label, tuple):  # multi-label
            given = {self._index(name, example.id, strict) for name in label}
            return [float(index in given) for index in range(len(self.labels))]
        return None if label is None else self._index(label, example.id, strict)

    def _index(self, label: object, owner: str, strict: bool) -> int:
        if label in self.labels:
            return self.labels.index(label)
        if strict:
            raise ValueError(f"example {owner}: the label {label!r} is not one of {', '.join(self.labels[:20])}")
        return IGNORED

    # ----------------------------------------------------------------------------------------------------- tagging

    def _tagged(self, batch: Sequence[Tagged], strict: bool) -> Iterator[tuple[TokenRow, bool]]:
        before, after = _specials(self.tokenizer)
        room = self._room - len(before) - len(after)
        if room < 1:
            specials = len(before) + len(after)
            raise ValueError(f"max_length={self.max_length} leaves no room for words after {specials} special tokens")
        overlap = room // 4
        for index, (example, pieces) in enumerate(zip(batch, word_pieces(batch, self.tokenizer), strict=True)):
            ids = [piece for word in pieces for piece in word]
            firsts = np.cumsum([0, *map(len, pieces)])[:-1]  # [words] each word's first piece
            starts = window_starts(len(ids), room, overlap)
            owners = most_central(firsts, starts, room)
            edges = np.searchsorted(owners, np.arange(len(starts) + 1))  # owners never decrease
            for number, start in enumerate(starts):
                own = np.arange(edges[number], edges[number + 1])
                places = np.stack([own, firsts[own] - start + len(before)], axis=1)
                tokens = [*before, *ids[start : start + room], *after]
                label: list[int] | None = None
                if example.tags is not None:
                    label = [IGNORED] * len(tokens)
                    for word, place in places:
                        label[place] = self._index(example.tags[word], example.id, strict)
                yield TokenRow(index, [tokens], None, label, places), False

    # ---------------------------------------------------------------------------------------------------- questions

    def _questions(self, batch: Sequence[Question]) -> Iterator[tuple[TokenRow, bool]]:
        most = min(64, self._room // 3)  # tokens of the question; the rest is for the context
        questions = [self._clip(example.question.strip(), most) for example in batch]
        specials = self.tokenizer.backend_tokenizer.num_special_tokens_to_add(True)
        room = self._room - specials - max(length for _, length in questions)
        if room < 1:
            raise ValueError(f"max_length={self.max_length} leaves no room for the context after the question")
        encoded = self.tokenizer(
            [question for question, _ in questions],
            [example.context for example in batch],
            truncation="only_second",
            max_length=self._room,
            stride=min(128, self._room // 4, room - 1),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for number, owner in enumerate(encoded["overflow_to_sample_mapping"]):
            ids = encoded["input_ids"][number]
            inside = np.array([sequence == 1 for sequence in encoded.sequence_ids(number)])
            places = np.where(inside[:, None], np.array(encoded["offset_mapping"][number]), -1)
            segments = encoded["token_type_ids"][number] if "token_type_ids" in encoded else None
            label = answer_tokens(batch[owner], places, ids.index(self.tokenizer.cls_token_id))
            yield TokenRow(owner, [ids], [segments] if segments else None, label, places), False

    # ------------------------------------------------------------------------------------------------------ choices

    def _choices(self, batch: Sequence[Choice]) -> Iterator[tuple[TokenRow, bool]]:
        texts = [_option_text(example, option) for example in batch for option in example.options]
        encoded = self._pairs(texts)
        for index, example in enumerate(batch):
            parts = [next(encoded) for _ in example.options]
            segments = [part[1] for part in parts if part[1] is not None] or None
            yield TokenRow(index, [part[0] for part in parts], segments, example.label), any(part[2] for part in parts)


def long_modes(kind: Kind) -> tuple[Long, ...]:
    """Values of ``long`` that a kind supports; the first one is the default."""
    match kind:
        case "single-label" | "multi-label" | "regression":
            return ("windows", "whole", "cut")
        case "tagging" | "qa":
            return ("windows", "whole")
        case "choice":
            return ("cut", "whole")


def _stripped(text: str, pair: str | None) -> str | tuple[str, str]:
    return text.strip() if pair is None else (text.strip(), pair.strip())


def _longest_first(sequences: np.ndarray, room: int, side: str) -> np.ndarray:
    """Indices of the tokens that "longest_first" truncation keeps. ``sequences``: 0 or 1 per token, -1 if special."""
    specials = np.flatnonzero(sequences < 0)
    free = max(room - len(specials), 0)
    shorter, longer = sorted((np.flatnonzero(sequences == number) for number in (0, 1)), key=len)
    few = min(len(shorter), free // 2)
    parts = [(shorter, few), (longer, free - few)]
    kept = [places[max(len(places) - most, 0) :] if side == "left" else places[:most] for places, most in parts]
    return np.sort(np.concatenate([specials, *kept]))


def _option_text(example: Choice, option: str) -> tuple[str, str | None]:
    second = f"{example.pair} {option}".strip()
    return (example.text, second) if example.text.strip() else (second, None)


def word_pieces(batch: Sequence[Tagged], tokenizer: Tokenizer) -> Iterator[list[list[int]]]:
    """Yield the pieces of each word. A word that the tokenizer drops completely becomes one unknown token."""
    spaced = _loses_spaces(tokenizer)
    texts = [
        [" " + word if spaced and place and not is_han(word[:1]) else word for place, word in enumerate(example.words)]
        for example in batch
    ]
    marker = tokenizer.convert_tokens_to_ids("▁")  # SentencePiece's space marker; Chinese has no spaces to mark
    encoded = tokenizer(texts, is_split_into_words=True, add_special_tokens=False)
    for number, example in enumerate(batch):
        words: list[list[int]] = [[] for _ in example.words]
        for piece, word in zip(encoded["input_ids"][number], encoded.word_ids(number), strict=True):
            words[word].append(piece)
        for word, pieces in enumerate(words):
            if len(pieces) > 1 and pieces[0] == marker and is_han(example.words[word][:1]):
                del pieces[0]
            elif not pieces:
                pieces.append(tokenizer.unk_token_id)
        yield words


def _loses_spaces(tokenizer: Tokenizer) -> bool:
    """Whether words tokenised separately lose the space before them, which byte-level tokenizers encode in a word."""
    alone = tokenizer(["a", "b"], is_split_into_words=True)["input_ids"]
    return alone != tokenizer("a b")["input_ids"]


def _specials(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Special tokens before and after a single text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    at = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
    return whole[:at], whole[at + len(bare) :]


def window_starts(length: int, room: int, overlap: int) -> list[int]:
    """Starts of windows of length ``room`` that cover ``length`` and overlap by at least ``overlap``."""
    windows = max(1, math.ceil((length - overlap) / (room - overlap)))
    return [min(number * (room - overlap), max(length - room, 0)) for number in range(windows)]


def most_central(places: np.ndarray, starts: Sequence[int], room: int) -> np.ndarray:
    """For each place, the index of the window with the most context on its shorter side, in O(places log windows).

    That is the window with the nearest centre, start + (room - 1) / 2. Between two windows, the first one is taken up
    to the middle of their centres.
    """
    ordered = np.asarray(starts, dtype=np.int64)
    return np.searchsorted(ordered[:-1] + ordered[1:] + room - 1, 2 * places)


def answer_tokens(example: Question, places: np.ndarray, cls_token: int) -> list[int] | None:
    """First and last token of the first answer found in the context, or ``cls_token`` twice if the window lacks it."""
    if example.answers is None:
        return None
    pairs = zip(example.starts or (), example.answers, strict=True)
    there = [(start, answer) for start, answer in pairs if start >= 0 and answer.strip()]
    if not there:
        return [cls_token, cls_token]
    start, answer = there[0]
    start += len(answer) - len(answer.lstrip())  # no token contains leading or trailing blanks
    end = start + len(answer.strip()) - 1
    first = np.flatnonzero((places[:, 0] <= start) & (start < places[:, 1]))
    last = np.flatnonzero((places[:, 0] <= end) & (end < places[:, 1]))
    return [int(first[0]), int(last[-1])] if len(first) and len(last) else [cls_token, cls_token]


def choose_length(kind: Kind, tokenizer: Tokenizer, examples: Sequence[Example], longest: int) -> int:
    """Smallest multiple of 8 that fits 99.5 % of the examples, at most ``longest``."""
    step = max(1, len(examples) // SAMPLE)
    whole = ExampleEncoder(kind, tokenizer, (), longest, "whole")
    lengths = [len(ids) for row in whole.encode(examples[::step]).rows for ids in row.ids]
    fits = int(np.ceil(np.quantile(lengths, 0.995, method="inverted_cdf") / 8) * 8)
    return min(fits, longest)


def find_labels(kind: Kind, examples: Sequence[Any]) -> tuple[str, ...]:
    """Labels of the training data in logit order, or () for kinds without labels."""
    match kind:
        case "single-label":
            return tuple(sorted({example.label for example in examples}, key=_natural))
        case "multi-label":
            return tuple(sorted({label for example in examples for label in example.label}, key=_natural))
        case "tagging":
            tags = {tag for example in examples for tag in example.tags}
            return tuple(sorted(tags, key=lambda tag: (tag != "O", tag)))
        case "regression" | "qa" | "choice":
            return ()


def _natural(label: str) -> tuple[float, str]:
    """Sort key: numbers in numeric order, then words in alphabetical order."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def _progress(batches: range) -> Iterator[int]:
    from rich.console import Console
    from rich.progress import track

    show = sys.stderr.isatty() and len(batches) > 3
    return iter(track(batches, "tokenising", console=Console(stderr=True), transient=True, disable=not show))
