"""Multiple choice: RACE, SWAG, and the user's own rows with any number of options."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from debertakit.finetuning import metrics
from debertakit.finetuning.examples import Choice, Task
from debertakit.finetuning.folders import SPLITS, find, read_splits, with_dev
from debertakit.finetuning.problems import Problems, shorten
from debertakit.finetuning.rows import Row, collect, table
from debertakit.finetuning.texts import as_text, hidden, require

LEVELS = ("middle", "high")
LETTERS = "ABCDEFGHIJ"
SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")


def read_race(folder: Path) -> dict[str, list[Choice]]:
    """Read the archive's folders (train/high/1.txt ...; one passage per file), or JSON lines (one passage per line)."""
    root = next((place for place in (folder / "RACE", folder) if (place / "train").is_dir()), None)
    if root is None:
        return read_splits(folder, race, names=("RACE",), patterns=SPLITS)
    splits: dict[str, list[Choice]] = {}
    for split in ("train", "dev", "test"):
        if not (root / split).is_dir():
            continue
        problems = Problems(root / split, "file")
        splits[split] = race(_passages(root / split), problems, split != "test")
        problems.finish(len(splits[split]))
    return with_dev(root, splits)


def _passages(folder: Path) -> Iterator[Row]:
    for path in sorted(folder.rglob("*.txt")):
        yield Row(path.relative_to(folder).as_posix(), {"json": path.read_bytes()})


def race(rows: Iterator[Row], problems: Problems, labelled: bool) -> list[Choice]:
    return collect(rows, problems, lambda row: _questions(row, labelled))


def _questions(row: Row, labelled: bool) -> list[Choice]:
    """Questions of one passage. The id begins with the level, "high" or "middle"."""
    values = json.loads(row.values["json"]) if "json" in row.values else row.values
    passage, questions = values["article"], values["questions"]
    answers = values["answers"] if labelled or values.get("answers") else [None] * len(questions)
    if not len(questions) == len(answers) == len(values["options"]):
        raise ValueError("not as many questions as options and answers")
    examples = []
    for index, (question, options, answer) in enumerate(zip(questions, values["options"], answers, strict=True)):
        label = None if answer is None or (answer == "" and not labelled) else _letter(answer)
        if not passage.strip() or not all(option.strip() for option in options):
            raise ValueError("empty text", f"question {index + 1}")
        if label is not None and not 0 <= label < len(options):
            raise ValueError("label is none of the options", f"question {index + 1}: {answer!r}")
        identity = f"{values.get('id', row.number)}-{index}"
        examples.append(Choice(identity, passage, question.strip(), tuple(options), label))
    return examples


def _letter(answer: str) -> int:
    """Index of the option with this letter, or -1."""
    return LETTERS.find(answer) if len(answer) == 1 else -1


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
    splits = {}
    for split, path in find(folder, ("swag",), suffixes=(".csv",)).items():
        problems = Problems(path)
        rows = table(path, problems, quoting="csv")
        splits[split] = choices(rows, problems, "sent1", "sent2", SWAG_ENDINGS, "label", labelled=split != "test")
        problems.finish(len(splits[split]))
    return splits


def choices(
    rows: Iterator[Row],
    problems: Problems,
    text: str,
    pair: str | None,
    options: Sequence[str],
    label: str,
    *,
    labelled: bool,
) -> list[Choice]:
    """Read options from one column that holds a list, or from one column per option, where empty cells are no options.

    The label is the option's index (from 0), letter, column name or text.
    """
    examples: list[Choice] = []
    needed = [text, *([pair] if pair else []), *options, *([label] if labelled else [])]
    for index, (number, row) in enumerate(rows):
        if index == 0:
            require(row, [(name.casefold(),) for name in needed], problems)
        values = {name.casefold(): value for name, value in row.items()}
        try:
            found = _options([values.get(name.casefold()) for name in options])
            body = as_text(values.get(text.casefold()))
            question = as_text(values.get(pair.casefold())) if pair else ""
            raw = values.get(label.casefold())
            if not body:
                raise ValueError("empty text")
            if sum(map(bool, found)) < 2:
                raise ValueError("fewer than two options", shorten(found))
            if labelled and hidden(raw):
                raise ValueError("no label")
            place = None if hidden(raw) else _place(raw, options, found)
        except ValueError as error:
            problems.skip(number, *error.args)
            continue
        examples.append(Choice(str(len(examples)), body, question, tuple(filter(None, found)), place))
    return examples


def _options(cells: Sequence[Any]) -> list[str]:
    """Keep empty options, because the label may count them."""
    return [as_text(option) for option in (cells[0] if len(cells) == 1 and isinstance(cells[0], list) else cells)]


def _place(raw: Any, columns: Sequence[str], options: Sequence[str]) -> int:
    """Index of the labelled option among the non-empty options."""
    given = str(raw).strip()
    if given in columns and len(columns) == len(options):
        place = columns.index(given)
    elif given.isdecimal():
        place = int(given)
    elif options.count(given) == 1:
        place = options.index(given)
    else:
        place = _letter(given.upper())
    if not 0 <= place < len(options) or not options[place]:
        raise ValueError("label is none of the options", shorten(raw))
    return sum(map(bool, options[:place]))


def write(path: Path, examples: Sequence[Choice], predictions: Sequence[int]) -> None:
    """Write id and option index, separated by a tab."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{e.id}\t{p}\n" for e, p in zip(examples, predictions, strict=True))


def _task(name: str, read: Any, score: Any) -> Task:
    files = {"test": f"{name}.tsv"}
    return Task(name=name, kind="choice", read=read, score=score, metric="accuracy", write=write, files=files)


TASKS = (_task("race", read_race, score_race), _task("swag", read_swag, metrics.accuracy))
