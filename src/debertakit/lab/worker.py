"""One job of a comparison in its own process: ``python -m debertakit.lab.worker KIND``, with settings as JSON on stdin.

The process stops like a command that got SIGTERM when the process that started it is gone, and it waits while another
job still writes the same folder.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from debertakit.files import locked, write_json
from debertakit.training.signals import Stopped, stop_on_signals

ORPHAN_POLL, LOCK_POLL, LOCK_TRIES = 1.0, 0.5, 120


def pretrain(settings: dict[str, Any]) -> None:
    """Train one run, from its last checkpoint if there is one."""
    from debertakit.pretraining.loop import pretrain
    from debertakit.pretraining.settings import from_json
    from debertakit.text.shards import Corpus
    from debertakit.text.tokenizers import load_tokenizer

    config = from_json(json.dumps(settings["config"]))
    tokenizer = load_tokenizer(settings["tokenizer"])
    metrics = pretrain(config, Corpus.open(settings["corpus"]), tokenizer, settings["out"], resume=True)
    write_json(Path(settings["done"]), metrics)


def finetune(settings: dict[str, Any]) -> None:
    from debertakit.finetuning.train import finetune

    given = {name: settings[name] for name in ("task", "data", "seed")}
    finetune(settings["model"], settings["out"], resume=True, **given, **settings["options"])


def run(settings: dict[str, Any]) -> None:
    """Train one run and measure it."""
    from debertakit.lab.measures import measure

    if not (Path(settings["out"]) / "metrics.json").exists():
        pretrain({**settings, "done": str(Path(settings["out"]) / "metrics.json")})
    measure(settings)


def speed(settings: dict[str, Any]) -> None:
    from debertakit.lab.measures import measure_speed

    measure_speed(settings)


JOBS: dict[str, Callable[[dict[str, Any]], None]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "run": run,
    "speed": speed,
}


def _stop_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_POLL)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def waiting_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. Wait up to a minute for a job that is just stopping."""
    for _ in range(LOCK_TRIES):
        with ExitStack() as stack, suppress(ValueError):
            stack.enter_context(locked(folder))
            held = stack.pop_all()
            break
        time.sleep(LOCK_POLL)
    else:
        raise ValueError(f"another job is writing {folder}")
    with held:
        yield


def _run(kind: str, settings: dict[str, Any]) -> None:
    out = Path(settings["out"])
    lock = out.with_name(f".{out.name}.lock")
    for folder in (lock, Path(settings["done"]).parent):
        folder.mkdir(parents=True, exist_ok=True)
    with waiting_lock(lock):
        JOBS[kind](settings)


def main() -> None:
    parent = os.getppid()
    stop_on_signals()
    settings = json.load(sys.stdin)
    threading.Thread(target=_stop_with, args=(parent,), daemon=True).start()
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        _run(sys.argv[1], settings)
    except Stopped as stopped:
        sys.exit(stopped.code)
    except (ValueError, OSError, ImportError) as error:
        print(f"deberta: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
