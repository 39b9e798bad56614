"""Extractive question answering: SQuAD 1.1 and 2.0, and any file in their format.

An answer is a text and its start. If the context does not have the text at that position, but exactly once elsewhere,
the start is repaired. A question without a usable answer is skipped in training. In dev it keeps its answers, because
scoring only uses the texts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from debertakit.data.examples import Question
from debertakit.data.folders import Patterns, find, hub_rows, is_hub
from debertakit.data.problems import Problems, shorten
from debertakit.data.tables import TableRow, decodable, whole


class AnswerColumns(TypedDict):
    """The answers to a question, as on the hub."""

    text: list[str]
    answer_start: list[int]


def looks_like_squad(path: Path) -> bool:
    """Whether the beginning of a .json file has the fields of SQuAD. A table too may be a list under "data"."""
    with path.open("rb") as file:
        return b'"paragraphs"' in file.read(1 << 20)


def read_squad(path: Path, *, train: bool, impossible: bool = True) -> list[Question]:
    """Read a file in SQuAD's format. ``impossible``: whether the task includes questions without an answer."""
    try:
        data = json.loads(whole(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    articles = data.get("data") if isinstance(data, dict) else None
    if not isinstance(articles, list):
        raise ValueError(f"{path}: not in SQuAD's format; expected an object with a list 'data'")
    problems = Problems(path, "question")
    examples = questions(_flat(articles, problems), problems, train=train, impossible=impossible)
    problems.finish(len(examples))
    return examples


def questions(rows: Iterator[TableRow], problems: Problems, *, train: bool, impossible: bool) -> list[Question]:
    """Convert rows of id, question, context and answers (AnswerColumns, or None if they are withheld)."""
    examples = []
    for number, row in rows:
        context, question = row["context"], row["question"].strip()
        texts, starts = _answers(row["answers"])
        if not context.strip() or not question:
            problems.skip(number, "empty text")
        elif not decodable(context + question + "".join(texts)):
            problems.skip(number, "not UTF-8")
        elif row["answers"] is None:
            examples.append(Question(row["id"], question, context))
        elif not texts and impossible:
            examples.append(Question(row["id"], question, context, (), ()))
        elif not texts:
            problems.skip(number, "no answer", "only squad2 has questions without an answer")
        else:
            found = [(text, _place(context, text, start)) for text, start in zip(texts, starts, strict=True)]
            placed = [answer for answer in found if answer[1] >= 0]
            if train and not placed:
                problems.skip(number, "answer not in the context", shorten(texts[0]))
                continue
            if any(place not in (start, -1) for (_, place), start in zip(found, starts, strict=True)):
                problems.repair(number, "answer at a wrong offset, corrected")
            if len(placed) < len(found):
                problems.repair(number, f"answer not in the context, {'dropped' if train else 'kept for scoring'}")
            kept = placed if train else sorted(found, key=lambda answer: answer[1] < 0)  # answers with a start first
            answers, places = zip(*kept, strict=True)
            examples.append(Question(row["id"], question, context, answers, places))
    return examples


def _flat(articles: Sequence[Any], problems: Problems) -> Iterator[TableRow]:
    """Yield questions, numbered by their id."""
    for number, article in enumerate(articles, 1):
        try:
            pairs = [(paragraph["context"], qa) for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
        except (KeyError, TypeError) as error:
            problems.skip(f"in article {number}", "not in SQuAD's format", f"{type(error).__name__} {error}")
            continue
        for context, qa in pairs:
            try:
                row = {"id": str(qa["id"]), "question": qa["question"], "context": context, "answers": _columns(qa)}
                if not isinstance(context, str) or not isinstance(qa["question"], str):
                    raise TypeError("question and context must be texts")
            except (KeyError, TypeError, ValueError) as error:
                problems.skip(f"in article {number}", "not in SQuAD's format", f"{type(error).__name__} {error}")
                continue
            yield TableRow(row["id"], row)


def _columns(qa: Mapping[str, Any]) -> AnswerColumns | None:
    """Answers as on the hub: None in a test set, empty lists for an unanswerable question."""
    if qa.get("is_impossible"):
        return {"text": [], "answer_start": []}
    if "answers" not in qa:
        return None
    answers = [(str(answer["text"]), int(answer["answer_start"])) for answer in qa["answers"]]
    return {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}


def _answers(columns: AnswerColumns | None) -> tuple[list[str], list[int]]:
    return (columns["text"], columns["answer_start"]) if columns else ([], [])


def _place(context: str, text: str, start: int) -> int:
    """Start of the answer: ``start`` if the text is there, else its only occurrence, else -1."""
    if text and start >= 0 and context.startswith(text, start):
        return start
    return context.find(text) if text and context.count(text) == 1 else -1


def read_folder(
    folder: Path, *, names: Sequence[str], patterns: Patterns, hub: str, impossible: bool
) -> dict[str, list[Question]]:
    if is_hub(folder):
        splits = {}
        for split, rows in hub_rows(folder, hub).items():
            problems = Problems(folder, "row")
            splits[split] = questions(rows, problems, train=split == "train", impossible=impossible)
            problems.finish(len(splits[split]))
        return splits
    files = find(folder, names, patterns, (".json",))
    return {split: read_squad(path, train=split == "train", impossible=impossible) for split, path in files.items()}


def write(path: Path, examples: Sequence[Question], predictions: Sequence[str]) -> None:
    """Write {id: answer} as JSON."""
    answers = {example.id: prediction for example, prediction in zip(examples, predictions, strict=True)}
    path.write_text(json.dumps(answers, ensure_ascii=False) + "\n", encoding="utf-8")
