"""Fine-tuning in fp32 against bf16: speed of the same training steps, and of scoring.

    python benchmarks/finetune_precision.py [--shapes small v3-base] [--rounds 3] [--steps 6]

One thread, timed by the CPU time of this process, so that other work on the machine disturbs little. The weights and
the tokens are random; text lengths are uniform from 16 to 128 tokens (RTE's mean is about 70). Rounds alternate between
the precisions, and so does the order within a round. Scoring runs without gradients under the same autocast as
training; ``deberta evaluate`` itself always computes in fp32.
"""

import argparse
import statistics
import tempfile
import time

import numpy as np
import torch
from transformers import TrainingArguments
from transformers.utils import logging

from debertakit import DebertaForSequenceClassification
from debertakit.config import DebertaConfig, preset
from debertakit.finetuning.batches import Collator
from debertakit.finetuning.features import Row
from debertakit.finetuning.losses import task_logits
from debertakit.finetuning.trainer import FinetuneTrainer
from debertakit.pretraining.recipes import recipe

SHAPES = {  # config, examples per step
    "small": (lambda: DebertaConfig(**recipe("small").model, vocab_size=16384), 32),
    "v3-base": (lambda: preset("deberta-v3-base"), 8),
}


class Tokenizer:
    """The one field that the collator reads."""

    pad_token_id = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    for shape in arguments.shapes:
        measured: dict[str, list[tuple[float, float, float]]] = {"fp32": [], "bf16": []}
        for number in range(arguments.rounds):
            for precision in ("fp32", "bf16") if number % 2 == 0 else ("bf16", "fp32"):
                measured[precision].append(measure(shape, precision, arguments.steps, number))
                trained, scored, loss = measured[precision][-1]
                print(
                    f"{shape:<8} round {number}  {precision}  training {trained:7,.0f} tokens/s  "
                    f"scoring {scored:7,.0f} tokens/s  loss {loss:.4f}",
                    flush=True,
                )
        pairs = list(zip(measured["bf16"], measured["fp32"], strict=True))
        ratios = [statistics.median(bf16[i] / fp32[i] for bf16, fp32 in pairs) for i in range(2)]
        print(f"{shape:<8} bf16 over fp32, median of rounds: training {ratios[0]:.2f}, scoring {ratios[1]:.2f}")


def measure(shape: str, precision: str, steps: int, seed: int) -> tuple[float, float, float]:
    """Tokens per second of training and of scoring, and the mean training loss."""
    make, batch = SHAPES[shape]
    torch.manual_seed(seed)
    model = DebertaForSequenceClassification(make())
    rows = random_rows(batch * (steps + 1), model.config.vocab_size, seed)
    warm_up, timed = rows[:batch], rows[batch:]
    tokens = sum(row.tokens for row in timed)
    with tempfile.TemporaryDirectory() as place:
        train(model, warm_up, batch, precision, seed, place)
        began = time.process_time()
        loss = train(model, timed, batch, precision, seed, place)
        trained = time.process_time() - began
    model.eval()
    collate = Collator(Tokenizer(), "single-label")
    began = time.process_time()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        for start in range(0, len(timed), batch):
            task_logits(model, collate(timed[start : start + batch]), "single-label")
    return tokens / trained, tokens / (time.process_time() - began), loss


def train(model, rows: list[Row], batch: int, precision: str, seed: int, place: str) -> float:
    arguments = TrainingArguments(
        output_dir=place,
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        learning_rate=1e-5,
        use_cpu=True,
        bf16=precision == "bf16",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        seed=seed,
    )
    trainer = FinetuneTrainer(model, arguments, "single-label", rows, Collator(Tokenizer(), "single-label"), dict)
    return trainer.train().training_loss


def random_rows(count: int, vocabulary: int, seed: int) -> list[Row]:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(16, 129, count)
    return [
        Row(number, [draw.integers(5, vocabulary, length).tolist()], label=int(draw.integers(2)))
        for number, length in enumerate(lengths)
    ]


if __name__ == "__main__":
    main()
