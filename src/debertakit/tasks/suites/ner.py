"""Named entities: CoNLL-2003 and WNUT-17."""

from collections.abc import Sequence
from pathlib import Path

from debertakit.data.conll import CONLL_SUFFIXES, read_conll, write
from debertakit.data.examples import Tagged
from debertakit.data.folders import SPLITS, Patterns, find
from debertakit.tasks import metrics
from debertakit.tasks.task import Task

_PATTERNS: Patterns = {
    "train": ("eng.train", *SPLITS["train"]),
    "dev": ("eng.testa", *SPLITS["dev"]),
    "test": ("eng.testb", *SPLITS["test"]),
}


def read_folder(folder: Path) -> dict[str, list[Tagged]]:
    files = find(folder, ("conll2003", "conll", "wnut17", "ner"), _PATTERNS, CONLL_SUFFIXES)
    return {split: read_conll(path, labelled=split != "test") for split, path in files.items()}


def _task(name: str) -> Task[Tagged, Sequence[str]]:
    return Task(
        name=name,
        kind="tagging",
        read=read_folder,
        score=metrics.entities,
        metric="f1",
        write=write,
        files={"test": f"{name}.txt"},
    )


NER = (_task("conll2003"), _task("wnut17"))
