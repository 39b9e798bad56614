"""Compare DeBERTa-D with transformers' Marian of the same size: same pairs, vocabulary, trainer and wall-clock time.

    python benchmarks/translation.py multi30k --data DATA/multi30k --out RUNS --model deberta-d --minutes 60
    python benchmarks/translation.py multi30k --data DATA/multi30k --out RUNS --model marian --minutes 60
    python benchmarks/translation.py aeslc --data DATA/aeslc --out RUNS --model deberta-d --infill 20 --minutes 15

``--infill`` first trains for this many minutes on the sources alone: spans with 30 % of their words are replaced by one
[MASK] each, and the decoder generates the whole text. An interrupted run resumes from its last checkpoint. Scores,
samples and times are written to RUNS/TASK-MODEL/results.json. For aeslc, the file also has a baseline: the first words
of the email.
"""

import argparse
import json
import platform
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel
from transformers.utils import logging

from debertakit.config import DebertaConfig
from debertakit.data.pairs import Pair, read_pairs
from debertakit.finetuning.options import Seq2SeqOptions
from debertakit.finetuning.seq2seq import score_texts, train_pairs
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
from debertakit.tasks.text_scores import text_scores
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.text.tokenizers import load_tokenizer

LAYERS, WIDTH, HEADS, DROPOUT, VOCABULARY = 3, 128, 4, 0.1, 4096
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


@dataclass(frozen=True)
class Task:
    read: Callable[[Path, str], list[Pair]]
    metric: str
    options: Seq2SeqOptions


MULTI30K_FILES = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
TASKS = {
    "multi30k": Task(
        lambda data, split: read_pairs(data / f"{MULTI30K_FILES[split]}.en", data / f"{MULTI30K_FILES[split]}.de"),
        "bleu",
        Seq2SeqOptions(step_tokens=2048, lr=2e-3, max_source=96, max_target=96),
    ),
    "aeslc": Task(
        lambda data, split: read_pairs(data / f"{split}.jsonl", fields=("body", "subject")),
        "rouge",
        Seq2SeqOptions(step_tokens=2048, lr=2e-3, max_source=128, max_target=32),
    ),
}


def deberta_d(vocabulary: int, longest: int) -> Any:
    shape = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": HEADS}
    dropout = {"hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT}
    positions = {"max_position_embeddings": longest, "position_buckets": 32, "emd_steps": 0}
    encoder = DebertaConfig(
        vocab_size=vocabulary, intermediate_size=4 * WIDTH, **shape, **dropout, **positions, num_labels=2
    )
    return DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=encoder, decoder_layers=LAYERS, **SPECIAL))


def _stock(config: type, model: type) -> Callable[[int, int], Any]:
    def make(vocabulary: int, longest: int) -> Any:
        halves = {f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in _HALF.items()}
        # Marian (0.02) and BART keep their own initialisation. Scaled embeddings are Marian's default recipe.
        given = {"vocab_size": vocabulary, "d_model": WIDTH, "max_position_embeddings": longest, "dropout": DROPOUT}
        given |= {"attention_dropout": DROPOUT, "scale_embedding": True, "forced_eos_token_id": None}
        return model(config(**given, **halves, **SPECIAL))

    return make


_HALF = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 4 * WIDTH}
MODELS = {
    "deberta-d": deberta_d,
    "marian": _stock(MarianConfig, MarianMTModel),
    "bart": _stock(BartConfig, BartForConditionalGeneration),
}


def tokenizer_for(folder: Path, pairs: list[Pair]) -> Any:
    """Load the tokenizer, or train it: one vocabulary for both sides, shared by all models."""
    if not (folder / "tokenizer.json").exists():
        texts = [text for pair in pairs for text in pair]
        train_tokenizer(texts, "unigram", VOCABULARY, progress=False).save_pretrained(folder)
    return load_tokenizer(folder)


def with_holes(texts: list[str], seed: int, longest: int = 80) -> list[Pair]:
    """Cut the texts into pieces of 10 to ``longest`` words. Returns pairs of masked and original pieces."""
    draw = random.Random(seed)
    pairs = []
    for text in texts:
        words = text.split()
        while len(words) >= 10:
            size = draw.randint(10, longest)
            piece, words = words[:size], words[size:]
            left, hidden = list(piece), 0
            while hidden < 0.3 * len(piece):
                length = min(1 + int(draw.expovariate(1 / 2)), 6)
                start = draw.randrange(len(left))
                hole = left[start : start + length]
                hidden += len(hole) - hole.count("[MASK]")
                left[start : start + length] = ["[MASK]"]
            pairs.append(Pair(" ".join(left), " ".join(piece)))
    return pairs


def leading_words(dev: list[Pair], test: list[Pair]) -> tuple[int, dict[str, float]]:
    """Baseline: the first n words of the body, with n chosen on the dev set."""

    def scores(pairs: list[Pair], n: int) -> dict[str, float]:
        texts = [" ".join(pair.source.split()[:n]) for pair in pairs]
        return text_scores("rouge", texts, [pair.target for pair in pairs])[0]

    best = max(range(3, 21), key=lambda n: scores(dev, n)["rouge1"])
    return best, scores(test, best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="deberta-d")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--infill", type=float, default=0, metavar="MINUTES")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test-lines", type=int, default=None, help="score only this many lines (quick check)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    task = TASKS[arguments.task]
    options = replace(task.options, minutes=arguments.minutes, lr=arguments.lr or task.options.lr)
    pairs, dev, test = (task.read(arguments.data, split) for split in ("train", "dev", "test"))
    test = test[: arguments.test_lines]
    tokenizer = tokenizer_for(arguments.out / f"{arguments.task}-tokenizer", pairs)
    torch.manual_seed(arguments.seed)
    longest = max(options.max_source, options.max_target)
    model = MODELS[arguments.model](len(tokenizer), longest)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{arguments.model}: {parameters / 1e6:.2f} M parameters, {len(pairs):,} pairs, {len(tokenizer):,} pieces")

    out = arguments.out / f"{arguments.task}-{arguments.model}"
    if arguments.infill:
        holes = with_holes([pair.source for pair in pairs], arguments.seed)
        before = replace(options, minutes=arguments.infill, max_target=options.max_source)
        print(f"{len(holes):,} texts for infilling")
        train_pairs(model, tokenizer, holes[500:], holes[:500], before, arguments.seed, out / "infilled")
    trainer = train_pairs(model, tokenizer, pairs, dev, options, arguments.seed, out)
    training = {"steps": trainer.state.global_step, "minutes": trainer.elapsed / 60, **trainer.dev_figures()}
    began = time.monotonic()
    scores = score_texts(model.eval(), tokenizer, test, options, task.metric)
    results = {
        "task": arguments.task,
        "model": arguments.model,
        "parameters": parameters,
        "machine": f"{platform.machine()}, {arguments.threads} threads, torch {torch.__version__}",
        "training": training,
        "test": scores.figures,
        "signatures": scores.signatures,
        "seconds_to_write": time.monotonic() - began,
        "samples": [
            {"source": pair.source, "reference": pair.target, "written": text}
            for pair, text in list(zip(test, scores.texts, strict=True))[:20]
        ],
    }
    if arguments.task == "aeslc":
        n, lead = leading_words(dev, test)
        results["leading_words"] = {"words": n, **lead}
    (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")
    (out / "written.txt").write_text("".join(f"{text}\n" for text in scores.texts), encoding="utf-8")
    print(json.dumps({key: value for key, value in results.items() if key != "samples"}, indent=1))
    for sample in results["samples"][:5]:
        print("\n".join(f"{name:<10} {text}" for name, text in sample.items()), end="\n\n")


if __name__ == "__main__":
    main()
