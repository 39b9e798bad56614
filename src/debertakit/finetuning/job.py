"""Open a fine-tuning job: read the examples, choose the options, tokenise. All seeds share the result."""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import AutoModel, PreTrainedModel

from debertakit.config import DebertaConfig
from debertakit.data.examples import Example, TextExample, gold
from debertakit.data.folders import is_hub
from debertakit.data.guessing import guess_line, resolve_columns
from debertakit.finetuning.evaluation import check_packages, read_benchmark
from debertakit.finetuning.hyperparameters import Hyperparameters, Size, hyperparameters, model_size
from debertakit.finetuning.options import FinetuneOptions, resolve_options
from debertakit.finetuning.runs import Record, check_folders, is_main, on_main, recorded_precision, world_size
from debertakit.finetuning.verdict import vocabulary_warning
from debertakit.loading import describe, has_head_dropout, load_config, longest_input
from debertakit.model import DebertaModel
from debertakit.precision import best_device, precision_line, resolve_precision
from debertakit.tasks import suites
from debertakit.tasks.features import ExampleEncoder, Features, choose_length, find_labels, long_modes
from debertakit.tasks.own import own_task
from debertakit.tasks.task import Task
from debertakit.text.progress import working

HELD_OUT = 0.1
"""Share of the training examples held out as a dev set if none is given, but at most MOST_HELD_OUT examples."""
MOST_HELD_OUT = 2000
COLUMNS = ("text", "pair", "label", "options", "separator")
Place = str | Path | None
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """Data and settings shared by all seeds."""

    model: str
    task: Task
    splits: dict[str, list[Example]]
    options: FinetuneOptions
    encoder: ExampleEncoder
    train: Features
    dev: Features
    source: Record = field(default_factory=dict)
    """Data paths and column names (``source_of``)."""
    defaults: Record = field(default_factory=dict)
    """Value of each option if the user had not set it."""
    size: Size = "base"

    def record(self, seed: int) -> Record:
        return {
            "model": self.model,
            "task": self.task.name,
            "kind": self.task.kind,
            "metric": self.task.metric,
            "labels": list(self.encoder.labels),
            "seed": seed,
            "processes": world_size(),
            **self.source,
            "train_examples": len(self.splits["train"]),
            "dev_examples": len(self.splits["dev"]),
            **asdict(self.options),
        }


def open_job(
    model: str | Path,
    runs: Sequence[Path],
    folder: Path,
    *,
    task: str | Task | None = None,
    data: str | Path | None = None,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    resume: bool = False,
    **others: Any,
) -> Job:
    """Check the arguments of ``finetune``, read and tokenise the data, and fill in the unset options.

    ``runs``: the folder of each seed. ``folder``: the folder that contains them, or the only one.
    """
    check_packages(task)
    names = set(FinetuneOptions.__dataclass_fields__)
    options = FinetuneOptions(**{key: value for key, value in others.items() if key in names})
    columns = {key: value for key, value in others.items() if key not in names}
    if train is not None and task is None and data is None and columns.keys() <= set(COLUMNS):
        columns = complete_columns(Path(train), columns)
    check_processes(options)
    on_main(lambda: check_folders(folder, runs, resume))
    recorded = on_main(lambda: recorded_precision(runs))
    precision = resolve_precision(options.precision, best_device(), recorded)
    options = replace(options, precision=precision)
    task, splits = open_data(task, data, train, dev, columns)
    job = replace(prepare(str(model), task, splits, options), source=source_of(data, train, dev, columns))
    say(precision_line(precision, best_device()))
    return job


def check_processes(options: FinetuneOptions) -> None:
    """Raise if a run cannot be divided among the processes that torchrun started."""
    if world_size() > 1 and options.sift:
        raise ValueError("--sift trains in one process; start it without torchrun")
    if options.parallel == "fsdp2" and world_size() == 1:
        raise ValueError("--parallel fsdp2 needs torchrun: torchrun --nproc-per-node N -m debertakit.cli finetune ...")


def say(line: str) -> None:
    """Print a line to stderr, from one process only."""
    if is_main():
        print(line, file=sys.stderr)


def complete_columns(train: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Guess the columns that are not given, and print them."""
    found = resolve_columns(train, given)
    if line := guess_line(train, given, found):
        say(line)
    return found


def source_of(data: Place, train: Place, dev: Place, columns: dict[str, Any]) -> Record:
    """Data paths and column names for run.json."""

    def place(path: Place) -> str | None:
        return None if path is None else str(path) if is_hub(Path(path)) else str(Path(path).resolve())

    files = {"data": place(data), "train": place(train), "dev": place(dev)}
    return files | {name: columns.get(name) for name in COLUMNS}


def open_data(
    task: str | Task | None, data: Place, train: Place, dev: Place, columns: dict[str, Any]
) -> tuple[Task, dict[str, list[Example]]]:
    """Return the task and its splits, which include at least "train" and "dev"."""
    if (task is None) == (train is None):
        raise ValueError("pass either --task and --data, or --train FILE")
    if task is not None:
        if dev is not None:
            raise ValueError("dev is not an option for a benchmark, which has its own dev set")
        if columns:
            raise ValueError(f"unknown option for a benchmark: {', '.join(columns)} (columns are for your own files)")
        chosen = suites.task(task) if isinstance(task, str) else task
        splits = read_benchmark(chosen, data)
    else:
        assert train is not None
        if data is not None:
            raise ValueError("data is only for a benchmark; it cannot be combined with train")
        if unknown := columns.keys() - inspect.signature(own_task).parameters.keys():
            raise ValueError(f"unknown option of finetune(): {', '.join(sorted(unknown))}")
        chosen = own_task(Path(train), Path(dev) if dev is not None else None, **columns)
        splits = dict(chosen.read(Path()))
    if not splits.get("train"):
        raise ValueError(f"{data or train}: no training examples")
    if not splits.get("dev"):
        splits["train"], splits["dev"] = hold_out(splits["train"])
        say(
            f"no dev set (--dev FILE): {len(splits['dev']):,} of the {len(splits['train']) + len(splits['dev']):,} "
            "training examples are held out, the same ones in every run, with the same share of each label"
        )
    return chosen, splits


def hold_out(examples: Sequence[T]) -> tuple[list[T], list[T]]:
    """Split off a dev set. The split does not depend on the seed.

    Every label has the same share of both parts (up to rounding): the examples are shuffled, sorted by label, and every
    tenth is taken.
    """
    if len(examples) < 2:
        raise ValueError("cannot hold out a dev set from a single example; pass a dev set")
    count = max(1, min(int(HELD_OUT * len(examples)), MOST_HELD_OUT))
    labels = [gold(each) if isinstance(each, TextExample) else None for each in examples]
    order = np.random.default_rng(0).permutation(len(examples)).tolist()
    if all(isinstance(label, str) for label in labels):
        order.sort(key=lambda i: labels[i])
    places = np.linspace(0, len(examples), count, endpoint=False) + len(examples) / (2 * count)
    chosen = {order[int(place)] for place in places}
    return [e for i, e in enumerate(examples) if i not in chosen], [examples[i] for i in sorted(chosen)]


def prepare(model: str, task: Task, splits: dict[str, list[Example]], options: FinetuneOptions) -> Job:
    """Fill in unset options, choose the maximum length, and tokenise."""
    tokenizer = describe(model).tokenizer()
    labels = task.labels if task.labels is not None else find_labels(task.kind, splits["train"])
    network = without_weights(model)
    size = model_size(model, network.config.num_hidden_layers, network.config.hidden_size)
    recommended = hyperparameters(task.name, size, sift=options.sift)
    if not has_head_dropout(model, task.kind):
        if options.cls_dropout is not None:
            raise ValueError(f"cls_dropout is not an option: the {task.kind} head of {model} has no dropout")
        recommended = replace(recommended, cls_dropout=None)
    longest, fixed = longest_input(network, tokenizer)
    if options.max_length is not None and options.max_length > longest and fixed:
        raise ValueError(f"max_length is {options.max_length}, but {model} has positions for only {longest} tokens")
    length = options.max_length or min(recommended.max_length or sys.maxsize, longest)
    if options.max_length is None and recommended.max_length is None:
        length = choose_length(task.kind, tokenizer, splits["train"], longest)
    defaults = default_options(options, recommended, length)
    options = replace(resolve_options(options, recommended), max_length=length)
    encoder = ExampleEncoder(task.kind, tokenizer, labels, length)
    reader = replace(encoder, long="cut") if "cut" in long_modes(task.kind) else encoder  # one row per training text
    with working(f"tokenising {len(splits['train']) + len(splits['dev']):,} examples"):
        train, dev = reader.encode(splits["train"], strict=True), encoder.encode(splits["dev"])
    truncated = f"; {train.cut:,} longer training texts are truncated" if train.cut else ""
    say(
        f"{task.name} ({task.kind}): {len(splits['train']):,} training and {len(splits['dev']):,} dev examples; "
        f"at most {length} tokens{truncated}"
    )
    if warning := vocabulary_warning(tokenizer, train.rows, splits["train"]):
        say(f"warning: {warning}")
    return Job(model, task, splits, options, encoder, train, dev, defaults=defaults, size=size)


def default_options(given: FinetuneOptions, recommended: Hyperparameters, length: int) -> Record:
    """Values of the options that the user did not set, as if no other were set; the rate follows LoRA and freezing."""
    modes = FinetuneOptions(sift=given.sift, lora=given.lora, freeze_encoder=given.freeze_encoder)
    resolved = asdict(resolve_options(modes, recommended))
    precision = resolve_precision("auto", best_device())
    usual = recommended.max_length or (length if given.max_length is None else None)
    off = {"sift": False, "lora": None, "freeze_encoder": False}
    return {**resolved, **off, "max_length": usual, "precision": precision}


def without_weights(model: str) -> PreTrainedModel:
    """The encoder of a model, for its size and its position table only: nothing is read but its config."""
    config = load_config(model)
    with torch.device("meta"):
        return DebertaModel(config) if isinstance(config, DebertaConfig) else AutoModel.from_config(config)
