"""Chinese: TNEWS, AFQMC, OCNLI, CLUENER and CMRC 2018 of CLUE (cluebenchmarks.com), and ChnSentiCorp.

Chinese text is read as characters: ``Tagged.words`` of CLUENER are characters, including blanks.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from debertakit.data import squad
from debertakit.data.examples import Tagged, TextExample
from debertakit.data.folders import SPLITS, Patterns, read_splits
from debertakit.data.problems import Problems, shorten
from debertakit.data.tables import TableRow
from debertakit.data.texts import Columns, LabelValue, one_of, reader
from debertakit.tasks import metrics
from debertakit.tasks.suites.glue import BINARY, SENTENCES
from debertakit.tasks.task import Task

TNEWS = {
    "news_story": "100",
    "news_culture": "101",
    "news_entertainment": "102",
    "news_sports": "103",
    "news_finance": "104",
    "news_house": "106",
    "news_car": "107",
    "news_edu": "108",
    "news_tech": "109",
    "news_military": "110",
    "news_travel": "112",
    "news_world": "113",
    "news_stock": "114",
    "news_agriculture": "115",
    "news_game": "116",
}
SENTIMENT = ("negative", "positive")
OCNLI = ("entailment", "neutral", "contradiction")
CLUENER = "address book company game government movie name organization position scene".split()

_CMRC: Patterns = {**SPLITS, "dev": ("*dev*",), "dev-trial": ("*trial*",)}


_tnews_name = one_of(tuple(TNEWS))
_TNEWS_CODES = {code: name for name, code in TNEWS.items()}


def _tnews_label(value: object) -> LabelValue | None:
    """Read a label given as a name or as the leaderboard's code."""
    return _tnews_name(_TNEWS_CODES.get(str(value).strip(), value))


def _cluener(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[Tagged]:
    examples: list[Tagged] = []
    for number, values in rows:
        text, label = values.get("text"), values.get("label")
        if not isinstance(text, str) or not text.strip():
            problems.skip(number, "empty text")
            continue
        if label is None and labelled:
            problems.skip(number, "no label")
            continue
        try:
            tags = None if label is None else _character_tags(text, label, number, problems)
        except (AttributeError, TypeError, ValueError) as error:
            problems.skip(number, "not {type: {text: [[first, last], ...]}}", str(error))
            continue
        examples.append(Tagged(str(values.get("id", len(examples))), tuple(text), tags))
    return examples


def _character_tags(
    text: str, label: dict[str, dict[str, list[list[int]]]], number: int | str, problems: Problems
) -> tuple[str, ...]:
    """Tag characters. Span ends are inclusive. Of two overlapping spans, the longer one is kept."""
    spans = [
        (first, last, kind, entity)
        for kind, found in label.items()
        for entity, places in found.items()
        for first, last in places
    ]
    tags = ["O"] * len(text)
    for first, last, kind, entity in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        if text[first : last + 1] != entity:
            problems.repair(number, "entity at a wrong offset, dropped", shorten(entity))
        elif any(tag != "O" for tag in tags[first : last + 1]):
            problems.repair(number, "entity that overlaps a longer one, dropped", shorten(entity))
        else:
            tags[first : last + 1] = [f"B-{kind}"] + [f"I-{kind}"] * (last - first)
    return tuple(tags)


def _writer(value: Callable[[str], str]) -> Callable[[Path, Sequence[TextExample], Sequence[str]], None]:
    """Write one {"id": ..., "label": ...} per line, in the order of the test file."""

    def write(path: Path, examples: Sequence[TextExample], predictions: Sequence[str]) -> None:
        with path.open("w", encoding="utf-8") as file:
            for example, prediction in zip(examples, predictions, strict=True):
                file.write(json.dumps({"id": int(example.id), "label": value(prediction)}) + "\n")

    return write


def _write_cluener(path: Path, examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for example, tags in zip(examples, predictions, strict=True):
            label: dict[str, dict[str, list[list[int]]]] = {}
            for kind, first, last in metrics.entity_places(tags):
                entity = "".join(example.words[first : last + 1])
                label.setdefault(kind, {}).setdefault(entity, []).append([first, last])
            row = {"id": int(example.id), "text": "".join(example.words), "label": label}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_sentiment(path: Path, examples: Sequence[TextExample], predictions: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("qid\tlabel\n")
        file.writelines(
            f"{example.id}\t{SENTIMENT.index(prediction)}\n"
            for example, prediction in zip(examples, predictions, strict=True)
        )


_by_name = _writer(str)

CLUE = (
    Task(
        name="tnews",
        kind="single-label",
        read=reader(
            Columns(("sentence",), label=("label_desc", "label"), headless=("sentence", "label")),
            _tnews_label,
            names=("tnews", "tnews_public"),
        ),
        score=metrics.accuracy,
        metric="accuracy",
        labels=tuple(TNEWS),
        write=_writer(TNEWS.__getitem__),
        files={"test": "tnews11_predict.json"},
    ),
    Task(
        name="afqmc",
        kind="single-label",
        read=reader(SENTENCES, one_of(BINARY, BINARY), names=("afqmc", "afqmc_public")),
        score=metrics.accuracy,
        metric="accuracy",
        labels=BINARY,
        write=_by_name,
        files={"test": "afqmc_predict.json"},
    ),
    Task(
        name="ocnli",
        kind="single-label",
        read=reader(SENTENCES, one_of(OCNLI, OCNLI), names=("ocnli", "ocnli_public")),
        score=metrics.accuracy,
        metric="accuracy",
        labels=OCNLI,
        write=_by_name,
        files={"test": "ocnli_50k_predict.json"},
    ),
    Task(
        name="cluener",
        kind="tagging",
        read=lambda folder: read_splits(folder, _cluener, names=("cluener", "cluener_public")),
        score=metrics.cluener,
        metric="f1",
        labels=("O", *(f"{prefix}-{kind}" for kind in CLUENER for prefix in "BI")),
        write=_write_cluener,
        files={"test": "cluener_predict.json"},
    ),
    Task(
        name="cmrc2018",
        kind="qa",
        read=lambda folder: squad.read_folder(
            folder, names=("cmrc2018", "cmrc2018_public"), patterns=_CMRC, hub="", impossible=False
        ),
        score=metrics.cmrc,
        metric="average",
        write=squad.write,
        files={"test": "cmrc2018_predict.json"},
    ),
    Task(
        name="chnsenticorp",
        kind="single-label",
        read=reader(
            Columns(("text_a", "text"), headless=("text_a", "label")),
            one_of(SENTIMENT, SENTIMENT),
            names=("chnsenticorp",),
        ),
        score=metrics.accuracy,
        metric="accuracy",
        labels=SENTIMENT,
        write=_write_sentiment,
        files={"test": "chnsenticorp_predict.tsv"},
    ),
)
