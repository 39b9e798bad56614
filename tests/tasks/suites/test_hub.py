"""Benchmarks from the hub. The hub cannot be reached in a test, so small datasets have the columns of its own ones."""

from pathlib import Path

import pytest

from debertakit.data.examples import Choice, Tagged, TextExample
from debertakit.tasks.suites import task
from tests.material import jsonl

datasets = pytest.importorskip("datasets")
TEXT, NUMBER = datasets.Value("string"), datasets.Value("int32")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Save rows as the splits of a dataset, and return its name."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def save(train, validation, test, features=None):
        folder = tmp_path / "copy"
        folder.mkdir()
        for name, rows in (("train", train), ("validation", validation), ("test", test)):
            datasets.Dataset.from_list(rows, features).to_parquet(folder / f"{name}.parquet")
        return Path(f"hf:{folder}")

    return save


def test_race(hub):
    row = {"article": "Ann sings.", "question": "Who?", "options": ["Bob", "Ann", "Eve", "Dan"], "answer": "B"}
    high, middle = {"example_id": "high12.txt", **row}, {"example_id": "middle3.txt", **row, "answer": "D"}
    splits = task("race").read(hub([high, {**high, "question": "Who sings?"}], [middle], [middle]))
    options = ("Bob", "Ann", "Eve", "Dan")
    assert splits["train"] == [
        Choice("high12-1-0", "Ann sings.", "Who?", options, 1),
        Choice("high12-2-0", "Ann sings.", "Who sings?", options, 1),
    ]
    assert splits["dev"] == [Choice("middle3-1-0", "Ann sings.", "Who?", options, 3)]
    assert task("race").score(splits["dev"], [3]) == {"accuracy": 100, "middle": 100}


def test_swag(hub):
    row = {"video-id": "v1", "sent1": "Ann opens the door.", "sent2": "She", "gold-source": "gold"}
    row |= {f"ending{i}": text for i, text in enumerate(("sings.", "flies.", "eats it.", "is a door."))}
    splits = task("swag").read(hub([{**row, "label": 2}], [{**row, "label": 0}], [{**row, "label": -1}]))
    options = ("sings.", "flies.", "eats it.", "is a door.")
    assert splits["train"] == [Choice("0", "Ann opens the door.", "She", options, 2)]
    assert (splits["dev"][0].label, splits["test"][0].label) == (0, None)


@pytest.mark.parametrize("name", ["conll2003", "wnut17"])
def test_entities(hub, name):
    names = datasets.ClassLabel(names=["O", "B-PER", "I-PER", "B-LOC"])
    features = datasets.Features({"id": TEXT, "tokens": datasets.List(TEXT), "ner_tags": datasets.List(names)})
    first = {"id": "0", "tokens": ["Ann", "Lee", "sings"], "ner_tags": [1, 2, 0]}
    second = {"id": "1", "tokens": ["Rome"], "ner_tags": [3]}
    splits = task(name).read(hub([first, second], [second], [second], features))
    assert splits["train"] == [
        Tagged("0", ("Ann", "Lee", "sings"), ("B-PER", "I-PER", "O")),
        Tagged("1", ("Rome",), ("B-LOC",)),
    ]
    assert splits["dev"] == splits["test"] == [Tagged("0", ("Rome",), ("B-LOC",))]


def test_multirc_has_the_same_examples_as_its_archive(hub, tmp_path):
    def answer(question, number, text, label):
        idx = {"paragraph": 7, "question": question, "answer": number}
        return {"paragraph": "P.", "question": f"Q{question}?", "answer": text, "idx": idx, "label": label}

    answers = [answer(0, 0, "a", 1), answer(0, 1, "b", 0), answer(1, 2, "c", 1)]
    splits = task("multirc").read(hub(answers, answers, [answer(0, 0, "a", -1)]))
    assert splits["train"][1] == TextExample("7-0-1", "P.", "Q0? b", "0", "7-0")
    assert splits["test"] == [TextExample("7-0-0", "P.", "Q0? a", None, "7-0")]
    questions = [
        {"idx": 0, "question": "Q0?", "answers": [{"idx": i, "text": "ab"[i], "label": 1 - i} for i in (0, 1)]},
        {"idx": 1, "question": "Q1?", "answers": [{"idx": 2, "text": "c", "label": 1}]},
    ]
    archive = tmp_path / "MultiRC"
    jsonl(archive / "train.jsonl", [{"idx": 7, "passage": {"text": "P.", "questions": questions}}])
    assert task("multirc").read(archive)["train"] == splits["train"]


@pytest.mark.parametrize("as_lists", [False, True])
def test_record_has_the_same_examples_as_its_archive(hub, tmp_path, as_lists):
    text = "Ann Lee met Bob.\n@highlight\nBob left Ann."
    places = [(0, 6, "Ann Lee"), (12, 14, "Bob"), (28, 30, "Bob"), (37, 39, "Ann")]
    spans = [{"text": name, "start": start, "end": end + 1} for start, end, name in places]
    if as_lists:
        spans = {name: [span[name] for span in spans] for name in ("text", "start", "end")}
    query = "@placeholder stayed."
    row = {"passage": text, "query": query, "entities": ["Ann", "Ann Lee", "Bob"], "entity_spans": spans}
    row |= {"answers": ["Ann", "Ann Lee"], "idx": {"passage": 3, "query": 9}}
    splits = task("record").read(hub([row], [row], [row]))
    archive = tmp_path / "ReCoRD"
    entities = [{"start": start, "end": end} for start, end, _ in places]
    qas = [{"idx": 9, "query": query, "answers": [{"text": "Ann"}, {"text": "Ann Lee"}]}]
    rows = [{"idx": 3, "passage": {"text": text, "entities": entities}, "qas": qas}]
    jsonl(archive / "train.jsonl", rows)
    jsonl(archive / "val.jsonl", rows)
    read = task("record").read(archive)
    assert (splits["train"], splits["dev"]) == (read["train"], read["dev"])
    assert splits["dev"][0].names == ("Ann Lee", "Bob", "Ann")
    assert splits["dev"][0].answers == ("Ann", "Ann Lee")


def test_a_repository_with_a_script_is_read_from_its_parquet_version(hub, monkeypatch):
    row = {"sentence1": "A", "sentence2": "B", "label": 0, "idx": 3}
    name, load, asked = hub([row], [row], [row]), datasets.load_dataset, []

    def load_dataset(name, config, revision=None):
        asked.append(revision)
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found rte.py")
        return load(name, config)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert task("rte").read(name)["train"] == [TextExample("3", "A", "B", "entailment")]
    assert asked == [None, "refs/convert/parquet"]
