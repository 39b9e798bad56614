"""SuperGLUE: eight tasks (super.gluebenchmark.com), from the archive's .jsonl files and common copies of them.

Texts and options of each task:

    boolq     passage, question
    cb, rte   premise, hypothesis
    copa      premise; "What was the cause?" or "What happened as a result?" and each choice
    multirc   paragraph; question and answer, each answer judged separately
    record    passage; the query with each entity in place of the blank
    wic       word and first sentence, second sentence
    wsc       the text with the *pronoun* marked; the text with the noun phrase in its place
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from debertakit.data.examples import Choice, E, TextExample
from debertakit.data.folders import ReadSplit, read_splits
from debertakit.data.problems import Problems, shorten
from debertakit.data.tables import TableRow, collect
from debertakit.data.texts import Columns, as_text, hidden, one_of, require, texts
from debertakit.tasks import metrics
from debertakit.tasks.suites.glue import BINARY, ENTAILMENT
from debertakit.tasks.task import Task

BOOLEAN = ("false", "true")
CB_LABELS = ("entailment", "contradiction", "neutral")
COPA_QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}
BLANK = "@placeholder"

_NLI = Columns(("premise",), ("hypothesis",))
_WIC_COPY = re.compile(r"Word: (.*?)\. Sentence 1: (.*?) Sentence 2: (.*)", re.DOTALL)


def _wic(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[TextExample]:
    columns = Columns(("first",), ("sentence2",))
    return texts(_wic_sentences(rows, problems), problems, columns, one_of(BOOLEAN, BOOLEAN), labelled)


def _wic_sentences(rows: Iterator[TableRow], problems: Problems) -> Iterator[TableRow]:
    """Also accept copies with all fields in one text: "Word: go. Sentence 1: ... Sentence 2: ..."."""
    for number, values in rows:
        copy = _WIC_COPY.fullmatch(str(values.get("text", "")))
        if copy:
            word, sentence1, sentence2 = copy.groups()
        elif "word" in values and "sentence1" in values:
            word, sentence1, sentence2 = values["word"], values["sentence1"], values.get("sentence2")
        else:
            problems.skip(number, "neither word and sentences nor 'Word: ... Sentence 1: ...'", shorten(values))
            continue
        first = f"{word}: {sentence1}" if word and sentence1 else ""
        yield TableRow(number, {**values, "first": first, "sentence2": sentence2})


def _wsc(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[TextExample]:
    columns = Columns(("marked",), ("replaced",))
    return texts(_wsc_pairs(rows, problems), problems, columns, one_of(BOOLEAN, BOOLEAN), labelled)


def _wsc_pairs(rows: Iterator[TableRow], problems: Problems) -> Iterator[TableRow]:
    """``span2_index`` counts words separated by blanks. The word there may include punctuation: "him,"."""
    for number, values in rows:
        nested = values.get("target")  # nested in the archive, flat on the hub and in copies
        target = {**values, **nested} if isinstance(nested, dict) else values
        text, noun, pronoun, index = (target.get(k) for k in ("text", "span1_text", "span2_text", "span2_index"))
        if not (isinstance(text, str) and noun and pronoun and isinstance(index, int)):
            problems.skip(number, "no text, span1_text, span2_text or span2_index", shorten(values))
            continue
        begin = _place(text, pronoun, index)
        if begin is None:
            problems.skip(number, "the pronoun is not in the text", f"{pronoun!r}")
            continue
        before, after = text[:begin], text[begin + len(pronoun) :]
        pair = {"marked": f"{before}*{pronoun}*{after}", "replaced": f"{before}{noun}{after}"}
        yield TableRow(number, {**values, **pair})


def _place(text: str, span: str, index: int) -> int | None:
    """Start of the occurrence of ``span`` nearest to word number ``index``, or None."""
    words = [match.start() for match in re.finditer(r"\S+", text)]
    wanted = words[min(max(index, 0), len(words) - 1)] if words else 0
    places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(span)}(?!\w)", text, re.IGNORECASE)]
    return min(places, key=lambda place: abs(place - wanted), default=None)


def _multirc(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[TextExample]:
    return collect(rows, problems, lambda row: _judgements(row.values, labelled))


def _judgements(values: dict[str, Any], labelled: bool) -> list[TextExample]:
    """A row of the archive is a passage with all its questions, a row of the hub is one answer."""
    if "paragraph" in values:
        idx = values["idx"]
        answer = {"idx": idx["answer"], "text": values["answer"], "label": values["label"]}
        question = {"idx": idx["question"], "question": values["question"], "answers": [answer]}
        values = {"idx": idx["paragraph"], "passage": {"text": values["paragraph"], "questions": [question]}}
    passage, read_label, examples = values["passage"], one_of(BINARY, BINARY), []
    for question in passage["questions"]:
        group = f"{values['idx']}-{question['idx']}"
        for answer in question["answers"]:
            label = read_label(answer.get("label"))
            if labelled and label is None:
                raise ValueError("no label")
            pair = f"{question['question']} {answer['text']}".strip()
            examples.append(TextExample(f"{group}-{answer['idx']}", passage["text"].strip(), pair, label, group))
    return examples


def _copa(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[Choice]:
    examples: list[Choice] = []
    for index, (number, values) in enumerate(rows):
        if index == 0:
            require(values, [("premise",), ("choice1",), ("choice2",), ("question",)], problems)
        premise, *options = (as_text(values.get(name)) for name in ("premise", "choice1", "choice2"))
        question = COPA_QUESTIONS.get(str(values.get("question")))
        label = values.get("label")
        if question is None:
            problems.skip(number, "question is neither cause nor effect", shorten(values.get("question")))
        elif not all((premise, *options)):
            problems.skip(number, "empty text")
        elif label not in (0, 1) and (labelled or not hidden(label)):
            problems.skip(number, "label is neither 0 nor 1", shorten(label))
        else:
            identity = str(values.get("idx", len(examples)))
            place = None if label is None or hidden(label) else int(label)
            examples.append(Choice(identity, premise, question, tuple(options), place))
    return examples


def _record(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[Choice]:
    return collect(rows, problems, lambda row: _queries(row.values, labelled))


def _queries(values: dict[str, Any], labelled: bool) -> list[Choice]:
    """A query may have several correct entities, "Trump" and "Donald Trump"; ``label`` is the first of them.

    A row of the archive is a passage with all its queries, a row of the hub is one query. There, the end of an entity
    is the place after its last character.
    """
    if "entity_spans" in values:
        spans = values["entity_spans"]
        if isinstance(
            spans, dict
        ):  # a list of records, or a record of lists: this depends on the version of `datasets`
            spans = [{"start": start, "end": end} for start, end in zip(spans["start"], spans["end"], strict=True)]
        entities = [{"start": span["start"], "end": span["end"] - 1} for span in spans]
        named = [{"text": name} for name in values["answers"]]
        query = {"idx": values["idx"]["query"], "query": values["query"], "answers": named}
        values = {"passage": {"text": values["passage"], "entities": entities}, "qas": [query]}
    text, examples = values["passage"]["text"], []
    spans = sorted((entity["start"], entity["end"]) for entity in values["passage"]["entities"])
    names = tuple(dict.fromkeys(text[begin : end + 1] for begin, end in spans))
    passage = " ".join(text.replace("@highlight", " ").split())
    for query in values["qas"]:
        answers = tuple(dict.fromkeys(answer["text"] for answer in query.get("answers") or ()))
        right = [i for i, name in enumerate(names) if name in answers]
        if BLANK not in query["query"]:
            raise ValueError(f"a query without {BLANK}", shorten(query["query"]))
        if labelled and not right:
            raise ValueError("no answer among the entities", shorten(answers))
        options = tuple(query["query"].replace(BLANK, name) for name in names)
        label = right[0] if right else None
        examples.append(Choice(str(query["idx"]), passage, "", options, label, names, answers or None))
    return examples


def one_right(example: Choice) -> Choice:
    """Remove correct options other than the label, because training would treat them as wrong."""
    if example.names is None or example.answers is None or example.label is None:
        return example
    kept = [i for i, name in enumerate(example.names) if i == example.label or name not in example.answers]
    return Choice(
        example.id,
        example.text,
        example.pair,
        tuple(example.options[i] for i in kept),
        kept.index(example.label),
        tuple(example.names[i] for i in kept),
        example.answers,
    )


def _text(columns: Columns, labels: tuple[str, ...], numbers: tuple[str, ...] = ()) -> ReadSplit[TextExample]:
    def read(rows: Iterator[TableRow], problems: Problems, labelled: bool) -> list[TextExample]:
        return texts(rows, problems, columns, one_of(labels, numbers or labels), labelled)

    return read


def _reader(read: ReadSplit[E], folder: str, hub: str) -> Callable[[Path], dict[str, list[E]]]:
    return lambda path: read_splits(path, read, names=(folder,), hub=f"aps/super_glue:{hub}")


def _read_record(folder: Path) -> dict[str, list[Choice]]:
    splits = _reader(_record, "ReCoRD", "record")(folder)
    return {
        split: [one_right(e) for e in examples] if split == "train" else examples for split, examples in splits.items()
    }


def write_labels(path: Path, examples: Sequence[TextExample | Choice], labels: Sequence[str | int]) -> None:
    """Write one {"idx": ..., "label": ...} per line."""
    pairs = zip(examples, labels, strict=True)
    _write_lines(path, ({"idx": int(example.id), "label": label} for example, label in pairs))


def _write_record(path: Path, examples: Sequence[Choice], predictions: Sequence[int]) -> None:
    write_labels(path, examples, [(e.names or e.options)[p] for e, p in zip(examples, predictions, strict=True)])


def _write_wsc(path: Path, examples: Sequence[TextExample], predictions: Sequence[str]) -> None:
    write_labels(path, examples, [prediction.capitalize() for prediction in predictions])


def _write_multirc(path: Path, examples: Sequence[TextExample], predictions: Sequence[str]) -> None:
    passages: dict[int, dict[int, list[dict[str, int]]]] = {}
    for example, prediction in zip(examples, predictions, strict=True):
        passage, question, answer = map(int, example.id.split("-"))
        answers = passages.setdefault(passage, {}).setdefault(question, [])
        answers.append({"idx": answer, "label": int(prediction)})
    _write_lines(
        path,
        (
            {"idx": passage, "passage": {"questions": [{"idx": q, "answers": a} for q, a in questions.items()]}}
            for passage, questions in passages.items()
        ),
    )


def _write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


_entailment = _text(_NLI, ENTAILMENT)

SUPERGLUE = (
    Task(
        name="boolq",
        kind="single-label",
        read=_reader(_text(Columns(("passage",), ("question",)), BOOLEAN), "BoolQ", "boolq"),
        score=metrics.accuracy,
        metric="accuracy",
        labels=BOOLEAN,
        write=write_labels,
        files={"test": "BoolQ.jsonl"},
    ),
    Task(
        name="cb",
        kind="single-label",
        read=_reader(_text(_NLI, CB_LABELS), "CB", "cb"),
        score=metrics.accuracy_and_macro_f1,
        metric="average",
        labels=CB_LABELS,
        write=write_labels,
        files={"test": "CB.jsonl"},
    ),
    Task(
        name="copa",
        kind="choice",
        read=_reader(_copa, "COPA", "copa"),
        score=metrics.accuracy,
        metric="accuracy",
        write=write_labels,
        files={"test": "COPA.jsonl"},
    ),
    Task(
        name="multirc",
        kind="single-label",
        read=_reader(_multirc, "MultiRC", "multirc"),
        score=metrics.multirc,
        metric="average",
        labels=BINARY,
        write=_write_multirc,
        files={"test": "MultiRC.jsonl"},
    ),
    Task(
        name="record",
        kind="choice",
        read=_read_record,
        score=metrics.record,
        metric="average",
        write=_write_record,
        files={"test": "ReCoRD.jsonl"},
    ),
    Task(
        name="superglue-rte",
        kind="single-label",
        read=_reader(_entailment, "RTE", "rte"),
        score=metrics.accuracy,
        metric="accuracy",
        labels=ENTAILMENT,
        write=write_labels,
        files={"test": "RTE.jsonl"},
    ),
    Task(
        name="wic",
        kind="single-label",
        read=_reader(_wic, "WiC", "wic"),
        score=metrics.accuracy,
        metric="accuracy",
        labels=BOOLEAN,
        write=write_labels,
        files={"test": "WiC.jsonl"},
    ),
    Task(
        name="wsc",
        kind="single-label",
        read=_reader(_wsc, "WSC", "wsc.fixed"),
        score=metrics.accuracy,
        metric="accuracy",
        labels=BOOLEAN,
        write=_write_wsc,
        files={"test": "WSC.jsonl"},
    ),
)
