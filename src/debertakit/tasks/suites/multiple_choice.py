"""Multiple choice: RACE and SWAG."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from debertakit.data.choices import choices, letter_index
from debertakit.data.examples import Choice
from debertakit.data.folders import SPLITS, find, is_hub, read_splits, with_dev
from debertakit.data.problems import Problems
from debertakit.data.tables import TableRow, collect, table
from debertakit.tasks import metrics
from debertakit.tasks.task import Task

LEVELS = ("middle", "high")
SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")


def read_race(folder: Path) -> dict[str, list[Choice]]:
    """Read the archive's folders (train/high/1.txt ...; one passage per file), JSON lines (one passage per line), or
    the hub (one question per row)."""
    root = next((place for place in (folder / "RACE", folder) if (place / "train").is_dir()), None)
    if root is None:
        return read_splits(folder, race, names=("RACE",), patterns=SPLITS, hub="ehovy/race:all")
    splits: dict[str, list[Choice]] = {}
    for split in ("train", "dev", "test"):
        if not (root / split).is_dir():
            continue
        problems = Problems(root / split, "file")
        splits[split] = race(_passages(root / split), problems, split != "test")
        problems.finish(len(splits[split]))
    return with_dev(root, splits)


def _passages(folder: Path) -> Iterator[TableRow]:
    for path in sorted(folder.rglob("*.txt")):
        yield TableRow(path.relative_to(folder).as_posix(), {"json": path.read_bytes()})


def race(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[Choice]:
    return collect(rows, problems, lambda row: _questions(row, labelled))


def _questions(row: TableRow, labelled: bool) -> list[Choice]:
    """Questions of one passage. The id begins with the level, "high" or "middle"."""
    values = json.loads(row.values["json"]) if "json" in row.values else row.values
    if "example_id" in values:  # the hub repeats the passage for each question
        single = {"questions": [values["question"]], "answers": [values["answer"]], "options": [values["options"]]}
        identity = f"{values['example_id'].removesuffix('.txt')}-{row.number}"
        values = {"article": values["article"], "id": identity, **single}
    passage, questions = values["article"], values["questions"]
    answers = values["answers"] if labelled or values.get("answers") else [None] * len(questions)
    if not len(questions) == len(answers) == len(values["options"]):
        raise ValueError("different numbers of questions, options and answers")
    examples = []
    for index, (question, options, answer) in enumerate(zip(questions, values["options"], answers, strict=True)):
        label = None if answer is None or (answer == "" and not labelled) else letter_index(answer)
        if not passage.strip() or not all(option.strip() for option in options):
            raise ValueError("empty text", f"question {index + 1}")
        if label is not None and not 0 <= label < len(options):
            raise ValueError("label is not one of the options", f"question {index + 1}: {answer!r}")
        identity = f"{values.get('id', row.number)}-{index}"
        examples.append(Choice(identity, passage, question.strip(), tuple(options), label))
    return examples


def score_race(examples: Sequence[Choice], predictions: Sequence[int]) -> dict[str, float]:
    """Accuracy over all questions, and over each level that occurs."""
    scores = metrics.accuracy(examples, predictions)
    for level in LEVELS:
        chosen = [i for i, example in enumerate(examples) if example.id.startswith(level)]
        if chosen:
            scores[level] = metrics.accuracy([examples[i] for i in chosen], [predictions[i] for i in chosen])[
                "accuracy"
            ]
    return scores


def read_swag(folder: Path) -> dict[str, list[Choice]]:
    if is_hub(folder):
        return read_splits(folder, _swag, names=(), hub="allenai/swag:regular")
    splits = {}
    for split, path in find(folder, ("swag",), suffixes=(".csv",)).items():
        problems = Problems(path)
        splits[split] = _swag(table(path, problems, quoting="csv"), problems, split != "test")
        problems.finish(len(splits[split]))
    return splits


def _swag(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[Choice]:
    return choices(rows, problems, "sent1", "sent2", SWAG_ENDINGS, "label", labelled=labelled)


def write(path: Path, examples: Sequence[Choice], predictions: Sequence[int]) -> None:
    """Write id and option index, separated by a tab."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{e.id}\t{p}\n" for e, p in zip(examples, predictions, strict=True))


def _task(
    name: str,
    read: Callable[[Path], dict[str, list[Choice]]],
    score: Callable[[Sequence[Choice], Sequence[int]], dict[str, float]],
) -> Task[Choice, int]:
    files = {"test": f"{name}.tsv"}
    return Task(name=name, kind="choice", read=read, score=score, metric="accuracy", write=write, files=files)


MULTIPLE_CHOICE = (_task("race", read_race, score_race), _task("swag", read_swag, metrics.accuracy))
