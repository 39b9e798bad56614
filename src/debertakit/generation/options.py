"""Options of text generation and perplexity. Light to import: the command line makes its options from these."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class GenerationOptions:
    max_new_tokens: int = 128
    """Maximum number of tokens to generate."""
    beams: int = 1
    """Number of beams; 1: no beam search."""
    no_repeat: int = 0
    """Never repeat an n-gram of this size; 0: no limit."""
    prefix_mode: bool = False
    """Read the prompt with bidirectional attention (autoregressive models)."""
    sample: bool = False
    """Sample tokens instead of taking the likeliest."""

    def __post_init__(self) -> None:
        _at_least(1, max_new_tokens=self.max_new_tokens, beams=self.beams)
        _at_least(0, no_repeat=self.no_repeat)


@dataclass(frozen=True)
class SamplingOptions:
    temperature: float = 1.0
    """Below 1, likely tokens become more likely."""
    top_k: int = 50
    """Use only the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Use only the likeliest tokens, up to this total probability."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        _at_least(0.01, temperature=self.temperature)
        _at_least(0, top_k=self.top_k, top_p=self.top_p)
        if self.top_p > 1:
            raise ValueError(f"top_p={self.top_p:g}: must be <= 1")


def generate_arguments(options: GenerationOptions, sampling: SamplingOptions) -> dict[str, Any]:
    """Keyword arguments of ``writing.write`` and transformers' ``generate()``."""
    arguments: dict[str, Any] = {
        "max_new_tokens": options.max_new_tokens,
        "num_beams": options.beams,
        "no_repeat_ngram_size": options.no_repeat,
        "prefix_mode": options.prefix_mode,
        "do_sample": options.sample,
    }
    if options.sample:
        arguments |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    return arguments


@dataclass(frozen=True)
class PromptFileOptions:
    file: Path | None = None
    """File with prompts, one per line."""
    out: Path | None = None
    """Output file, one text per line."""
    batch_size: int = 16
    """Prompts per batch."""

    def __post_init__(self) -> None:
        _at_least(1, batch_size=self.batch_size)


@dataclass(frozen=True)
class PerplexityOptions:
    perplexity: Path | None = None
    """Text file for measuring an autoregressive model's perplexity."""
    window: int | None = None
    """Tokens per window. Default: the model's maximum length."""
    stride: int | None = None
    """Tokens from one window to the next. Default: half a window."""


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= least:  # true for nan
            raise ValueError(f"{name}={value:g}: must be >= {least:g}")
