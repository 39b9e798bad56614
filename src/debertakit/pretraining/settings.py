"""The whole description of a run, as plain data: what a recipe returns, ``--set`` changes and run.json holds."""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from debertakit.objectives import Objectives
from debertakit.pretraining.optim import Optimizer
from debertakit.text.masking import Masking


@dataclass(frozen=True)
class Data:
    tokenizer: str = "unigram"
    """Trained on the corpus when none is given: unigram, bpe or wordpiece."""
    vocab_size: int = 8192
    max_length: int = 512
    step_tokens: int = 2048 * 512
    """Tokens of a step, over all ranks and accumulation steps."""
    micro_tokens: int = 16384
    """Tokens that one rank takes through the model at a time; the rest of the step is accumulated."""
    mode: Literal["documents", "blocks"] = "documents"
    validation: float = 0.05
    """Share of the documents held out; from 1 on, their number."""
    language: Literal["auto", "en", "zh"] = "auto"
    txt_document: Literal["blank-line", "line", "file"] = "blank-line"
    entities: str | None = None
    """A gazetteer file or spacy:MODEL, for entity masking."""

    def parts(self, ranks: int) -> int:
        """Into how many parts a step is cut: the same number for each rank."""
        return ranks * -(-self.step_tokens // (ranks * self.micro_tokens))


@dataclass(frozen=True)
class PretrainConfig:
    name: str
    model: dict[str, Any]
    """Fields of DebertaConfig; vocab_size and special ids come from the tokenizer."""
    objectives: Objectives = field(default_factory=Objectives)
    masking: Masking = field(default_factory=Masking)
    optimizer: Optimizer = field(default_factory=Optimizer)
    data: Data = field(default_factory=Data)
    steps: int = 1_000_000
    minutes: float | None = None
    """Ends the run, and bends the schedule, by time instead of steps. Such a run resumes, but not bit by bit."""
    seed: int = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_checkpointing: bool = False
    compile: bool = False
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    log_every: int = 100
    evaluate_every: int = 1000
    evaluate_tokens: int = 1 << 20
    """At most so many held-out tokens, always the same ones with the same masks."""
    checkpoint_every: int = 1000
    keep_last: int = 2
    """Checkpoints to keep, besides the one with the best validation loss."""
    max_bad_steps: int = 10
    """Steps in a row with a loss or gradient that is not finite, before the run stops."""
    tracker: Literal["none", "tensorboard", "trackio"] = "none"

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "evaluate_every", "checkpoint_every", "keep_last", "max_bad_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")
        if self.minutes is not None and self.minutes <= 0:
            raise ValueError(f"minutes={self.minutes}: above 0")
        if self.objectives.refinement > 0 and self.masking.one_mask_per_span:
            raise ValueError("refinement writes one prediction over each [MASK]: set masking.one_mask_per_span=false")
        hints = typing.get_type_hints(type(self))
        for name in ("precision", "parallel", "tracker"):
            if getattr(self, name) not in typing.get_args(hints[name]):
                raise ValueError(f"{name}={getattr(self, name)!r}: {', '.join(typing.get_args(hints[name]))}")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)


PARTS = {"objectives": Objectives, "masking": Masking, "optimizer": Optimizer, "data": Data}


def from_json(text: str) -> PretrainConfig:
    """The config that ``to_json`` wrote; unknown keys raise."""
    return _from_dict(json.loads(text))


def _from_dict(values: dict[str, Any]) -> PretrainConfig:
    _known(values, PretrainConfig, "")
    values = dict(values)
    for name, part in PARTS.items():
        _known(values[name], part, f"{name}.")
        values[name] = part(**values[name])
    return PretrainConfig(**values)


def load(path: Path) -> PretrainConfig:
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the config of a run: {error}") from None


def override(config: PretrainConfig, assignments: list[str]) -> PretrainConfig:
    """``["optimizer.lr=1e-3", "model.hidden_size=256"]``, each value read as its field's type; all at once."""
    values = dataclasses.asdict(config)
    for assignment in assignments:
        path, equals, text = (piece.strip() for piece in assignment.partition("="))
        if not equals:
            raise ValueError(f"--set {assignment}: write it as field=value")
        head, dot, name = path.partition(".")
        _known([head], PretrainConfig, "")
        nested = isinstance(values[head], dict)
        if nested != bool(dot):
            raise ValueError(f"{path}: " + ("name one of its fields" if nested else f"{head} has no fields of its own"))
        if head == "model":
            values[head][name] = _model_value(name, text)
        elif nested:
            _known([name], PARTS[head], f"{head}.")
            values[head][name] = parse(text, typing.get_type_hints(PARTS[head])[name], path)
        else:
            values[head] = parse(text, typing.get_type_hints(PretrainConfig)[head], path)
    return _from_dict(values)


def _model_value(name: str, text: str) -> Any:
    from debertakit.config import DebertaConfig

    kinds = DebertaConfig.__annotations__  # its own fields; what transformers adds is not for pretraining
    _known([name], kinds, "model.")
    if name == "pos_att_type":
        return [term for term in text.replace("|", ",").split(",") if term]
    return parse(text, kinds[name], f"model.{name}")


def parse(text: str, kind: Any, name: str) -> Any:
    """A value written on the command line, as the type of its field."""
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
    raise ValueError(f"{name}={text!r}: should be {' or '.join(names)}")


def _known(names: Iterable[str], kind: Any, where: str) -> None:
    known = list(kind) if isinstance(kind, dict) else [f.name for f in dataclasses.fields(kind)]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {where}{close[0]}?" if close else f"it has {', '.join(known)}"
            raise ValueError(f"unknown field {where}{name}; {hint}")
