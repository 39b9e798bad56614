"""Minimal pairs: does a language model prefer the grammatical sentence?

    masked, permuted    score(s) = sum over tokens i of  log p(s_i | all other tokens)    pseudo-log-likelihood
    causal              score(s) = sum over tokens i of  log p(s_i | s_<i)
    discriminator       score(s) = sum over tokens i of  log p(s_i is original | s)

A pair is right if score(good) > score(bad); a tie is wrong. Special tokens, [UNK] included, are not scored. For a
masked LM, a sentence of n tokens is n sequences with one mask each. For our models, the sequences are packed without
padding, and the mask decoder and the vocabulary head compute only the masked rows.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from debertakit.lab.language_models import open_language_model, text_scores


@dataclass(frozen=True)
class MinimalPair:
    good: str
    bad: str
    paradigm: str


@dataclass(frozen=True)
class PairScores:
    correct: dict[str, tuple[int, int]]
    """Paradigm -> (pairs that are right, pairs)."""

    @property
    def mean(self) -> float:
        """Mean accuracy over the paradigms, so that a large paradigm counts no more than a small one."""
        return sum(right / total for right, total in self.correct.values()) / len(self.correct)

    def __str__(self) -> str:
        width = max(len("paradigm"), *map(len, self.correct))
        lines = [f"{'paradigm':<{width}}   right   pairs"]
        lines += [f"{name:<{width}}  {right / total:6.1%}  {total:6,}" for name, (right, total) in self.correct.items()]
        total = sum(pairs for _, pairs in self.correct.values())
        return "\n".join([*lines, f"{'mean':<{width}}  {self.mean:6.1%}  {total:6,}"])


def score_pairs(model: str | Path, files: Sequence[Path], limit: int | None = None) -> PairScores:
    """Score a language model on files of minimal pairs. ``limit``: pairs per paradigm."""
    pairs = read_pairs(files, limit)
    opened = open_language_model(model)
    scores = text_scores(opened, [text for pair in pairs for text in (pair.good, pair.bad)])
    return count_right(pairs, prefer_good(scores))


def prefer_good(scores: Sequence[float]) -> list[bool]:
    """Whether each pair is right. ``scores``: good, bad, good, bad, ..."""
    return [good > bad for good, bad in zip(scores[::2], scores[1::2], strict=True)]


def count_right(pairs: Sequence[MinimalPair], right: Sequence[bool]) -> PairScores:
    correct: dict[str, tuple[int, int]] = {}
    for pair, hit in zip(pairs, right, strict=True):
        hits, total = correct.get(pair.paradigm, (0, 0))
        correct[pair.paradigm] = hits + hit, total + 1
    return PairScores(dict(sorted(correct.items())))


def read_pairs(paths: Iterable[Path], limit: int | None = None) -> list[MinimalPair]:
    """Read .jsonl files, or all .jsonl files of a folder. A pair without a UID belongs to the paradigm of its file.

    ``limit``: read only the first pairs of each paradigm, this many.
    """
    pairs = []
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path} has no .jsonl files")
        for file in files:
            pairs += list(_read_file(file))
    if not pairs:
        raise ValueError("the files have no minimal pairs")
    return _first_of_each(pairs, limit)


def _read_file(file: Path) -> Iterator[MinimalPair]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not a readable .jsonl file ({error})") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            good, bad = row["sentence_good"], row["sentence_bad"]
        except (json.JSONDecodeError, KeyError, TypeError):
            good = bad = None
        if not isinstance(good, str) or not isinstance(bad, str):
            raise ValueError(f'{file}, line {number}: expected JSON with the texts "sentence_good" and "sentence_bad"')
        yield MinimalPair(good, bad, str(row.get("UID", file.stem)))


def _first_of_each(pairs: Sequence[MinimalPair], limit: int | None) -> list[MinimalPair]:
    seen: dict[str, int] = {}
    kept = []
    for pair in pairs:
        seen[pair.paradigm] = seen.get(pair.paradigm, 0) + 1
        if limit is None or seen[pair.paradigm] <= limit:
            kept.append(pair)
    return kept
