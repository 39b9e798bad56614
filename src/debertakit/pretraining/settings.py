"""Config of a run: returned by recipes, changed with ``--set``, stored in run.json."""

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from debertakit.files import naming
from debertakit.objectives import DISTILLATION, Objectives, Rtd, classes
from debertakit.protocols import Precision
from debertakit.text.masking import Masking
from debertakit.training.optim import Optimizer


@dataclass(frozen=True)
class Data:
    tokenizer: str = "unigram"
    """Kind to train on the corpus if no tokenizer is given: unigram, bpe or wordpiece."""
    vocab_size: int = 8192
    max_length: int = 512
    length_schedule: str | None = None
    """Lengths and their shares of the run, for texts that grow: 128:0.9,512:0.1 is BERT's. The last length is
    ``max_length``, which validation always uses. None: ``max_length`` from the first step."""
    step_tokens: int = 2048 * 512
    """Tokens per step, over all ranks and accumulation steps."""
    micro_tokens: int = 16384
    """Maximum tokens per rank and forward pass; a larger step accumulates gradients."""
    mode: Literal["documents", "blocks"] = "documents"
    validation: float = 0.05
    """Fraction of the documents to hold out; if >= 1, the number of documents."""
    language: Literal["auto", "en", "zh"] = "auto"
    txt_document: Literal["blank-line", "line", "file"] = "blank-line"
    entities: str | None = None
    """Source of entities, for entity masking: gazetteer file, spacy:MODEL or tagger:MODEL (``--tagger``)."""
    mixture: str | None = None
    """Weights of the corpus's sources, such as 0.7,0.3 (--corpus a.txt=0.7 --corpus b.txt=0.3 sets them): each source's
    share of the tokens of every step. None: as much of each source as there is."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "step_tokens", "micro_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name}={getattr(self, name)}: must be >= 1")
        if self.validation < 0:
            raise ValueError(f"data.validation={self.validation}: must be >= 0")
        if not all(0 < weight < math.inf for weight in self.weights() or ()):
            raise ValueError(f"data.mixture={self.mixture}: every weight must be > 0")
        if self.length_schedule is not None:
            lengths, shares = zip(*self._schedule(), strict=True)
            growing = list(lengths) == sorted(set(lengths)) and lengths[-1] == self.max_length
            if not (growing and min(shares) > 0 and abs(sum(shares) - 1) < 1e-6):
                raise ValueError(
                    f"data.length_schedule={self.length_schedule}: the lengths must grow up to data.max_length="
                    f"{self.max_length}, and their shares of the run must add up to 1"
                )

    def _schedule(self) -> list[tuple[int, float]]:
        """Lengths and the share of the run for each."""
        if self.length_schedule is None:
            return [(self.max_length, 1.0)]
        pairs = [pair.split(":") for pair in self.length_schedule.split(",")]
        try:
            return [(int(length), float(share)) for length, share in pairs]
        except ValueError:
            raise ValueError(
                f"data.length_schedule={self.length_schedule}: expected LENGTH:SHARE,LENGTH:SHARE as in 128:0.9,512:0.1"
            ) from None

    def length_at(self, progress: float) -> int:
        """Maximum length of the texts when this fraction of the run is completed."""
        until = 0.0
        for length, share in self._schedule():
            until += share
            if progress < until - 1e-9:
                return length
        return self.max_length

    def weights(self) -> list[float] | None:
        try:
            return None if self.mixture is None else [float(weight) for weight in self.mixture.split(",")]
        except ValueError:
            raise ValueError(f"data.mixture={self.mixture}: expected one number per source, as in 0.7,0.3") from None

    def parts(self, ranks: int) -> int:
        """Number of parts of a step, the same for each rank."""
        return ranks * -(-self.step_tokens // (ranks * self.micro_tokens))


@dataclass(frozen=True)
class PretrainConfig:
    name: str
    model: dict[str, Any]
    """Fields of the model family's config; vocab_size and special ids come from the tokenizer."""
    family: str = "deberta"
    """Model family (families.py). deberta and deberta-d (with a decoder) are our own models; the others are
    transformers' classes."""
    objectives: Objectives = field(default_factory=Objectives)
    masking: Masking = field(default_factory=Masking)
    optimizer: Optimizer = field(default_factory=Optimizer)
    data: Data = field(default_factory=Data)
    unigram_bias: bool = False
    """Start the output bias at the log frequency of each token in the training text, instead of 0."""
    rtd: Rtd | None = None
    """None: no discriminator; the model is trained with the objectives."""
    init: str | None = None
    """Checkpoint to start from; it provides weights, model config and tokenizer."""
    init_generator: str | None = None
    """Generator checkpoint, if it is not in the folder of ``init``."""
    teacher: str | None = None
    """Model to learn from, with the objectives relations, hidden or vectors."""
    steps: int = 1_000_000
    minutes: float | None = None
    """Time limit for the run and its schedule, instead of ``steps``. Such a run resumes, but not bit by bit."""
    seed: int = 0
    precision: Precision = "auto"
    """auto: bf16 if the device supports it natively, else fp32. run.json stores the resolved precision."""
    gradient_checkpointing: bool = False
    compile: bool = False
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    log_every: int = 100
    evaluate_every: int = 1000
    evaluate_tokens: int = 1 << 20
    """Maximum number of held-out tokens; always the same tokens and masks."""
    checkpoint_every: int = 1000
    keep_last: int = 2
    """Number of newest checkpoints to keep, in addition to the one with the best validation loss."""
    max_bad_steps: int = 10
    """Stop after this many consecutive steps with a non-finite loss or gradient."""
    tracker: Literal["none", "tensorboard", "trackio"] = "none"

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "evaluate_every", "checkpoint_every", "keep_last", "max_bad_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be >= 1")
        if self.minutes is not None and self.minutes <= 0:
            raise ValueError(f"minutes={self.minutes}: must be > 0")
        if self.rtd is not None and self.minutes is None and (self.rtd.warmup_steps or 0) >= self.steps:
            raise ValueError(
                f"rtd.warmup_steps={self.rtd.warmup_steps} must be less than steps={self.steps}: "
                "the discriminator is not trained during warm-up"
            )
        _check_choices(self, "precision", "parallel", "tracker")
        if self.precision == "fp16" and self.parallel == "fsdp2":
            raise ValueError("precision=fp16 needs parallel=ddp: gradient scaling is not supported under fsdp2")
        self._check_objectives()
        self._check_family()

    def _check_objectives(self) -> None:
        available = classes()
        for name in self.objectives.weights:
            if available[name].needs_row_per_token and self.masking.one_mask_per_span:
                raise ValueError(f"{name} needs one position per token: set masking.one_mask_per_span=false")
            if available[name].needs_documents and self.data.mode == "blocks":
                raise ValueError(
                    f"{name} needs single documents, but a block can span several: set data.mode=documents"
                )
        if self.rtd is not None and set(self.objectives.weights) != {"mlm"}:
            raise ValueError(
                f"rtd trains its generator with mlm only; the objectives are {', '.join(self.objectives.weights)}"
            )
        if self.rtd is not None and self.masking.one_mask_per_span:
            raise ValueError("rtd replaces each masked token with one token: set masking.one_mask_per_span=false")
        taught = [name for name in DISTILLATION if name in self.objectives.weights]
        if taught and self.teacher is None:
            raise ValueError(f"objectives.{taught[0]} needs a teacher: pass --teacher MODEL")
        if self.init_generator is not None and (self.rtd is None or self.init is None):
            raise ValueError("init_generator needs init and a recipe with rtd")

    def _check_family(self) -> None:
        from debertakit.pretraining.families import FAMILIES, find_family  # listing the recipes needs no models

        family = find_family(self.family)
        if (self.compile or self.parallel == "fsdp2") and not family.scales:
            names = " or ".join(name for name, other in FAMILIES.items() if other.scales)
            raise ValueError(f"compile and parallel=fsdp2 need family={names}; {self.family} trains with ddp")
        if self.rtd is not None and family.make_detector is None:
            names = " and ".join(name for name, other in FAMILIES.items() if other.make_detector is not None)
            raise ValueError(f"rtd supports the families {names}, not {self.family}")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)


MAY_CHANGE = (
    *("name", "steps", "minutes", "optimizer", "data.micro_tokens", "init", "init_generator", "precision", "parallel"),
    *("gradient_checkpointing", "compile", "log_every", "evaluate_every", "evaluate_tokens", "checkpoint_every"),
    *("keep_last", "max_bad_steps", "tracker"),
)
"""Fields that --resume may change: neither the data of a step nor what its loss means depends on them. (The precision
has its own check, in precision.py, and parallel in state.py.)"""

PARTS: dict[str, type] = {
    "objectives": Objectives,
    "masking": Masking,
    "optimizer": Optimizer,
    "data": Data,
    "rtd": Rtd,
}


def from_json(text: str) -> PretrainConfig:
    """Parse a config written by ``to_json``. Unknown keys raise."""
    return _from_dict(json.loads(text))


def _from_dict(values: dict[str, Any]) -> PretrainConfig:
    check_names(values, _field_names(PretrainConfig), "")
    values = dict(values)
    for name, part in PARTS.items():
        if name == "rtd" and values.get(name) is None:
            continue
        check_names(values[name], _field_names(part), f"{name}.")
        values[name] = part(**values[name])
    return PretrainConfig(**values)


def load(path: Path) -> PretrainConfig:
    try:
        with naming(path):
            return from_json(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a run config: {error} (every checkpoint of a run has a copy)") from None


def check_resumed(before: PretrainConfig, now: PretrainConfig, folder: Path) -> list[str]:
    """Raise if a field differs that --resume may not change. Returns one line for each change that it may make."""
    old, new = (_flat(json.loads(config.to_json())) for config in (before, now))
    changed = {name: (old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)}
    for name, (was, value) in changed.items():
        if name not in MAY_CHANGE and name.partition(".")[0] not in MAY_CHANGE:
            raise ValueError(
                f"{folder} was trained with {name}={was}, and --resume cannot change this to {value}. "
                f"Resume with {name}={was}, or start a new run in another --out."
            )
    return [f"resuming with {name}={value} (before: {was})" for name, (was, value) in changed.items()]


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """{"data": {"mode": "blocks"}} -> {"data.mode": "blocks"}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def override(config: PretrainConfig, assignments: list[str]) -> PretrainConfig:
    """Apply assignments such as ``["optimizer.lr=1e-3", "model.hidden_size=256"]``, then validate the result."""
    values = dataclasses.asdict(config)
    for assignment in assignments:
        path, equals, text = (piece.strip() for piece in assignment.partition("="))
        if not equals:
            raise ValueError(f"--set {assignment}: expected field=value")
        head, dot, name = path.partition(".")
        check_names([head], _field_names(PretrainConfig), "")
        nested = head == "model" or head in PARTS
        if nested != bool(dot):
            raise ValueError(
                f"{path}: " + (f"set one of its fields, {head}.FIELD" if nested else f"{head} has no fields")
            )
        if head == "model":
            values[head][name] = _parse_model_value(values["family"], name, text)
        elif nested:
            if values[head] is None:
                raise ValueError(f"{path}: this recipe has no discriminator; use v3-tiny or another v3 recipe")
            check_names([name], _field_names(PARTS[head]), f"{head}.")
            values[head][name] = parse(text, typing.get_type_hints(PARTS[head])[name], path)
        else:
            values[head] = parse(text, typing.get_type_hints(PretrainConfig)[head], path)
    return _from_dict(values)


def _parse_model_value(family: str, name: str, text: str) -> object:
    from debertakit.pretraining.families import find_family

    kinds = find_family(family).fields
    check_names([name], kinds, "model.")
    if name == "pos_att_type":
        return [term for term in text.replace("|", ",").split(",") if term]
    return parse(text, kinds[name], f"model.{name}")


def parse(text: str, kind: object, name: str) -> object:
    """Convert a command-line value to the type of its field."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if type(None) in choices and text.lower() in ("none", "null", ""):
        return None
    for choice in choices:
        if typing.get_origin(choice) is Literal:
            if text in typing.get_args(choice):
                return text
        elif choice is bool:
            if text.lower() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
                return text.lower() in ("true", "1", "yes", "on")
        elif choice in (int, float):
            try:
                return choice(text.replace("_", ""))
            except ValueError:
                continue
        elif choice is str:
            return text
    names = [str(typing.get_args(c) or getattr(c, "__name__", c)) for c in choices]
    raise ValueError(f"{name}={text!r}: expected {' or '.join(names)}")


def _check_choices(config: PretrainConfig, *names: str) -> None:
    hints = typing.get_type_hints(PretrainConfig)
    for name in names:
        choices, value = typing.get_args(hints[name]), getattr(config, name)
        if value not in choices:
            raise ValueError(f"{name}={value!r}: choose from {', '.join(choices)}")


def check_names(names: Iterable[str], allowed: Iterable[str], prefix: str) -> None:
    """Raise if a field name is not allowed. The error suggests the closest allowed name."""
    choices = list(allowed)
    for name in names:
        if name not in choices:
            close = difflib.get_close_matches(name, choices, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"choose from {', '.join(choices)}"
            raise ValueError(f"unknown field {prefix}{name}; {hint}")


def _field_names(kind: type) -> list[str]:
    return [each.name for each in dataclasses.fields(kind)]
