"""Make an ensemble of fine-tuned models (``deberta ensemble``); ensembles.py defines what an ensemble is.

The dev set is split into two halves. On the first half, members are selected greedily: start with the best model, and
add the model that raises the score most, until no model raises it. On the second half, the ensemble is compared with
the best single model (also chosen on the first half) by the tests of significance.py. The second half had no influence
on the selection, so the gain that is reported is not optimistic.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from debertakit.data.examples import Example, Question, TextExample, gold
from debertakit.ensembles import COMBINE, ENSEMBLE_FILE, Combine, combined
from debertakit.files import replacing, require_new, write_json, write_text
from debertakit.finetuning import rendering
from debertakit.finetuning.evaluation import (
    Evaluation,
    check_packages,
    compare_values,
    finished_runs,
    load_evaluator,
    open_file,
    read_benchmark,
    write_predictions,
)
from debertakit.finetuning.modes import EnsembleOptions
from debertakit.finetuning.significance import Comparison
from debertakit.loading import SavedModel, describe
from debertakit.tasks import suites
from debertakit.tasks.batches import Collator
from debertakit.tasks.decisions import Prediction, decide, row_logits
from debertakit.tasks.features import ExampleEncoder, TokenRow
from debertakit.tasks.metrics import find_best_threshold
from debertakit.tasks.task import Task
from debertakit.text.progress import ProgressBar


@dataclass(frozen=True)
class EnsembleResult:
    folder: Path
    metric: str
    members: list[Path]
    """Selected models, in the order of selection."""
    single: Path
    """Best single model on the selection half."""
    scores: dict[str, float]
    """Second half: score of every model, of all models together ("all") and of the ensemble ("ensemble")."""
    comparison: Comparison | None
    """Ensemble against the best single model on the second half. None if the ensemble is that model."""
    examples: int

    def __str__(self) -> str:
        rows = [f"{name}: {self.metric} {value:.2f}" for name, value in self.scores.items()]
        lines = [*rows, f"scores on {self.examples:,} dev examples that were not used to select"]
        if self.comparison is None:
            lines.append(f"no model raised the score of {self.single}; the ensemble has one member")
        else:
            lines.append(f"ensemble against {self.single}: {self.comparison.verdict('the ensemble', str(self.single))}")
            lines.append(str(self.comparison))
        return "\n".join([*lines, f"{len(self.members)} members in {self.folder}"])


@dataclass(frozen=True)
class Board:
    """The dev set with the logits of every model on every row."""

    task: Task
    examples: list[Example]
    rows: list[TokenRow]
    labels: tuple[str, ...]
    logits: list[list[np.ndarray]]
    """One list per model."""
    how: Combine
    answers_always: bool
    """Question answering: the models never answer "no answer"."""

    def predict(self, models: Sequence[int], threshold: float | None = None) -> list[Prediction]:
        kind, count = self.task.kind, len(self.rows)
        stacked = (torch.from_numpy(np.stack([self.logits[m][row] for m in models])) for row in range(count))
        found = [combined(kind, logits, self.how).numpy() for logits in stacked]
        limit = float("inf") if self.answers_always else threshold or 0.0
        return decide(kind, self.examples, self.rows, found, self.labels, limit)

    def threshold(self, models: Sequence[int], chosen: Sequence[int]) -> float | None:
        """Best threshold for "no answer" on some examples. None for other tasks, and if the models always answer."""
        if self.task.kind != "qa" or self.answers_always:
            return None
        predictions = self.predict(models)
        questions = [self.examples[i] for i in chosen]
        answers = [predictions[i].answers[0].text if predictions[i].answers else "" for i in chosen]
        scores = [predictions[i].no_answer for i in chosen]
        return find_best_threshold([q for q in questions if isinstance(q, Question)], answers, scores)[1]

    def score(self, predictions: Sequence[Prediction], chosen: Sequence[int]) -> float:
        values = [predictions[i].value for i in chosen]
        return self.task.score([self.examples[i] for i in chosen], values)[self.task.metric]


def ensemble(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    task: str | Task | None = None,
    data: str | Path | None = None,
    file: str | Path | None = None,
    combine: Combine = EnsembleOptions.combine,
    all_models: bool = EnsembleOptions.all_models,
    resamples: int = EnsembleOptions.resamples,
    **columns: Any,
) -> EnsembleResult:
    """Select members among ``runs`` (model folders, or folders with a model per seed) and write the ensemble.

    The dev set is that of a benchmark (``task`` and ``data``) or your own ``file``. ``all_models``: do not select.
    """
    if combine not in COMBINE:
        raise ValueError(f"unknown combination {combine!r}; choose from {', '.join(COMBINE)}")
    if (task is None) == (file is None):
        raise ValueError("pass either --task and --data, or --file FILE")
    require_new(Path(out))
    folders = list(dict.fromkeys(folder for run in runs for folder in finished_runs(Path(run))))
    if len(folders) < 2:
        raise ValueError(f"an ensemble needs at least two models; got {len(folders)}")
    saved = [describe(folder) for folder in folders]
    check_alike(saved)
    if file is not None:
        chosen, examples = open_file(folders[0], Path(file), columns)
    else:
        check_packages(task)
        chosen = suites.task(task) if isinstance(task, str) else task  # type: ignore[assignment]
        examples = read_benchmark(chosen, data).get("dev", [])
    if len(examples) < 4 or any(gold(example) is None for example in examples):
        raise ValueError(f"{file or data}: selection needs a dev set of at least four examples with labels")
    board = make_board(chosen, examples, folders, saved, combine)
    return build(board, folders, saved[0], Path(out), all_models, resamples)


def check_alike(saved: Sequence[SavedModel]) -> None:
    """Raise if models do not have the same kind of task, labels and tokens."""
    first, vocabulary = saved[0], saved[0].tokenizer().get_vocab()
    for other in saved[1:]:
        for name, a, b in (("kind", first.kind, other.kind), ("labels", first.labels, other.labels)):
            if a != b:
                raise ValueError(f"{other} and {first} differ in {name}: {b} and {a}")
        if other.tokenizer().get_vocab() != vocabulary:
            raise ValueError(f"{other} and {first} have different tokenizers; members must read the same tokens")


def make_board(
    task: Task, examples: list[Example], folders: Sequence[Path], saved: Sequence[SavedModel], how: Combine
) -> Board:
    encoder: ExampleEncoder | None = None
    rows: list[TokenRow] = []
    logits = []
    for number, folder in enumerate(folders, 1):
        evaluator = load_evaluator(folder, task)
        if encoder is None:
            length = max(each.settings.max_length or evaluator.encoder.max_length for each in saved)
            encoder = replace(evaluator.encoder, max_length=length)
            rows = encoder.encode(examples).rows
        with ProgressBar(f"model {number} of {len(folders)}", "rows", len(rows)) as progress:
            collate = Collator(encoder.tokenizer, task.kind)
            logits.append(row_logits(evaluator.model, rows, task.kind, collate, _shown(progress))[0])
    assert encoder is not None
    always = all(each.settings.no_answer_threshold is None for each in saved)
    return Board(task, examples, rows, encoder.labels, logits, how, always)


def _shown(progress: ProgressBar) -> Callable[[int], None]:
    return lambda done: progress.show(done, done)


def halves(examples: Sequence[Example]) -> tuple[list[int], list[int]]:
    """Split the dev set in two, at random but always in the same way. Groups (MultiRC's questions) stay together."""
    groups: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        group = example.group if isinstance(example, TextExample) else None
        groups.setdefault(str(index) if group is None else f"group {group}", []).append(index)
    parts = list(groups.values())
    order = np.random.default_rng(0).permutation(len(parts)).tolist()
    middle = len(parts) // 2
    first, second = ([i for part in order[a:b] for i in parts[part]] for a, b in ((0, middle), (middle, None)))
    return sorted(first), sorted(second)


def greedy(board: Board, chosen: Sequence[int]) -> list[int]:
    """Models in the order of selection."""
    count = len(board.logits)
    single = [board.score(board.predict([model]), chosen) for model in range(count)]
    selected = [int(np.argmax(single))]
    best = single[selected[0]]
    while len(selected) < count:
        left = [model for model in range(count) if model not in selected]
        scores = [board.score(board.predict([*selected, model]), chosen) for model in left]
        if max(scores) <= best:
            break
        best = max(scores)
        selected.append(left[int(np.argmax(scores))])
    return selected


def build(
    board: Board, folders: Sequence[Path], first: SavedModel, out: Path, all_models: bool, resamples: int
) -> EnsembleResult:
    """Select, score on the other half, and write the folder."""
    selection, scored = halves(board.examples)
    every = list(range(len(folders)))
    members = every if all_models else greedy(board, selection)
    single = max(every, key=lambda model: board.score(board.predict([model]), selection))

    def values(models: Sequence[int]) -> list[Prediction]:
        return board.predict(models, board.threshold(models, selection))

    scores = {str(folder): board.score(values([model]), scored) for model, folder in enumerate(folders)}
    scores |= {"all": board.score(values(every), scored), "ensemble": board.score(values(members), scored)}
    comparison = None
    if members != [single]:
        sides = [[[found[i].value for i in scored]] for found in (values(members), values([single]))]
        comparison = compare_values(board.task, [board.examples[i] for i in scored], sides[0], sides[1], resamples)
    result = EnsembleResult(
        out, board.task.metric, [folders[m] for m in members], folders[single], scores, comparison, len(scored)
    )
    write(board, values(members), result, first, board.threshold(members, selection))
    return result


def write(
    board: Board, predictions: list[Prediction], result: EnsembleResult, first: SavedModel, threshold: float | None
) -> None:
    task, out = board.task, result.folder
    dev = task.score(board.examples, [prediction.value for prediction in predictions])
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as part:
        part.mkdir()
        names = [f"member-{number}" for number in range(len(result.members))]
        for name, folder in zip(names, result.members, strict=True):
            shutil.copytree(folder, part / name)
        first.config.save_pretrained(part)
        first.tokenizer().save_pretrained(part)
        length = max((describe(folder).settings.max_length or 0 for folder in result.members), default=0)
        kept = threshold if task.kind == "qa" else first.settings.no_answer_threshold
        replace(first.settings, max_length=length or None, no_answer_threshold=kept).save(part)
        record = {"task": task.name, "kind": task.kind, "metric": task.metric, "labels": list(board.labels)}
        write_json(part / "run.json", {**record, "combine": board.how, "members": list(map(str, result.members))})
        comparison = None if result.comparison is None else asdict(result.comparison)
        write_json(part / "metrics.json", {"dev": dev, "second half": result.scores, "comparison": comparison})
        write_predictions(part / "predictions-dev.jsonl", Evaluation(board.examples, predictions, dev, float("nan")))
        write_text(part / "report.md", rendering.as_markdown(f"{task.name}: ensemble", [], _sections(result, dev)))
        write_json(part / ENSEMBLE_FILE, {"combine": board.how, "members": names})


def _sections(result: EnsembleResult, dev: dict[str, float]) -> list[rendering.Section]:
    rows = [(name, value) for name, value in result.scores.items()]
    half = f"{result.examples:,} dev examples that were not used to select."
    if result.comparison is not None:
        half += " Ensemble against the best single model: " + str(result.comparison).replace("\n", "; ") + "."
    whole = "The whole dev set, half of which selected the members: optimistic."
    return [
        rendering.Section("Second half of the dev set", ("", result.metric), rows, half),
        rendering.Section("Members", ("", "model"), [(i, str(folder)) for i, folder in enumerate(result.members)]),
        rendering.Section("Dev set", ("metric", "value"), list(dev.items()), whole),
    ]
