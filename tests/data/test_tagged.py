import csv

import pytest

from debertakit.data.examples import Tagged
from debertakit.data.guessing import resolve_columns
from debertakit.tasks.own import own_task
from tests.material import jsonl

ROWS = [
    {"tokens": ["The", "dog", "barks"], "tags": ["DET", "NOUN", "VERB"]},
    {"tokens": ["Dogs", "bark"], "tags": ["NOUN", "VERB"]},
]
READ = [Tagged("0", ("The", "dog", "barks"), ("DET", "NOUN", "VERB")), Tagged("1", ("Dogs", "bark"), ("NOUN", "VERB"))]


def test_lists_of_words_and_tags(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    assert resolve_columns(path, {}) == {"text": "tokens", "label": "tags"}
    task = own_task(path)
    assert task.read(tmp_path)["train"] == READ
    assert (task.kind, task.metric, task.labels) == ("tagging", "accuracy", ("DET", "NOUN", "VERB"))
    assert task.score(READ, [("DET", "NOUN", "NOUN"), ("NOUN", "VERB")]) == {"accuracy": 80.0, "exact": 50.0}


def test_tags_of_entities_are_still_scored_as_entities(tmp_path):
    rows = [{"tokens": ["Ann", "Lee", "sings"], "ner_tags": ["I-PER", "I-PER", "O"], "pos_tags": ["N", "N", "V"]}]
    task = own_task(jsonl(tmp_path / "a.jsonl", rows))
    assert task.read(tmp_path)["train"][0].tags == ("B-PER", "I-PER", "O")
    assert (task.kind, task.metric) == ("tagging", "f1")
    parts = own_task(jsonl(tmp_path / "b.jsonl", rows), text="tokens", label="pos_tags")
    assert parts.labels == ("N", "V")


def test_a_tag_in_no_scheme_among_tags_of_entities(tmp_path):
    rows = [{"tokens": ["Ann", "Lee"], "tags": ["B-PER", "E-PER"]}] * 20 + [
        {"tokens": ["Rome", "!"], "tags": ["MISC", "O"]}
    ]
    task = own_task(jsonl(tmp_path / "a.jsonl", rows))
    assert task.labels == ("O", "B-PER", "I-PER")
    assert len(task.read(tmp_path)["train"]) == 20


def test_words_and_tags_with_spaces_between_them(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        rows = [(" ".join(row["tokens"]), " ".join(row["tags"])) for row in ROWS]
        csv.writer(file).writerows([("words", "pos"), *rows, ("A cat and a dog", "DET NOUN CCONJ DET NOUN")])
    task = own_task(path, text="words", label="pos")
    assert task.read(tmp_path)["train"][:2] == READ
    same = own_task(None, path, text="words", label="pos", kind="tagging", labels=task.labels)
    assert same.read(tmp_path)["dev"][:2] == READ


def test_a_dev_set_with_other_tags_and_a_test_set_without_tags(tmp_path):
    train, dev = jsonl(tmp_path / "train.jsonl", ROWS), jsonl(tmp_path / "dev.jsonl", ROWS * 20)
    with dev.open("a") as file:
        file.write('{"tokens": ["x"], "tags": ["X"]}\n')
    test = jsonl(tmp_path / "test.jsonl", [{"tokens": ["The", "dog"]}])
    splits = own_task(train, dev, test).read(tmp_path)
    assert len(splits["dev"]) == 40
    assert splits["test"] == [Tagged("0", ("The", "dog"))]


def test_parquet_with_numbered_tags(tmp_path):
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["O", "B-PER"])
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(names)})
    data = datasets.Dataset.from_list([{"tokens": ["Ann", "sings"], "ner_tags": [1, 0]}], features)
    data.to_parquet(tmp_path / "a.parquet")
    assert own_task(tmp_path / "a.parquet").read(tmp_path)["train"] == [Tagged("0", ("Ann", "sings"), ("B-PER", "O"))]
    numbers = jsonl(tmp_path / "a.jsonl", [{"tokens": ["Ann"], "tags": [1]}])
    with pytest.raises(ValueError, match="a tag is a number without a name; write the tag itself"):
        own_task(numbers)


def test_rows_that_cannot_be_used(tmp_path):
    short = {"tokens": ["The", "dog"], "tags": ["DET"]}
    with pytest.raises(ValueError, match=r"line 3: different numbers of words and tags \(2 and 1\); 1 of 3 rows"):
        own_task(jsonl(tmp_path / "a.jsonl", [*ROWS, short]))


def test_other_lists_and_texts_are_no_tags(tmp_path):
    several = jsonl(tmp_path / "a.jsonl", [{"text": f"film {i}", "label": ["a", "b"]} for i in range(4)])
    assert own_task(several).kind == "multi-label"
    names = jsonl(tmp_path / "b.jsonl", [{"text": "New York", "label": "big city"}, {"text": "Rome", "label": "city"}])
    assert own_task(names).kind == "single-label"
