"""Measure the time of generation with and without the cache, and the time per token by context length.

    python benchmarks/generation.py --threads 1 [--layers 6 --width 384] [--out figures.json]

The weights are random: they change the output, not the time. Times are CPU seconds of the process divided by the number
of threads, so that other processes do not count. Each figure is the minimum over --rounds interleaved rounds.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from debertakit.config import DebertaConfig
from debertakit.generation.causal import DebertaForCausalLM
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig

TOKENS = 256
LENGTHS = (64, 128, 256, 512, 1024)
CHUNK = 16


def seconds(work: Callable[[], object], threads: int) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) / threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--models", nargs="+", default=["causal", "deberta-d", "gpt2"])
    parser.add_argument("--batch", type=int, default=1, help="number of texts generated together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    shape = {"num_hidden_layers": options.layers, "hidden_size": options.width, "vocab_size": 8192}
    shape |= {"num_attention_heads": options.width // 32, "intermediate_size": 4 * options.width}
    config = DebertaConfig(**shape, emd_steps=0)
    gpt2 = GPT2Config(
        vocab_size=8192, n_embd=options.width, n_layer=options.layers, n_head=options.width // 32, n_positions=2048
    )
    makers = {
        "causal": lambda: DebertaForCausalLM(config),
        "deberta-d": lambda: DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=config)),
        "gpt2": lambda: GPT2LMHeadModel(gpt2),
    }
    models = {name: makers[name]().eval() for name in options.models}
    prompt = torch.randint(4, 8192, (options.batch, 8))
    ends = {"eos_token_id": None, "pad_token_id": 0}
    figures: dict[str, dict] = {"write": {}, "token": {}}

    works = {
        (name, cached): lambda model=model, cached=cached: model.generate(
            prompt, max_new_tokens=TOKENS, do_sample=False, use_cache=cached, **ends
        )
        for name, model in models.items()
        for cached in (True, False)
    }
    best: dict = {}
    for _ in range(options.rounds):
        for key, work in works.items():
            best[key] = min(best.get(key, 1e9), seconds(work, options.threads))
    print(f"{TOKENS} tokens, {options.layers} x {options.width}, batch {options.batch}, {options.threads} thread(s)")
    print(f"{'model':<12}{'cached':>10}{'uncached':>10}{'ratio':>8}")
    for name in models:
        cached, uncached = best[name, True], best[name, False]
        figures["write"][name] = {"cached": cached, "recomputed": uncached, "ratio": uncached / cached}
        print(f"{name:<12}{cached:>8.2f} s{uncached:>8.2f} s{uncached / cached:>7.1f}x")

    print("\nmilliseconds per token, by number of cached tokens")
    print(f"{'model':<12}" + "".join(f"{length:>9}" for length in LENGTHS))
    with torch.inference_mode():
        for name in [name for name in models if name != "deberta-d"]:
            row = {length: 1e3 * token_time(models[name], length, options) for length in LENGTHS}
            figures["token"][name] = row
            print(f"{name:<12}" + "".join(f"{value:>9.2f}" for value in row.values()))
    if options.out is not None:
        options.out.write_text(json.dumps({"options": vars(options) | {"out": None}, **figures}, indent=1))


def token_time(model, length: int, options: argparse.Namespace) -> float:
    """Seconds per token after a context of ``length`` tokens: the mean over the next CHUNK tokens."""
    cache = model(torch.randint(4, 8192, (1, length)), use_cache=True).past_key_values
    token = torch.randint(4, 8192, (1, 1))

    def steps() -> None:
        for _ in range(CHUNK):
            model(token, past_key_values=cache, logits_to_keep=1)
        cache.crop(-CHUNK)

    steps()
    return min(seconds(steps, options.threads) for _ in range(3 * options.rounds)) / CHUNK


if __name__ == "__main__":
    main()
