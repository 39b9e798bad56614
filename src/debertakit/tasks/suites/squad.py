"""SQuAD 1.1 and 2.0."""

from collections.abc import Mapping

from debertakit.data.examples import Question
from debertakit.data.folders import SPLITS, Patterns
from debertakit.data.squad import read_folder, write
from debertakit.tasks import metrics
from debertakit.tasks.task import Task


def _patterns(version: str) -> Patterns:
    """File patterns by split. A folder may contain both versions."""
    return {split: (f"{split}-v{version}.json", *SPLITS[split], *more) for split, more in _MORE.items()}


_MORE: Mapping[str, tuple[str, ...]] = {"train": (), "dev": (), "test": ("*heldout*",)}


def _task(name: str, version: str, impossible: bool) -> Task[Question, str]:
    hub = "rajpurkar/squad_v2" if impossible else "rajpurkar/squad"
    return Task(
        name=name,
        kind="qa",
        read=lambda folder: read_folder(
            folder, names=("squad", name), patterns=_patterns(version), hub=hub, impossible=impossible
        ),
        score=metrics.squad,
        metric="f1",
        write=write,
        files={"test": "predictions.json"},
    )


SQUAD = (_task("squad", "1.1", False), _task("squad2", "2.0", True))
