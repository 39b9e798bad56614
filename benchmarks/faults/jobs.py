"""The jobs that faults hit: their commands, their results, and the files that a fault can damage."""

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.faults.processes import Launch, run

WORDS = (
    "good great fine lovely bad awful poor sad the a film was and in of it that one day we saw lives here there".split()
)
ROWS_PER_BLOCK = 8
"""Rows per block of predictions: with the usual 4,096, a small file would have one block."""
SHAPE = [
    "model.num_hidden_layers=1",
    "model.hidden_size=32",
    "model.num_attention_heads=2",
    "model.intermediate_size=32",
    "model.hidden_dropout_prob=0.1",
]
STEPS = [
    "steps=8",
    "log_every=1",
    "evaluate_every=4",
    "checkpoint_every=2",
    "optimizer.warmup_steps=1",
    "precision=fp32",
    "data.tokenizer=wordpiece",
    "data.vocab_size=300",
    "data.max_length=32",
    "data.step_tokens=256",
    "data.micro_tokens=128",
]
COMPARED_MODEL = ("model.safetensors", "config.json", "tokenizer.json")


@dataclass(frozen=True)
class Job:
    name: str
    command: Callable[[Path, Path, bool], None]
    """(material, folder, resume): what the user types, the first time and after the fault."""
    result: Callable[[Path], dict[str, bytes]]
    """Results in a folder, as far as they are there. They must be complete: nothing marks them as unfinished."""
    targets: dict[str, str]
    """What can be damaged -> pattern inside the folder."""
    log: str = "log.jsonl"
    processes: int = 1
    agent: bool = False
    restarts: int = 0

    def launch(self, material: Path, folder: Path, outputs: Path, resume: bool) -> Launch:
        return Launch(
            lambda: self.command(material, folder, resume),
            folder,
            folder / self.log,
            outputs,
            self.processes,
            self.agent,
            self.restarts,
            (self.name, str(material), str(folder), str(outputs)),
        )


# ----------------------------------------------------------------------------------------------------------- commands


def deberta(*arguments: object) -> None:
    """The ``deberta`` command, in this process."""
    from debertakit.cli import main

    sys.argv = ["deberta", *map(str, arguments)]
    main()


def pretrain(recipe: str) -> Callable[[Path, Path, bool], None]:
    def command(material: Path, folder: Path, resume: bool) -> None:
        settings = [word for each in SHAPE + STEPS for word in ("--set", each)]
        corpus = ["--corpus", material / "text.txt"]
        deberta("pretrain", recipe, *corpus, "--out", folder / "run", *settings, *(["--resume"] if resume else []))

    return command


def finetune(material: Path, folder: Path, resume: bool) -> None:
    data = ["--train", material / "train.csv", "--dev", material / "dev.csv", "--text", "text", "--label", "label"]
    steps = ["--epochs", 3, "--evaluate-every", 2, "--batch-size", 8, "--lr", 1e-2, "--precision", "fp32"]
    more = ["--resume"] if resume else []
    deberta("finetune", "--model", material / "encoder", *data, *steps, "--out", folder / "run", *more)


def translate(material: Path, folder: Path, resume: bool) -> None:
    data = ["--source", material / "source.txt", "--target", material / "target.txt"]
    dev = ["--dev-source", material / "dev-source.txt", "--dev-target", material / "dev-target.txt"]
    steps = ["--epochs", 2, "--evaluate-every", 2, "--step-tokens", 96, "--precision", "fp32", "--beams", 1]
    steps += ["--max-target", 8, "--decoder-layers", 1]
    more = ["--resume"] if resume else []
    model = ["--model", material / "encoder"]
    deberta("finetune", *model, "--task", "translation", *data, *dev, *steps, "--out", folder / "run", *more)


def prepare(material: Path, folder: Path, resume: bool) -> None:
    """Preparation has no command of its own. Errors end it as they end ``deberta``."""
    from debertakit.text.corpus import prepare
    from debertakit.text.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(material / "encoder")
    try:
        prepare(material / "text.txt", tokenizer, folder / "corpus", max_shard_tokens=400).verify()
    except (ValueError, OSError) as error:
        print(f"deberta: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def predict(material: Path, folder: Path, resume: bool) -> None:
    from debertakit.inference import files, output, predictor

    for module in (files, output, predictor):
        module.LOOK_AHEAD = ROWS_PER_BLOCK  # type: ignore[attr-defined]
    deberta("predict", material / "classifier", "--file", material / "rows.csv", "--out", folder / "out.jsonl")


# ------------------------------------------------------------------------------------------------------------ results


def pretrained(folder: Path) -> dict[str, bytes]:
    return _model(folder / "run") | _log(folder / "run/log.jsonl")


def finetuned(folder: Path) -> dict[str, bytes]:
    return _model(folder / "run", "predictions-dev.jsonl") | _log(folder / "run/log.jsonl")


def prepared(folder: Path) -> dict[str, bytes]:
    """A corpus is complete if its manifest says so."""
    corpus = folder / "corpus"
    try:
        if not json.loads((corpus / "manifest.json").read_bytes())["complete"]:
            return {}
    except (OSError, ValueError, KeyError):
        return {}
    files = [path for path in corpus.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(corpus).as_posix(): path.read_bytes() for path in files}


def predicted(folder: Path) -> dict[str, bytes]:
    return _files(folder, ["out.jsonl"])


def _model(folder: Path, *more: str) -> dict[str, bytes]:
    return _files(folder, [*COMPARED_MODEL, *(f"generator/{name}" for name in COMPARED_MODEL), *more])


def _files(folder: Path, names: list[str]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def _log(path: Path) -> dict[str, bytes]:
    """Steps and losses of a finished run's log."""
    if not (path.parent / "README.md").is_file() or not path.is_file():  # README.md is written last
        return {}
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {"log.jsonl": repr([(each["kind"], each["step"], each["loss"]) for each in records]).encode()}
    except (ValueError, KeyError, TypeError) as error:
        return {"log.jsonl": f"unreadable: {error}".encode()}


# --------------------------------------------------------------------------------------------------------------- jobs

PRETRAINING = {
    "shard": "run/corpus/*/*.npy",
    "manifest": "run/corpus/manifest.json",
    "checkpoint": "run/checkpoints/step-????????/**/*",
    "log": "run/log.jsonl",
    "settings": "run/run.json",
    "tokenizer": "run/tokenizer/*",
}
FINETUNING = {
    "checkpoint": "run.part/checkpoints/**/*",
    "log": "run.part/log.jsonl",
    "settings": "run.part/run.json",
}
CORPUS = {"shard": "corpus/shard-?????/*", "manifest": "corpus/manifest.json"}
PREDICTION = {"block": "out.jsonl.parts/*", "job": "out.jsonl.parts/job.json"}


def jobs() -> list[Job]:
    mlm = Job("MLM", pretrain("tiny"), pretrained, PRETRAINING, log="run/log.jsonl")
    rtd = replace(mlm, name="RTD", command=pretrain("v3-tiny"))
    classify = Job("fine-tuning", finetune, finetuned, FINETUNING, log="run.part/log.jsonl")
    pairs = replace(classify, name="translation", command=translate)
    text = Job("corpus", prepare, prepared, CORPUS)
    rows = Job("prediction", predict, predicted, PREDICTION)
    ranks = [replace(job, name=f"{job.name} x 2", processes=2, agent=True) for job in (mlm, rtd, pairs)]
    commands = [replace(job, name=f"{job.name} x 2", processes=2) for job in (text, rows)]
    return [mlm, rtd, classify, pairs, text, rows, *ranks, *commands]


# ----------------------------------------------------------------------------------------------------------- material


def make_material(folder: Path) -> None:
    """Write made-up texts and tiny models with random weights, in a process of its own."""
    draw = random.Random(0)

    def sentence(least: int = 4, most: int = 10) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    folder.mkdir(parents=True, exist_ok=True)
    documents = ["\n".join(sentence() + "." for _ in range(4)) for _ in range(60)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    for name, count in (("train", 40), ("dev", 12)):
        rows = [(sentence(), draw.choice(("good", "bad"))) for _ in range(count)]
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(f"{a} {b},{b}\n" for a, b in rows))
    (folder / "rows.csv").write_text("id,text\n" + "".join(f"{i},{sentence(2, 12)}\n" for i in range(100)))
    for prefix, count in (("", 30), ("dev-", 6)):
        lines = [sentence(2, 6) for _ in range(count)]
        (folder / f"{prefix}source.txt").write_text("".join(line + "\n" for line in lines))
        (folder / f"{prefix}target.txt").write_text("".join(" ".join(reversed(line.split())) + "\n" for line in lines))
    outputs = folder / "outputs"
    launch = Launch(lambda: _make_models(folder), folder, folder / "none", outputs)
    ended = run(launch)
    if ended.code != 0:
        raise RuntimeError(ended.outputs[0])


def _make_models(folder: Path) -> None:
    import torch

    from debertakit.config import DebertaConfig
    from debertakit.heads import DebertaForMaskedLM, DebertaForSequenceClassification
    from debertakit.text.tokenizer_training import train_tokenizer

    tokenizer = train_tokenizer(folder / "text.txt", kind="wordpiece", vocab_size=300)
    torch.manual_seed(0)
    config = DebertaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        position_buckets=16,
        initializer_range=0.1,
    )
    for kind, name in ((DebertaForMaskedLM, "encoder"), (DebertaForSequenceClassification, "classifier")):
        kind(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
