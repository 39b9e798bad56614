"""The measures of one finished run, written as JSON: the jobs ``measure`` and ``speed`` of worker.py."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from debertakit.explain.corpus import corpus_patterns
from debertakit.explain.parts import Subject
from debertakit.files import write_json
from debertakit.lab.language_models import LanguageModel, open_language_model, text_scores
from debertakit.lab.minimal_pairs import prefer_good, read_pairs
from debertakit.lab.words import HiddenWord, WordScore, score_words
from debertakit.precision import best_device
from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import make_run, train_step
from debertakit.pretraining.settings import from_json
from debertakit.text.shards import Corpus
from debertakit.text.tokenizers import load_tokenizer
from debertakit.training import log

CURVE_WORDS = 300
"""Hidden words for each point of a learning curve."""
WARM_UP, TIMED = 3, 12
"""Steps of the speed measurement."""
ATTENTION_TEXTS = 32
"""Held-out passages for the attention patterns."""


@dataclass(frozen=True)
class Measured:
    """Everything that was measured on one run. None: the kind of model has no such measure."""

    bits: list[float] | None
    """Bits of each hidden word."""
    right: list[bool] | None
    """Whether each hidden word was guessed."""
    pairs: list[bool] | None
    curve: list[dict[str, float]] = field(default_factory=list)
    """Points of the learning curve: step, tokens, bits_per_character, accuracy."""
    loss: list[dict[str, float]] = field(default_factory=list)
    """Validation records of the run's own log."""
    attention: dict[str, Any] | None = None
    """Last layer, mean over heads and passages: ``matrix`` and ``by_distance`` (explain/corpus.py), and the strength of
    the strongest head for each pattern."""


@dataclass(frozen=True)
class Speed:
    tokens_per_second: float
    """Over ``TIMED`` training steps, from the median time of a step: processor time, or time of the clock on a GPU."""
    peak_mb: float
    """Largest memory that training adds to the process: weights, optimiser, activations. 0: not Linux."""


def read_words(path: Path) -> list[HiddenWord]:
    return [HiddenWord(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def bits_per_character(hidden: Sequence[HiddenWord], bits: Sequence[float]) -> float:
    return sum(bits) / sum(len(each.word) for each in hidden)


def measure(settings: dict[str, Any]) -> None:
    run, hidden = Path(settings["run"]), read_words(Path(settings["words"]))
    model = open_language_model(run)
    scores = _words(model, hidden)
    pairs = None
    if settings["pairs"]:
        chosen = read_pairs([Path(each) for each in settings["pairs"]], settings["limit"])
        pairs = prefer_good(text_scores(model, [text for pair in chosen for text in (pair.good, pair.bad)]))
    curve = [] if scores is None else _curve(run, hidden[:CURVE_WORDS])
    checks = [record for record in log.read(run / "log.jsonl") if record["kind"] == "validation"]
    found = Measured(
        bits=None if scores is None else [each.bits for each in scores],
        right=None if scores is None else [each.right for each in scores],
        pairs=pairs,
        curve=curve,
        loss=checks,
        attention=attention(run, hidden),
    )
    write_json(Path(settings["done"]), vars(found))


def attention(run: Path, hidden: Sequence[HiddenWord]) -> dict[str, Any]:
    """The patterns of appendix A.9 in the last layer."""
    texts = list(dict.fromkeys(each.text for each in hidden))[:ATTENTION_TEXTS]
    found = corpus_patterns(Subject.load(run), texts)
    return {
        "texts": found.texts,
        "matrix": found.matrices[-1].round(5).tolist(),
        "by_distance": found.by_distance[-1].round(5).tolist(),
        "strength": {name: float(heads[-1].max()) for name, heads in found.strength.items()},
    }


def _words(model: LanguageModel, hidden: Sequence[HiddenWord]) -> list[WordScore] | None:
    return None if model.kind == "detector" else score_words(model, hidden)


def _curve(run: Path, hidden: Sequence[HiddenWord]) -> list[dict[str, float]]:
    points = []
    for checkpoint in sorted((run / "checkpoints").glob("step-*[0-9]")):
        progress = json.loads((checkpoint / "progress.json").read_text(encoding="utf-8"))
        scores = _words(open_language_model(checkpoint), hidden)
        assert scores is not None
        points.append(
            {
                "step": progress["step"],
                "tokens": progress["tokens"],
                "bits_per_character": bits_per_character(hidden, [each.bits for each in scores]),
                "accuracy": float(np.mean([each.right for each in scores])),
            }
        )
    return points


def measure_speed(settings: dict[str, Any]) -> None:
    """Processor time of training steps: on one thread it is the time of a quiet machine, also on a busy one."""
    config = from_json(json.dumps(settings["config"]))
    corpus, tokenizer = Corpus.open(settings["corpus"]), load_tokenizer(settings["tokenizer"])
    before = _reset_peak()
    run = make_run(config, corpus, tokenizer, World(device=best_device()))
    now = time.process_time if run.world.device.type == "cpu" else time.perf_counter
    seconds, tokens = [], 0.0
    for step in range(WARM_UP + TIMED):
        began = now()
        result = train_step(run, 0.0)
        if step >= WARM_UP:
            seconds.append(now() - began)
            tokens += result["tokens"] / TIMED
    found = Speed(tokens / float(np.median(seconds)), _status_mb("VmHWM") - before if before else 0.0)
    write_json(Path(settings["done"]), vars(found))


STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _reset_peak() -> float:
    """Set the peak memory of this process to its current memory, in MB. 0: the system does not count it."""
    if not RESET.exists():
        return 0.0
    RESET.write_text("5")
    return _status_mb("VmRSS")


def _status_mb(field: str) -> float:
    lines = STATUS.read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024
