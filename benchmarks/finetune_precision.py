"""Compare fine-tuning in fp32 and bf16: speed of the same training steps, and of scoring.

    python benchmarks/finetune_precision.py [--shapes small v3-base translation] [--rounds 3] [--steps 6]

Uses one thread and measures the CPU time of this process, so other work on the machine has little effect. Weights and
tokens are random; text lengths are uniform from 16 to 128 tokens (RTE's mean is about 70). ``translation`` is a
DeBERTa-D on the encoder of ``small``. Rounds alternate between the precisions, and so does the order within a round.
Scoring runs without gradients under the same autocast as training; ``deberta evaluate`` itself always computes in fp32.
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
from debertakit.finetuning.seq2seq_trainer import BudgetBatches, PairCollator, PairRow, labelled_logits
from debertakit.finetuning.trainer import FinetuneTrainer
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
from debertakit.precision import autocast
from debertakit.pretraining.recipes import recipe
from debertakit.tasks.batches import Collator
from debertakit.tasks.features import TokenRow
from debertakit.tasks.losses import task_logits
from debertakit.training.optim import make_optimizer

SHAPES = {  # config, examples per step
    "small": (lambda: DebertaConfig(**recipe("small").model, vocab_size=16384), 32),
    "v3-base": (lambda: preset("deberta-v3-base"), 8),
}
CPU = torch.device("cpu")


class Tokenizer:
    """Stub with the only field that the collator reads."""

    pad_token_id = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, "translation"], default=[*SHAPES, "translation"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    for shape in arguments.shapes:
        measured: dict[str, list[tuple[float, float, float]]] = {"fp32": [], "bf16": []}
        for number in range(arguments.rounds):
            for precision in ("fp32", "bf16") if number % 2 == 0 else ("bf16", "fp32"):
                if shape == "translation":
                    found = measure_pairs(precision, arguments.steps, number)
                else:
                    found = measure(shape, precision, arguments.steps, number)
                measured[precision].append(found)
                trained, scored, loss = measured[precision][-1]
                print(
                    f"{shape:<12} round {number}  {precision}  training {trained:7,.0f} tokens/s  "
                    f"scoring {scored:7,.0f} tokens/s  loss {loss:.4f}",
                    flush=True,
                )
        pairs = list(zip(measured["bf16"], measured["fp32"], strict=True))
        ratios = [statistics.median(bf16[i] / fp32[i] for bf16, fp32 in pairs) for i in range(2)]
        print(f"{shape:<12} bf16 / fp32, median of rounds: training {ratios[0]:.2f}, scoring {ratios[1]:.2f}")


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
    with torch.inference_mode(), autocast(precision, CPU):
        for start in range(0, len(timed), batch):
            task_logits(model, collate(timed[start : start + batch]), "single-label")
    return tokens / trained, tokens / (time.process_time() - began), loss


def train(model, rows: list[TokenRow], batch: int, precision: str, seed: int, place: str) -> float:
    arguments = TrainingArguments(
        output_dir=place,
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        learning_rate=1e-5,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        seed=seed,
    )
    collate = Collator(Tokenizer(), "single-label")
    trainer = FinetuneTrainer(model, arguments, "single-label", rows, collate, dict, precision=precision)
    return trainer.train().training_loss


def measure_pairs(precision: str, steps: int, seed: int) -> tuple[float, float, float]:
    """The same measurements for translation, with 2,048 source and target tokens per step."""
    torch.manual_seed(seed)
    config = DebertaConfig(**{**recipe("small").model, "emd_steps": 0}, vocab_size=8192)
    model = DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=config, decoder_layers=4))
    texts = [row.ids[0] for row in random_rows(64 * (steps + 1), config.vocab_size, seed)]
    rows = [PairRow(source, target) for source, target in zip(texts, texts[::-1], strict=True)]
    order, collate = BudgetBatches([row.tokens for row in rows], 2048, seed), PairCollator(Tokenizer.pad_token_id)
    batches = [collate([[rows[i] for i in indices]]) for indices in order][: steps + 1]

    def logits_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return labelled_logits(model, batch, model.prepare_decoder_input_ids_from_labels(batch["labels"]))

    optimizer = make_optimizer(model, recipe("small").optimizer)
    losses = []
    for step, batch in enumerate(batches):
        if step == 1:  # the first step is a warm-up
            began, tokens = time.process_time(), 0
        with autocast(precision, CPU):
            logits = logits_of(batch)
        loss = torch.nn.functional.cross_entropy(logits.float(), batch["labels"][batch["labels"] >= 0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        tokens = 0 if step == 0 else tokens + int(batch["attention_mask"].sum()) + len(logits)
    trained = time.process_time() - began
    model.eval()
    began = time.process_time()
    with torch.inference_mode(), autocast(precision, CPU):
        for batch in batches[1:]:
            logits_of(batch)
    return tokens / trained, tokens / (time.process_time() - began), statistics.mean(losses[1:])


def random_rows(count: int, vocabulary: int, seed: int) -> list[TokenRow]:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(16, 129, count)
    return [
        TokenRow(number, [draw.integers(5, vocabulary, length).tolist()], label=int(draw.integers(2)))
        for number, length in enumerate(lengths)
    ]


if __name__ == "__main__":
    main()
