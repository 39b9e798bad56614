"""Evaluate a model on examples; write, read and compare prediction files.

predictions-SPLIT.jsonl has one line per example: the full example, the prediction and its probabilities. It contains
everything needed to compare two systems.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel

from debertakit.data.examples import EXAMPLE_CLASSES, Example, Kind, gold
from debertakit.data.files import kind_of
from debertakit.data.guessing import column_names
from debertakit.data.pairs import Pair
from debertakit.files import replacing, require_new, write_text
from debertakit.finetuning.modes import Benchmark, Comparing
from debertakit.finetuning.significance import Comparison, compare, mcnemar
from debertakit.installation import install
from debertakit.loading import SavedModel, describe, longest_input
from debertakit.precision import best_device
from debertakit.tasks import suites
from debertakit.tasks.batches import Collator
from debertakit.tasks.decisions import Prediction, decide, row_logits
from debertakit.tasks.features import ExampleEncoder, Long, TokenRow
from debertakit.tasks.own import own_task, scoring
from debertakit.tasks.task import Task
from debertakit.tasks.text_scores import resampled_score
from debertakit.text.progress import ProgressBar

RunKind = Kind | Literal["seq2seq"]
"""Kind of a run in run.json; seq2seq: translation or summarisation."""
CLASSES: dict[str, type] = {"seq2seq": Pair, **{str(kind): cls for kind, cls in EXAMPLE_CLASSES.items()}}
EXTRA_PACKAGES = {"cmrc2018": ("nltk",)}


@dataclass(frozen=True)
class Evaluation:
    examples: Sequence[Example]
    predictions: list[Prediction]
    scores: dict[str, float]
    """Empty if the examples have no labels."""
    loss: float

    @property
    def values(self) -> list[Any]:
        return [prediction.value for prediction in self.predictions]

    def __str__(self) -> str:
        if not self.scores:
            return f"{len(self.predictions)} predictions, no labels"
        return ", ".join(f"{name} {value:.2f}" for name, value in self.scores.items())


@dataclass
class Evaluator:
    """A model with everything needed to run it on examples of a task. It computes in fp32, like the predictors."""

    model: PreTrainedModel
    task: Task
    encoder: ExampleEncoder
    threshold: float = 0.0
    """Threshold for "no answer" (decisions.decide)."""

    def __call__(self, examples: Sequence[Example], rows: list[TokenRow] | None = None) -> Evaluation:
        """Predict and score examples. ``rows``: the encoded examples, if available."""
        kind = self.task.kind
        rows = self.encoder.encode(examples).rows if rows is None else rows
        with ProgressBar("evaluating", "rows", len(rows)) as progress:
            collate = Collator(self.encoder.tokenizer, kind)
            logits, loss = row_logits(self.model, rows, kind, collate, lambda done: progress.show(done, done))
        predictions = decide(kind, examples, rows, logits, self.encoder.labels, self.threshold)
        evaluation = Evaluation(examples, predictions, {}, loss)
        if any(gold(example) is None for example in examples):
            return evaluation
        return Evaluation(examples, predictions, self.task.score(examples, evaluation.values), loss)


def load_evaluator(model: str | Path, task: Task, long: Long | None = None) -> Evaluator:
    """Load a fine-tuned model for examples of ``task``. ``long``: how to read long texts (tasks/features.py)."""
    saved = describe(model)
    labels = labels_for(saved, task)
    network, tokenizer = saved.network(), saved.tokenizer()
    length = saved.settings.max_length or longest_input(network, tokenizer)[0]
    threshold = saved.settings.no_answer_threshold
    encoder = ExampleEncoder(task.kind, tokenizer, labels, length, long)
    return Evaluator(network.to(best_device()), task, encoder, float("inf") if threshold is None else threshold)


def labels_for(saved: SavedModel, task: Task) -> tuple[str, ...]:
    """The model's labels in logit order, spelled as in the task; () for kinds without labels."""
    if saved.kind != task.kind:
        raise ValueError(f"{saved} is a model for {saved.kind}, but {task.name} is a {task.kind} task")
    labels = saved.labels
    if task.labels is None or set(labels) == set(task.labels):
        return labels
    spelled = {label.casefold(): label for label in task.labels}
    if len(labels) != len(spelled) or {label.casefold() for label in labels} != set(spelled):
        raise ValueError(f"{saved} has the labels {_some(labels)}, but {task.name} has {_some(task.labels)}")
    return tuple(spelled[label.casefold()] for label in labels)


def _some(labels: Sequence[str], most: int = 8) -> str:
    return ", ".join(labels[:most]) + (f", ... ({len(labels)})" if len(labels) > most else "")


def evaluate(
    model: str | Path,
    *,
    task: str | Task | None = None,
    data: str | Path | None = None,
    file: str | Path | None = None,
    split: str = Benchmark.split,
    long: Long | None = None,
    **columns: Any,
) -> Evaluation:
    """Evaluate a fine-tuned model on a benchmark split or on your own file (columns as in ``own.own_task``).

    ``long`` says how to read texts longer than the model's maximum length: windows (default), cut or whole.
    """
    evaluator, examples = open_evaluation(model, task, data, file, split, columns, long)
    return evaluator(examples)


def open_evaluation(
    model: str | Path,
    task: str | Task | None,
    data: str | Path | None,
    file: str | Path | None,
    split: str,
    columns: dict[str, Any],
    long: Long | None = None,
) -> tuple[Evaluator, Sequence[Example]]:
    """The model and the examples of ``evaluate``."""
    if (task is None) == (file is None):
        raise ValueError("pass either --task and --data, or --file FILE")
    if file is not None and data is not None:
        raise ValueError("data is only for a benchmark; it cannot be combined with file")
    if task is not None and columns:
        raise ValueError(f"unknown option for a benchmark: {', '.join(columns)} (columns are for your own files)")
    check_packages(task)
    if file is not None:
        chosen, examples = open_file(model, Path(file), columns)
    else:
        chosen = suites.task(task) if isinstance(task, str) else task  # type: ignore[assignment]
        labels_for(describe(model), chosen)  # raises before the data is read
        splits = read_benchmark(chosen, data)
        if not splits.get(split):
            raise ValueError(f"{data}: no {split!r} examples; available splits: {', '.join(splits)}")
        examples = splits[split]
    return load_evaluator(model, chosen, long), examples


def open_file(model: str | Path, file: Path, columns: dict[str, Any]) -> tuple[Task, list[Example]]:
    """Read a file for evaluation. Rows with labels that the model does not have are skipped."""
    saved = describe(model)
    kind = saved.kind
    columns = remembered(saved, file, columns)
    task = own_task(None, file, kind=kind, labels=saved.labels or None, **columns)
    examples = task.read(Path())["dev"]
    if not isinstance(examples[0], CLASSES[kind]):
        raise ValueError(f"{model} is a model for {kind}, but {file} is read as {kind_of(examples)}")
    return replace(task, labels=None), examples


def remembered(saved: SavedModel, file: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Add the columns of the training file that this file also has to the columns ``given``."""
    names = {name.casefold() for name in column_names(file)}

    def has(value: Any) -> bool:
        if not names:  # CoNLL: the number of the column with the tags
            return isinstance(value, str) and value.isdecimal()
        return all(name.casefold() in names for name in ([value] if isinstance(value, str) else value))

    stored = {field: name for field, name in saved.settings.columns.items() if field == "separator" or has(name)}
    return {**stored, **given}


def check_packages(task: str | Task | None = None) -> None:
    """Raise before the work starts if a required package is missing."""
    own = EXTRA_PACKAGES.get(task.name if isinstance(task, Task) else task or "", ())
    for name in ("accelerate", "scipy", "seqeval", "sklearn", *own):
        if find_spec(name) is None:
            raise ImportError(f"fine-tuning needs {name}: {install('finetune')}")


def read_benchmark(task: Task, data: str | Path | None) -> dict[str, list[Example]]:
    if data is None and task.name in suites.BENCHMARKS:
        raise ValueError(f"{task.name} needs its data: pass --data FOLDER, or --data hf for the hub")
    return dict(task.read(Path(data) if data is not None else Path()))


def predict_test(model: str | Path, task: str, data: str | Path, out: str | Path) -> dict[Path, int]:
    """Predict every test set of a benchmark and write the files that its leaderboard accepts.

    Returns the number of predictions in each file.
    """
    check_packages(task)
    chosen = suites.task(task)
    splits = read_benchmark(chosen, data)
    found = [name for name in chosen.files if splits.get(name)]
    if not found or chosen.write is None:
        raise ValueError(f"{data}: no test set for {task}; available splits: {', '.join(splits)}")
    for name in found:
        require_new(Path(out) / chosen.files[name])
    evaluator = load_evaluator(model, chosen)
    Path(out).mkdir(parents=True, exist_ok=True)
    written = {}
    for name in found:
        path = Path(out) / chosen.files[name]
        with replacing(path) as temporary:
            chosen.write(temporary, splits[name], evaluator(splits[name]).values)
        written[path] = len(splits[name])
    return written


# ------------------------------------------------------------------------------------------------- prediction files


def write_predictions(path: Path, evaluation: Evaluation) -> None:
    lines = []
    for example, prediction in zip(evaluation.examples, evaluation.predictions, strict=True):
        line: dict[str, object] = {"example": asdict(example), "prediction": prediction.value}
        if prediction.probabilities:
            line["probabilities"] = [round(p, 5) for p in prediction.probabilities]
        if prediction.answers:
            line["answers"] = prediction.answers
            line["no_answer"] = prediction.no_answer
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))


def read_predictions(path: Path, kind: RunKind) -> tuple[list[Any], list[Any]]:
    """Return examples and one prediction for each."""
    if not path.is_file():
        raise ValueError(f"no predictions at {path}")
    cls = CLASSES[kind]
    examples, values = [], []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                example = cls(**{key: _tuple(value) for key, value in record["example"].items()})
                value = _tuple(record["prediction"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not a prediction of a {kind} task ({error})") from None
            examples.append(example)
            values.append(value)
    return examples, values


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


# --------------------------------------------------------------------------------------------------------- comparison


def compare_runs(
    a: str | Path, b: str | Path, split: str = Comparing.split, resamples: int = Comparing.resamples
) -> Comparison:
    """Compare two ``finetune`` folders (one run or several seeds) on the metric that selected their checkpoints.

    Translations and summaries are compared on BLEU or ROUGE-1.
    """
    sides = [finished_runs(Path(folder)) for folder in (a, b)]
    records = [json.loads((run / "run.json").read_text(encoding="utf-8")) for side in sides for run in side]
    for name in ("task", "kind", "metric"):
        found = {record.get(name) for record in records}
        if len(found) > 1:
            raise ValueError(f"{a} and {b} are runs of different tasks: {name} {' and '.join(map(str, found))}")
    name, kind, metric, labels = (records[0].get(field) for field in ("task", "kind", "metric", "labels"))
    files = [[run / f"predictions-{split}.jsonl" for run in side] for side in sides]
    if kind == "seq2seq":
        return compare_texts(files[0], files[1], metric, resamples)
    check_packages(name)
    task = suites.BENCHMARKS.get(name) or Task(name, kind, lambda _: {}, *scoring(kind, labels))
    return compare_predictions(files[0], files[1], task, resamples)


def finished_runs(folder: Path) -> list[Path]:
    """The folders of all seeds, or the folder of the only one."""
    runs = sorted(folder.glob("seed-*[0-9]")) or [folder]
    for run in runs:
        if not (run / "run.json").is_file():
            raise ValueError(f"{run} is not a finished run of finetune: it has no run.json")
    return runs


def compare_texts(a: list[Path], b: list[Path], metric: str, resamples: int = Comparing.resamples) -> Comparison:
    """Compare the texts of two systems. ``a`` and ``b``: prediction files of one split, one file per seed."""
    pairs, a_texts, b_texts = _read_sides(a, b, "seq2seq")
    score = resampled_score(metric, [pair.target for pair in pairs])

    def score_pairs(chosen: Sequence[Pair], texts: Sequence[str]) -> float:
        return score(texts, [pair.target for pair in chosen])

    return compare(pairs, a_texts, b_texts, score_pairs, resamples=resamples)


def compare_predictions(a: list[Path], b: list[Path], task: Task, resamples: int = Comparing.resamples) -> Comparison:
    """Compare two systems on the task's metric. ``a`` and ``b``: prediction files of one split, one file per seed."""
    return compare_values(task, *_read_sides(a, b, task.kind), resamples)


def compare_values(
    task: Task, examples: Sequence[Example], a: Sequence[list[Any]], b: Sequence[list[Any]], resamples: int
) -> Comparison:
    """Compare predictions on the task's metric. ``a`` and ``b``: one list per seed."""

    def metric(chosen: Sequence[Example], predictions: Sequence[Any]) -> float:
        return task.score(chosen, predictions)[task.metric]

    found = compare(examples, a, b, metric, resamples=resamples)
    if task.metric != "accuracy" or task.kind == "tagging" or len(a) > 1:
        return found
    labels = [gold(example) for example in examples]
    right = [[x == y for x, y in zip(labels, side[0], strict=True)] for side in (a, b)]
    return replace(found, mcnemar_p=mcnemar(*right))


def _read_sides(a: list[Path], b: list[Path], kind: RunKind) -> tuple[list[Any], list[list[Any]], list[list[Any]]]:
    """Return the examples, which must be the same in all files, and the predictions of each side, one list per seed."""
    sides = [[read_predictions(path, kind) for path in paths] for paths in (a, b)]
    examples = sides[0][0][0]
    for paths, runs in zip((a, b), sides, strict=True):
        for path, (others, _) in zip(paths, runs, strict=True):
            if others != examples:
                raise ValueError(f"{path} and {a[0]} are predictions on different examples")
    a_values, b_values = ([values for _, values in side] for side in sides)
    return examples, a_values, b_values
