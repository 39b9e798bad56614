"""The configs of a comparison: the same size, data, vocabulary and budget for every recipe.

Everything that is not the method is taken from the first recipe: sequence length, tokens per step, validation text. A
model whose number of parameters differs by more than ``TOLERANCE`` is made wider or narrower, in steps of one attention
head; its heads keep their size, and its feed-forward layers their ratio. A warm-up is at most a tenth of the run.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from debertakit.lab.options import Budget, CompareOptions, parse_budget
from debertakit.pretraining.models import make_models
from debertakit.pretraining.recipes import recipe
from debertakit.pretraining.settings import PretrainConfig, override
from debertakit.protocols import Tokenizer

TOLERANCE = 0.05
CURVE_POINTS = 8
"""Checkpoints of a run, at which its learning curve is measured."""
FINETUNE = "finetune."
FACTOR = 2.0
"""Between neighbouring learning rates of the sweep."""


@dataclass(frozen=True)
class Contestant:
    recipe: str
    config: PretrainConfig
    """Config of seed 0, without the learning rate that the sweep will choose."""
    parameters: int
    """Of the model that the run exports; a generator or a training head is not counted."""
    widened: str = ""
    """How the model was changed to match the size of the first recipe."""
    trained_as: str = ""
    """Row whose pretrained model this one uses. Empty: it has its own."""
    finetuning: Mapping[str, object] = field(default_factory=dict)
    """Fine-tuning options of this row (``FinetuneOptions``)."""


@dataclass(frozen=True)
class Entry:
    """A recipe of a comparison, perhaps with changed settings."""

    name: str
    recipe: str
    assignments: tuple[str, ...] = ()
    """Changed settings, as "model.conv_kernel_size=3", or "finetune.sift=true" for the fine-tuning."""

    @property
    def pretraining(self) -> tuple[str, ...]:
        """What the pretrained model depends on."""
        return (self.recipe, *(each for each in self.assignments if not each.startswith(FINETUNE)))

    @property
    def finetuning(self) -> dict[str, object]:
        changes = [each.removeprefix(FINETUNE).split("=") for each in self.assignments if each.startswith(FINETUNE)]
        return {name: json.loads(value) for name, value in changes}

    @property
    def config(self) -> PretrainConfig:
        return override(recipe(self.recipe), list(self.pretraining[1:]))


def share_models(contestants: Sequence[Contestant], entries: Sequence[Entry]) -> list[Contestant]:
    """Add the fine-tuning options. Rows that differ only in these use one pretrained model, that of the first."""
    owners: dict[tuple[str, ...], str] = {}
    found = []
    for each, entry in zip(contestants, entries, strict=True):
        owner = owners.setdefault(entry.pretraining, entry.name)
        found.append(replace(each, trained_as="" if owner == entry.name else owner, finetuning=entry.finetuning))
    return found


def common_configs(entries: Sequence[Entry], options: CompareOptions) -> dict[str, PretrainConfig]:
    """The recipes with the data and the budget of the first."""
    found = {entry.name: entry.config for entry in entries}
    if len(found) != len(entries):
        raise ValueError("a recipe is named twice")
    first, budget = found[entries[0].name], parse_budget(options.budget)
    result = {}
    for name, config in found.items():
        if config.family == "deberta-d" or not config.model:
            reason = "has a decoder" if config.model else "continues from a checkpoint"
            raise ValueError(f"{name} {reason}; a comparison needs encoders or language models trained from scratch")
        data = replace(
            first.data, tokenizer=config.data.tokenizer, mode=config.data.mode, vocab_size=options.vocab_size
        )
        config = replace(config, data=data, precision="auto", tracker="none")
        if options.quick:
            config = _quick(config)
        result[name] = with_budget(config, budget)
    return result


def with_budget(config: PretrainConfig, budget: Budget) -> PretrainConfig:
    """Set the length of the run, the warm-up and the checkpoints. The learning curve is measured on the checkpoints."""
    if budget.minutes is not None:
        return replace(config, minutes=budget.minutes, keep_last=10**6)
    steps = budget.steps or math.ceil((budget.tokens or 0) / config.data.step_tokens)
    every = max(1, steps // CURVE_POINTS)
    warmup = min(config.optimizer.warmup_steps, max(1, steps // 10))
    config = replace(config, optimizer=replace(config.optimizer, warmup_steps=warmup))
    if config.rtd is not None and (config.rtd.warmup_steps or 0) >= steps:
        config = replace(config, rtd=replace(config.rtd, warmup_steps=steps // 10))
    return replace(
        config,
        steps=steps,
        minutes=None,
        evaluate_every=steps,
        checkpoint_every=every,
        log_every=max(1, min(config.log_every, every)),
        keep_last=10**6,
    )


def equal_sizes(
    configs: Mapping[str, PretrainConfig], tokenizers: Mapping[str, Tokenizer], *, match: bool = True
) -> list[Contestant]:
    """Match the number of parameters of the first recipe within ``TOLERANCE``, or raise.

    Without ``match`` the sizes are only counted: in an ablation, the parameters of a part go with the part.
    """
    names = list(configs)
    goal = count_parameters(configs[names[0]], tokenizers[names[0]])
    found = []
    for name, config in configs.items():
        count, words = count_parameters(config, tokenizers[name]), ""
        if match and abs(count / goal - 1) > TOLERANCE:
            count, config, words = min(
                ((count_parameters(c, tokenizers[name]), c, text) for c, text in _widths(config)),
                key=lambda each: abs(each[0] - goal),
            )
        if match and abs(count / goal - 1) > TOLERANCE:
            raise ValueError(
                f"{name} has {count:,} parameters at the width nearest to {names[0]} ({goal:,}), and may differ by "
                f"{TOLERANCE:.0%}; compare recipes of one size"
            )
        found.append(Contestant(name, config, count, words))
    return found


def count_parameters(config: PretrainConfig, tokenizer: Tokenizer) -> int:
    with torch.device("meta"):
        model = make_models(config, tokenizer)[0]
    return sum({id(each): each.numel() for each in model.parameters()}.values())


def _widths(config: PretrainConfig) -> Iterator[tuple[PretrainConfig, str]]:
    """The model with 1, 2, ... attention heads of its own size, up to four times the width."""
    names = WIDTHS.get(config.family, WIDTHS[""])
    width, heads, inner = (int(config.model.get(name) or 0) for name in names)
    for count in range(1, 4 * heads + 1):
        new = width // heads * count
        sizes = {names[0]: new, names[1]: count} | ({names[2]: inner * new // width} if inner else {})
        yield replace(config, model={**config.model, **sizes}), f"width {new} instead of {width}"


WIDTHS = {
    "": ("hidden_size", "num_attention_heads", "intermediate_size"),
    "xlnet": ("d_model", "n_head", "d_inner"),
    "gpt2": ("n_embd", "n_head", "n_inner"),
}
"""Config fields of the width, the number of heads, and the width of the feed-forward layers."""


def rates_to_try(config: PretrainConfig, count: int) -> list[float]:
    """The recipe's rate and its neighbours: 3 -> half, the same, double; 4 -> also a quarter."""
    lowest = -(count // 2)
    return [float(f"{config.optimizer.lr * FACTOR**power:.3g}") for power in range(lowest, lowest + count)]


def with_rate(config: PretrainConfig, rate: float) -> PretrainConfig:
    return replace(config, optimizer=replace(config.optimizer, lr=rate))


def _quick(config: PretrainConfig) -> PretrainConfig:
    names = WIDTHS.get(config.family, WIDTHS[""])
    depth = {"xlnet": "n_layer", "gpt2": "n_layer"}.get(config.family, "num_hidden_layers")
    shape = {names[0]: 64, names[1]: 2, names[2]: 128, depth: 2}
    data = replace(config.data, max_length=32, step_tokens=256, micro_tokens=256)
    return replace(config, model={**config.model, **shape}, data=data, evaluate_tokens=512)
