"""Held-out masked-LM loss by position, for checkpoints of ours at any length.

    python benchmarks/length.py MODEL... --corpus CORPUS [--length 512] [--tokens 100000]

Every model reads the same texts of up to ``--length`` tokens with the same masks (15 % of the tokens, 80/10/10). Only
texts of at least half that length count. The columns are quarters of the length, then all positions.
"""

import argparse

import numpy as np
import torch
from torch.nn import functional as F

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives.base import Context, masked_view
from debertakit.text.masking import Masking
from debertakit.text.packing import Packing
from debertakit.text.shards import Corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=100_000)
    options = parser.parse_args()
    corpus = Corpus.open(options.corpus)
    columns = [f"{low}-{high}" for low, high in quarters(options.length)]
    print(f"{'model':<40}" + "".join(f"{column:>12}" for column in (*columns, "all")))
    for name in options.models:
        losses, counts = losses_by_position(DebertaForMaskedLM.from_pretrained(name).eval(), corpus, options)
        losses = [*losses, (losses * counts).sum() / counts.sum()]
        print(f"{name:<40}" + "".join(f"{loss:>12.3f}" for loss in losses), f"  ({counts.sum():,} tokens)")


def quarters(length: int) -> list[tuple[int, int]]:
    return [(length * i // 4, length * (i + 1) // 4) for i in range(4)]


@torch.no_grad()
def losses_by_position(model, corpus, options):
    packing = Packing(corpus.validation, options.length, 8192, seed=0)
    context = Context(corpus.validation, Masking("token"), seed=0)
    sums, counts = np.zeros(4), np.zeros(4, int)
    for step in range(options.tokens // packing.step_tokens):
        batch = packing.batch(step)
        view = masked_view(batch, context, 0.0)
        rows, targets = (torch.from_numpy(np.asarray(each)) for each in (view.masked.positions, view.masked.targets))
        losses = F.cross_entropy(model.predict(view.packed(), rows), targets, reduction="none").numpy()
        lengths = batch.lengths.astype(int)
        place = np.concatenate([np.arange(n) for n in lengths])[rows.numpy()]
        long = np.repeat(lengths, lengths)[rows.numpy()] >= options.length // 2
        quarter = place * 4 // options.length
        for i in range(4):
            chosen = long & (quarter == i)
            sums[i] += losses[chosen].sum()
            counts[i] += chosen.sum()
    return sums / counts.clip(min=1), counts


if __name__ == "__main__":
    main()
