"""Compare the speed of one fine-tuning job: the plain Hugging Face example and debertakit.

    python benchmarks/finetune_speed.py DATA --out FILE.json [--task rte] [--model DIR] [--rounds 3] [--steps 12]

The plain example uses the Trainer, a padding collator and transformers' DeBERTa. Both start from the same weights
(--model; by default a random DeBERTa with 6 layers, width 384 and MiniLM's vocabulary), read the same examples, 32 per
step, and train for the same number of steps. The order alternates between rounds. Each round trains both from the start
with its own seed, then evaluates both on the whole dev set.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from minilm import minilm
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments
from transformers.utils import logging

from debertakit import DebertaConfig, DebertaForMaskedLM
from debertakit.finetuning.evaluation import Evaluator
from debertakit.finetuning.trainer import FinetuneTrainer
from debertakit.loading import load_for_training
from debertakit.tasks import suites
from debertakit.tasks.batches import Collator
from debertakit.tasks.features import ExampleEncoder

FOLDERS = {"rte": "glue/RTE", "sst2": "glue/SST-2", "cola": "glue/CoLA"}
BATCH, MAX_LENGTH = 32, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=FOLDERS, default="rte")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", type=Path, default=None, help="pretrained DeBERTa to start from")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    task = suites.task(arguments.task)
    splits = task.read(arguments.data / FOLDERS[arguments.task])
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model or minilm())
    rows = []
    with tempfile.TemporaryDirectory() as place:
        start = arguments.model or random_weights(Path(place) / "start", len(tokenizer))
        for number in range(arguments.rounds):
            ways = [("hf", plain), ("ours", ours)]
            for name, way in ways if number % 2 == 0 else ways[::-1]:
                trained, evaluated, accuracy = way(start, task, splits, tokenizer, arguments.steps, number, place)
                row = {"round": number, "way": name, "train": trained, "evaluate": evaluated, "accuracy": accuracy}
                rows.append(row)
                print(
                    f"round {number}  {name:<5} training {trained:7.1f} examples/s  evaluation {evaluated:7.1f} "
                    f"examples/s  accuracy {accuracy:.2f}",
                    flush=True,
                )
    summary = {}
    for what in ("train", "evaluate"):
        pairs = [[r[what] for r in rows if r["way"] == way] for way in ("ours", "hf")]
        summary[what] = statistics.median(a / b for a, b in zip(*pairs, strict=True))
    print(f"ours / hf, median of rounds: training {summary['train']:.2f}, evaluation {summary['evaluate']:.2f}")
    content = {"task": arguments.task, "steps": arguments.steps, "threads": torch.get_num_threads(), "ratio": summary}
    arguments.out.write_text(json.dumps({**content, "rounds": rows}, indent=1), encoding="utf-8")


def random_weights(folder: Path, vocabulary: int) -> Path:
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    DebertaForMaskedLM(DebertaConfig(**shape, vocab_size=vocabulary, type_vocab_size=0)).save_pretrained(folder)
    return folder


def training_arguments(place: str, steps: int, seed: int, **more) -> TrainingArguments:
    return TrainingArguments(
        output_dir=f"{place}/out",
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        learning_rate=1e-4,
        warmup_steps=0.1,
        max_steps=steps,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=seed,
        **more,
    )


def plain(start, task, splits, tokenizer, steps, seed, place):
    """Train and evaluate as the transformers examples do."""
    index = {label: number for number, label in enumerate(task.labels)}

    def rows(examples):
        encoded = tokenizer(
            [e.text if e.pair is None else (e.text, e.pair) for e in examples], truncation=True, max_length=MAX_LENGTH
        )
        return [{**{key: encoded[key][i] for key in encoded}, "labels": index[e.label]} for i, e in enumerate(examples)]

    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(start, num_labels=len(index))
    trainer = Trainer(
        model,
        training_arguments(place, steps, seed),
        DataCollatorWithPadding(tokenizer),
        rows(splits["train"]),
        rows(splits["dev"]),
        compute_metrics=lambda p: {"accuracy": 100 * float(np.mean(p.predictions.argmax(-1) == p.label_ids))},
    )
    began = time.perf_counter()
    trainer.train()
    trained = time.perf_counter()
    accuracy = trainer.evaluate()["eval_accuracy"]
    return steps * BATCH / (trained - began), len(splits["dev"]) / (time.perf_counter() - trained), accuracy


def ours(start, task, splits, tokenizer, steps, seed, place):
    encoder = ExampleEncoder(task.kind, tokenizer, task.labels, MAX_LENGTH)
    train, dev = encoder.encode(splits["train"]).rows, encoder.encode(splits["dev"]).rows
    torch.manual_seed(seed)
    model = load_for_training(start, task.kind, task.labels)
    arguments = training_arguments(place, steps, seed, remove_unused_columns=False)
    trainer = FinetuneTrainer(model, arguments, task.kind, train, Collator(tokenizer, task.kind), dict)
    evaluator = Evaluator(model, task, encoder)
    began = time.perf_counter()
    trainer.train()
    trained = time.perf_counter()
    accuracy = evaluator(splits["dev"], dev).scores["accuracy"]
    return steps * BATCH / (trained - began), len(splits["dev"]) / (time.perf_counter() - trained), accuracy


if __name__ == "__main__":
    main()
