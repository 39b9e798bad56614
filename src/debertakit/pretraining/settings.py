"""Config of a run: returned by recipes, changed with ``--set``, stored in run.json."""

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
from debertakit.precision import Precision
from debertakit.pretraining.family import model_fields
from debertakit.text.masking import Masking
from debertakit.training.optim import Optimizer


@dataclass(frozen=True)
class Data:
    tokenizer: str = "unigram"
    """Kind to train on the corpus if no tokenizer is given: unigram, bpe or wordpiece."""
    vocab_size: int = 8192
    max_length: int = 512
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
    """Gazetteer file or spacy:MODEL, for entity masking."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "step_tokens", "micro_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name}={getattr(self, name)}: must be >= 1")
        if self.validation < 0:
            raise ValueError(f"data.validation={self.validation}: must be >= 0")

    def parts(self, ranks: int) -> int:
        """Number of parts of a step, the same for each rank."""
        return ranks * -(-self.step_tokens // (ranks * self.micro_tokens))


@dataclass(frozen=True)
class Rtd:
    """Replaced-token detection (pretraining/rtd.py): a generator trained with MLM, and the model as discriminator."""

    weight: float = 50.0
    """Weight of the discriminator's loss: 50 in the paper, 10 in Microsoft's scripts."""
    temperature: float = 1.0
    sharing: Literal["gdes", "es", "nes"] = "gdes"
    """Embedding tables: gradient-disentangled (gdes), one shared table (es), or separate tables (nes)."""
    steps: Literal["decoupled", "joint"] = "decoupled"
    """decoupled: update the generator, then the discriminator; joint: one update with the sum of both losses."""
    generator_layers: int = 0
    """0: half of the discriminator's layers."""
    generator_width: float = 1.0
    """Hidden size, heads and feed-forward size relative to the discriminator. ELECTRA uses a quarter to a third."""
    warmup_steps: int | None = None
    """Steps that train only the generator, with shared tables frozen, when a run starts from a checkpoint. None: a
    tenth of the run if the checkpoint has no generator, otherwise 0."""

    def __post_init__(self) -> None:
        if self.weight <= 0 or self.temperature <= 0:
            raise ValueError(f"rtd.weight={self.weight}, rtd.temperature={self.temperature}: both must be > 0")
        if not 0 < self.generator_width <= 1:
            raise ValueError(f"rtd.generator_width={self.generator_width}: must be > 0 and <= 1")
        if self.generator_layers < 0 or (self.warmup_steps or 0) < 0:
            raise ValueError("rtd.generator_layers and rtd.warmup_steps must be >= 0")
        _one_of(self, "rtd.", "sharing", "steps")


@dataclass(frozen=True)
class PretrainConfig:
    name: str
    model: dict[str, Any]
    """Fields of the model family's config; vocab_size and special ids come from the tokenizer."""
    family: Literal["deberta", "deberta-d", "bert", "roberta", "albert", "xlnet", "electra", "gpt2"] = "deberta"
    """deberta and deberta-d (with a decoder) are our own models; the others are transformers' classes. ALBERT's
    ``model`` also has the field share (all, attention, ffn or none): the part shared between layers."""
    objectives: Objectives = field(default_factory=Objectives)
    masking: Masking = field(default_factory=Masking)
    optimizer: Optimizer = field(default_factory=Optimizer)
    data: Data = field(default_factory=Data)
    rtd: Rtd | None = None
    """None: no discriminator; the model is trained with the objectives."""
    init: str | None = None
    """Checkpoint to start from; it provides weights, model config and tokenizer."""
    init_generator: str | None = None
    """Generator checkpoint, if it is not in the folder of ``init``."""
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
        objectives = self.objectives
        if self.masking.one_mask_per_span and max(objectives.refinement, objectives.sbo, objectives.plm) > 0:
            raise ValueError("refinement, sbo and plm need one position per token: set masking.one_mask_per_span=false")
        if self.data.mode == "blocks" and max(objectives.nsp, objectives.sop) > 0:
            raise ValueError("nsp and sop need single documents, but a block can span several: set data.mode=documents")
        if self.family != "deberta" and (self.compile or self.parallel == "fsdp2"):
            raise ValueError(f"compile and parallel=fsdp2 need family=deberta; {self.family} trains with ddp")
        if self.rtd is not None and self.family not in ("deberta", "electra"):
            raise ValueError(f"rtd supports the families deberta and electra, not {self.family}")
        if self.rtd is not None and set(self.objectives.weights) != {"mlm"}:
            raise ValueError(
                f"rtd trains its generator with mlm only; the objectives are {', '.join(self.objectives.weights)}"
            )
        if self.rtd is not None and self.masking.one_mask_per_span:
            raise ValueError("rtd replaces each masked token with one token: set masking.one_mask_per_span=false")
        if self.init_generator is not None and (self.rtd is None or self.init is None):
            raise ValueError("init_generator needs init and a recipe with rtd")
        _one_of(self, "", "family", "precision", "parallel", "tracker")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)


PARTS = {"objectives": Objectives, "masking": Masking, "optimizer": Optimizer, "data": Data, "rtd": Rtd}


def from_json(text: str) -> PretrainConfig:
    """Parse a config written by ``to_json``. Unknown keys raise."""
    return _from_dict(json.loads(text))


def _from_dict(values: dict[str, Any]) -> PretrainConfig:
    known(values, PretrainConfig, "")
    values = dict(values)
    for name, part in PARTS.items():
        if name == "rtd" and values.get(name) is None:
            continue
        known(values[name], part, f"{name}.")
        values[name] = part(**values[name])
    return PretrainConfig(**values)


def load(path: Path) -> PretrainConfig:
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a run config: {error}") from None


def override(config: PretrainConfig, assignments: list[str]) -> PretrainConfig:
    """Apply assignments such as ``["optimizer.lr=1e-3", "model.hidden_size=256"]``, then validate the result."""
    values = dataclasses.asdict(config)
    for assignment in assignments:
        path, equals, text = (piece.strip() for piece in assignment.partition("="))
        if not equals:
            raise ValueError(f"--set {assignment}: expected field=value")
        head, dot, name = path.partition(".")
        known([head], PretrainConfig, "")
        nested = head == "model" or head in PARTS
        if nested != bool(dot):
            raise ValueError(
                f"{path}: " + (f"set one of its fields, {head}.FIELD" if nested else f"{head} has no fields")
            )
        if head == "model":
            values[head][name] = _model_value(values["family"], name, text)
        elif nested:
            if values[head] is None:
                raise ValueError(f"{path}: this recipe has no discriminator; use v3-tiny or another v3 recipe")
            known([name], PARTS[head], f"{head}.")
            values[head][name] = parse(text, typing.get_type_hints(PARTS[head])[name], path)
        else:
            values[head] = parse(text, typing.get_type_hints(PretrainConfig)[head], path)
    return _from_dict(values)


def _model_value(family: str, name: str, text: str) -> Any:
    kinds = model_fields(family)
    known([name], kinds, "model.")
    if name == "pos_att_type":
        return [term for term in text.replace("|", ",").split(",") if term]
    return parse(text, kinds[name], f"model.{name}")


def parse(text: str, kind: Any, name: str) -> Any:
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


def _one_of(part: Any, where: str, *names: str) -> None:
    hints = typing.get_type_hints(type(part))
    for name in names:
        choices, value = typing.get_args(hints[name]), getattr(part, name)
        if value not in choices:
            raise ValueError(f"{where}{name}={value!r}: choose from {', '.join(choices)}")


def known(names: Iterable[str], kind: Any, where: str) -> None:
    """Raise if a name is not a field of ``kind``, a dataclass or a dict of fields."""
    choices = list(kind) if isinstance(kind, dict) else [f.name for f in dataclasses.fields(kind)]
    for name in names:
        if name not in choices:
            close = difflib.get_close_matches(name, choices, n=1)
            hint = f"did you mean {where}{close[0]}?" if close else f"choose from {', '.join(choices)}"
            raise ValueError(f"unknown field {where}{name}; {hint}")
