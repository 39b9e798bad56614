"""Examples to rows of tokens, as the model reads them.

Text       [CLS] text [SEP]   or   [CLS] text [SEP] pair [SEP]
Tagged     [CLS] w1 w2 w2' w3 [SEP]: a word's first piece carries its tag, the others carry none. What is too long
           is read in overlapping windows; each word is tagged in the one that shows most around it
Question   [CLS] question [SEP] context [SEP]: a long context in overlapping windows; start and end of the answer
           as token positions, both at [CLS] where this window does not hold it
Choice     [CLS] text [SEP] pair option [SEP], once for each option
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from debertakit.finetuning.examples import Choice, Example, Kind, Question, Tagged, Text

IGNORED = -100
BATCH = 1000
SAMPLE = 5000
"""Examples whose lengths decide the maximum length."""


@dataclass(frozen=True)
class Row:
    example: int
    """Index of the example that this row is, or is a window of."""
    ids: list[list[int]]
    """Token ids: one sequence; for Choice one for each option."""
    segments: list[list[int]] | None = None
    label: Any = None
    """int; regression: float; multi-label: a float for each label; tagging: an int for each token; qa: start, end."""
    places: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    """Tagged: (word, token) pairs; Question: characters of the context (from, to) of each token, -1 outside of it."""

    @property
    def tokens(self) -> int:
        """With the padding between its options."""
        return len(self.ids) * max(map(len, self.ids))


@dataclass(frozen=True)
class Features:
    rows: list[Row]
    cut: int
    """Texts that lost their ends to the maximum length."""


@dataclass(frozen=True)
class Encoder:
    """What examples are encoded with."""

    kind: Kind
    tokenizer: Any
    labels: tuple[str, ...]
    max_length: int

    def encode(self, examples: Sequence[Example], strict: bool = False) -> Features:
        """``strict``: a label that is not among ``labels`` raises; else nothing can be right for its example."""
        rows: list[Row] = []
        cut = 0
        for first in _progress(range(0, len(examples), BATCH)):
            batch = examples[first : first + BATCH]
            for row, was_cut in self._rows(batch, strict):
                rows.append(Row(first + row.example, row.ids, row.segments, row.label, row.places))
                cut += was_cut
        return Features(rows, cut)

    def _rows(self, batch: Sequence[Any], strict: bool) -> Iterator[tuple[Row, bool]]:
        if self.kind == "tagging":
            return self._tagged(batch, strict)
        if self.kind == "qa":
            return self._questions(batch)
        if self.kind == "choice":
            return self._choices(batch)
        return self._texts(batch, strict)

    # ------------------------------------------------------------------------------------------------------- texts

    def _texts(self, batch: Sequence[Text], strict: bool) -> Iterator[tuple[Row, bool]]:
        for index, (example, (ids, segments, cut)) in enumerate(
            zip(batch, self._pairs([(example.text, example.pair) for example in batch]), strict=True)
        ):
            yield Row(index, [ids], [segments] if segments else None, self._label(example, strict)), cut

    def _pairs(self, texts: list[tuple[str, str | None]]) -> Iterator[tuple[list[int], list[int] | None, bool]]:
        inputs = [text if pair is None else (text, pair) for text, pair in texts]
        encoded = self.tokenizer(inputs, truncation=True, max_length=self.max_length)
        segments = encoded.get("token_type_ids") or [None] * len(texts)
        for ids, segment, encoding in zip(encoded["input_ids"], segments, encoded.encodings, strict=True):
            yield ids, segment, bool(encoding.overflowing)

    def _label(self, example: Text, strict: bool) -> Any:
        if example.label is None:
            return None
        if self.kind == "regression":
            return float(example.label)  # type: ignore[arg-type]
        if self.kind == "multi-label":
            assert isinstance(example.label, tuple)
            given = {self._index(label, example.id, strict) for label in example.label}
            return [float(index in given) for index in range(len(self.labels))]
        return self._index(example.label, example.id, strict)

    def _index(self, label: Any, owner: str, strict: bool) -> int:
        if label in self.labels:
            return self.labels.index(label)
        if strict:
            raise ValueError(f"example {owner}: the label {label!r} is not one of {', '.join(self.labels[:20])}")
        return IGNORED

    # ----------------------------------------------------------------------------------------------------- tagging

    def _tagged(self, batch: Sequence[Tagged], strict: bool) -> Iterator[tuple[Row, bool]]:
        before, behind = _specials(self.tokenizer)
        room = self.max_length - len(before) - len(behind)
        if room < 1:
            specials = len(before) + len(behind)
            raise ValueError(f"max_length is {self.max_length}: no room for words beside {specials} special tokens")
        overlap = room // 4
        for index, (example, pieces) in enumerate(zip(batch, word_pieces(batch, self.tokenizer), strict=True)):
            ids = [piece for word in pieces for piece in word]
            firsts = np.cumsum([0, *map(len, pieces)])[:-1]  # [words] each word's first piece
            starts = window_starts(len(ids), room, overlap)
            owners = [_most_central(int(first), starts, room) for first in firsts]
            for number, start in enumerate(starts):
                own = [word for word, owner in enumerate(owners) if owner == number]
                places = np.array([(word, firsts[word] - start + len(before)) for word in own], dtype=np.int64)
                tokens = [*before, *ids[start : start + room], *behind]
                label = None
                if example.tags is not None:
                    label = [IGNORED] * len(tokens)
                    for word, place in places.reshape(-1, 2):
                        label[place] = self._index(example.tags[word], example.id, strict)
                yield Row(index, [tokens], None, label, places.reshape(-1, 2)), False

    # ---------------------------------------------------------------------------------------------------- questions

    def _questions(self, batch: Sequence[Question]) -> Iterator[tuple[Row, bool]]:
        encoded = self.tokenizer(
            self._clip([example.question.strip() for example in batch]),
            [example.context for example in batch],
            truncation="only_second",
            max_length=self.max_length,
            stride=min(128, self.max_length // 4),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for number, owner in enumerate(encoded["overflow_to_sample_mapping"]):
            ids = encoded["input_ids"][number]
            inside = np.array([sequence == 1 for sequence in encoded.sequence_ids(number)])
            places = np.where(inside[:, None], np.array(encoded["offset_mapping"][number]), -1)
            segments = encoded["token_type_ids"][number] if "token_type_ids" in encoded else None
            nowhere = ids.index(self.tokenizer.cls_token_id)
            label = answer_tokens(batch[owner], places, nowhere)
            yield Row(owner, [ids], [segments] if segments else None, label, places), False

    def _clip(self, questions: list[str]) -> list[str]:
        """Questions that leave room for their contexts: at most 64 tokens, and a third of what the model reads."""
        most = min(64, self.max_length // 3)
        encoded = self.tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return [
            text if len(offsets) <= most else text[: offsets[most - 1][1]]
            for text, offsets in zip(questions, encoded, strict=True)
        ]

    # ------------------------------------------------------------------------------------------------------ choices

    def _choices(self, batch: Sequence[Choice]) -> Iterator[tuple[Row, bool]]:
        texts = [_option_text(example, option) for example in batch for option in example.options]
        encoded = self._pairs(texts)
        for index, example in enumerate(batch):
            parts = [next(encoded) for _ in example.options]
            segments = [part[1] for part in parts if part[1] is not None] or None
            yield Row(index, [part[0] for part in parts], segments, example.label), any(part[2] for part in parts)


def _option_text(example: Choice, option: str) -> tuple[str, str | None]:
    behind = f"{example.pair} {option}".strip()
    return (example.text, behind) if example.text.strip() else (behind, None)


def word_pieces(batch: Sequence[Tagged], tokenizer: Any) -> Iterator[list[list[int]]]:
    """The pieces of each word; never none: a word of which the tokenizer leaves nothing is one unknown piece."""
    spaced = _loses_spaces(tokenizer)
    texts = [
        [" " + word if spaced and place and not _chinese(word) else word for place, word in enumerate(example.words)]
        for example in batch
    ]
    marker = tokenizer.convert_tokens_to_ids("▁")  # sentencepiece's sign for a space; Chinese has none to mark
    encoded = tokenizer(texts, is_split_into_words=True, add_special_tokens=False)
    for number, example in enumerate(batch):
        words: list[list[int]] = [[] for _ in example.words]
        for piece, word in zip(encoded["input_ids"][number], encoded.word_ids(number), strict=True):
            words[word].append(piece)
        for word, pieces in enumerate(words):
            if len(pieces) > 1 and pieces[0] == marker and _chinese(example.words[word]):
                del pieces[0]
            elif not pieces:
                pieces.append(tokenizer.unk_token_id)
        yield words


def _loses_spaces(tokenizer: Any) -> bool:
    """Byte-level tokenizers write the space before a word into its first piece; a word handed over alone lost it."""
    alone = tokenizer(["a", "b"], is_split_into_words=True)["input_ids"]
    return alone != tokenizer("a b")["input_ids"]


def _chinese(word: str) -> bool:
    return "\u3400" <= word[:1] <= "\u9fff" or "\U00020000" <= word[:1] <= "\U0003ffff"


def _specials(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and behind a single text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    at = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
    return whole[:at], whole[at + len(bare) :]


def window_starts(length: int, room: int, overlap: int) -> list[int]:
    """Where windows of ``room`` begin that cover ``length`` and overlap by ``overlap`` or more."""
    windows = max(1, math.ceil((length - overlap) / (room - overlap)))
    return [min(number * (room - overlap), max(length - room, 0)) for number in range(windows)]


def _most_central(place: int, starts: list[int], room: int) -> int:
    """The window that shows most on the poorer side of a place."""
    return max(range(len(starts)), key=lambda n: min(place - starts[n], starts[n] + room - 1 - place))


def answer_tokens(example: Question, places: np.ndarray, nowhere: int) -> list[int] | None:
    """First and last token of the first answer that is in the context, in a window whose tokens lie at ``places``."""
    if example.answers is None:
        return None
    pairs = zip(example.starts or (), example.answers, strict=True)
    there = [(start, answer) for start, answer in pairs if start >= 0 and answer.strip()]
    if not there:
        return [nowhere, nowhere]
    start, answer = there[0]
    start += len(answer) - len(answer.lstrip())  # no token holds a blank at the ends
    end = start + len(answer.strip()) - 1
    first = np.flatnonzero((places[:, 0] <= start) & (start < places[:, 1]))
    last = np.flatnonzero((places[:, 0] <= end) & (end < places[:, 1]))
    return [int(first[0]), int(last[-1])] if len(first) and len(last) else [nowhere, nowhere]


def choose_length(kind: Kind, tokenizer: Any, examples: Sequence[Example], longest: int) -> int:
    """99.5 % of the examples fit whole; a multiple of 8, at most ``longest``."""
    step = max(1, len(examples) // SAMPLE)
    whole = Encoder(kind, tokenizer, (), max_length=10**6)
    lengths = [len(ids) for row in whole.encode(examples[::step]).rows for ids in row.ids]
    fits = int(np.ceil(np.quantile(lengths, 0.995, method="inverted_cdf") / 8) * 8)
    return min(fits, longest)


def find_labels(kind: Kind, examples: Sequence[Any]) -> tuple[str, ...]:
    """The labels of the training data, in the order of the logits; () where there are none."""
    if kind == "single-label":
        found = {example.label for example in examples}
    elif kind == "multi-label":
        found = {label for example in examples for label in example.label}
    elif kind == "tagging":
        found = {tag for example in examples for tag in example.tags}
        return tuple(sorted(found, key=lambda tag: (tag != "O", tag)))
    else:
        return ()
    return tuple(sorted(found, key=_natural))


def _natural(label: str) -> tuple[float, str]:
    """Numbers in their order, then words in theirs."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def _progress(batches: range) -> Iterator[int]:
    from rich.console import Console
    from rich.progress import track

    show = sys.stderr.isatty() and len(batches) > 3
    return iter(track(batches, "tokenising", console=Console(stderr=True), transient=True, disable=not show))
