"""Named entities: CoNLL-2003 and WNUT-17."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from debertakit.data.conll import CONLL_SUFFIXES, read_conll, tagged, write
from debertakit.data.examples import Tagged
from debertakit.data.folders import SPLITS, Patterns, find, hub_splits, is_hub
from debertakit.data.problems import Problems
from debertakit.data.tables import TableRow
from debertakit.data.tagged import sentences
from debertakit.tasks import metrics
from debertakit.tasks.task import Task

_PATTERNS: Patterns = {
    "train": ("eng.train", *SPLITS["train"]),
    "dev": ("eng.testa", *SPLITS["dev"]),
    "test": ("eng.testb", *SPLITS["test"]),
}


HUB = {"conll2003": "lhoestq/conll2003", "wnut17": "leondz/wnut_17"}
WORDS, TAGS = "tokens", "ner_tags"


def read(folder: Path, name: str) -> dict[str, list[Tagged]]:
    return read_hub(folder, HUB[name]) if is_hub(folder) else read_folder(folder)


def read_hub(folder: Path, default: str) -> dict[str, list[Tagged]]:
    """Rows of the hub are lists of words and of numbers, whose names are in the dataset's features."""
    found = {}
    for split, data in hub_splits(folder, default).items():
        problems, labelled = Problems(folder, "row"), split != "test"
        names = data.features[TAGS].feature.names if TAGS in data.features else ()
        rows = (TableRow(number, row) for number, row in enumerate(data, 1))
        found[split] = tagged(folder, sentences(rows, problems, WORDS, TAGS, names, labelled), problems)
    return found


def read_folder(folder: Path) -> dict[str, list[Tagged]]:
    files = find(folder, ("conll2003", "conll", "wnut17", "ner"), _PATTERNS, CONLL_SUFFIXES)
    return {split: read_conll(path, labelled=split != "test") for split, path in files.items()}


def _task(name: str) -> Task[Tagged, Sequence[str]]:
    return Task(
        name=name,
        kind="tagging",
        read=partial(read, name=name),
        score=metrics.entities,
        metric="f1",
        write=write,
        files={"test": f"{name}.txt"},
    )


NER = (_task("conll2003"), _task("wnut17"))
