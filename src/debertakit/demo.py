"""make demo: pretrain a small DeBERTa and a BERT of the same size from scratch, without downloads.

The text is the documentation that ships with Python: the language reference (``pydoc_data.topics``) and the docstrings
of the standard library. Both models get the same tokenizer, batches, masks, optimiser and training time. "BERT" is the
model of the recipe ``tiny-absolute``: the same encoder with absolute positions added to the input and plain content
attention. Its learning rate is half of DeBERTa's, because at the full rate a model with absolute positions does not
leave the plateau (docs/log.md). Finally, both models and a unigram baseline predict masked words in held-out documents.
"""

import ast
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from debertakit.heads import DebertaForMaskedLM
from debertakit.inference.fill import fill_mask
from debertakit.objectives.base import Context, masked_view
from debertakit.pretraining.loop import pretrain
from debertakit.pretraining.recipes.deberta import tiny, tiny_absolute
from debertakit.pretraining.settings import PretrainConfig
from debertakit.text.corpus import Corpus, prepare
from debertakit.text.packing import PackedBatch, Packing
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.training import log

SENTENCES = (
    "Return the number of [MASK] in the list.",
    "This method raises a [MASK] if the value is not found.",
    "If the file does not [MASK], an exception is raised.",
)


def python_documentation() -> Iterator[str]:
    """Yield one document per topic of the language reference and one per module of the standard library."""
    from pydoc_data.topics import topics

    yield from topics.values()
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(library.rglob("*.py")):
        if {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(file.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
        text = "\n".join(doc for doc in found if doc)
        if len(text) > 200:
            yield text


def write_corpus(path: Path) -> int:
    """Write one paragraph per line, with a blank line between documents. Returns the number of characters."""
    documents = []
    for text in python_documentation():
        paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
        documents.append("\n".join(part for part in paragraphs if part))
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return sum(map(len, documents))


def contestants(minutes: float) -> dict[str, PretrainConfig]:
    """Recipes of both models. They differ only in positions and learning rate."""
    base = tiny()
    deberta = replace(
        base,
        name="DeBERTa",
        minutes=minutes,
        steps=1_000_000,
        masking=replace(base.masking, strategy="token"),
        data=replace(base.data, vocab_size=4096),
        log_every=50,
        evaluate_every=40,
        evaluate_tokens=1 << 14,
        checkpoint_every=1_000_000,
    )
    bert = replace(
        deberta,
        name="BERT",
        model=tiny_absolute().model,
        optimizer=replace(deberta.optimizer, lr=deberta.optimizer.lr / 2),
    )
    return {"DeBERTa": deberta, "BERT": bert}


@dataclass(frozen=True)
class Accuracy:
    top1: float
    top5: float


@torch.inference_mode()
def mask_accuracy(model: DebertaForMaskedLM, batches: list[PackedBatch], context: Context) -> Accuracy:
    model.eval()
    top1 = top5 = total = 0
    for batch in batches:
        view = masked_view(batch, context, 0.0)
        assert view.masked is not None
        rows, targets = torch.from_numpy(view.masked.positions), torch.from_numpy(view.masked.targets)
        logits = model.predict(view.packed(), rows.long())
        right = logits.topk(5).indices == targets.long()[:, None]
        top1 += int(right[:, 0].sum())
        top5 += int(right.any(1).sum())
        total += len(targets)
    return Accuracy(top1 / total, top5 / total)


def unigram_accuracy(corpus: Corpus, batches: list[PackedBatch], context: Context) -> Accuracy:
    """Compute the accuracy of always predicting the most frequent words of the training text."""
    counts = np.zeros(1, dtype=np.int64)
    for i in range(len(corpus.train)):
        here = np.bincount(corpus.train.document(i)[0])
        counts = np.pad(counts, (0, max(0, len(here) - len(counts))))
        counts[: len(here)] += here
    best = np.argsort(-counts)[:5]
    masked = [masked_view(batch, context, 0.0).masked for batch in batches]
    targets = np.concatenate([m.targets for m in masked if m is not None])
    return Accuracy(float((targets == best[0]).mean()), float(np.isin(targets, best).mean()))


def draw(folders: dict[str, Path], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="seconds of training", ylabel="validation loss, nats per masked word")
    for name, folder in folders.items():
        records = [record for record in log.read(folder / "log.jsonl") if record["kind"] == "validation"]
        axes.plot([r["elapsed"] for r in records], [r["loss"] for r in records], marker="o", markersize=3, label=name)
    axes.set_title("same size, same text, same training time")
    axes.legend()
    axes.grid(alpha=0.3)
    FigureCanvasAgg(figure).print_png(str(path))


def main(out: Path = Path("out/demo"), minutes: float = 1.1) -> dict[str, Accuracy]:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    print("1. Text: the documentation that ships with Python.")
    characters = write_corpus(out / "text.txt")
    configs = contestants(minutes)
    data = configs["DeBERTa"].data
    tokenizer = train_tokenizer([out / "text.txt"], kind="bpe", vocab_size=data.vocab_size)
    corpus = prepare(out / "text.txt", tokenizer, out / "corpus")
    print(f"   {characters / 1e6:.1f} M characters, {corpus.train.tokens:,} tokens for training, "
          f"{corpus.validation.tokens:,} held out.")  # fmt: skip
    folders, models = {}, {}
    for number, (name, config) in enumerate(configs.items(), start=2):
        print(f"\n{number}. Pretrain {name} from scratch: {60 * minutes:.0f} s on {torch.get_num_threads()} threads.")
        folders[name] = out / name.lower()
        pretrain(config, corpus, tokenizer, folders[name])
        models[name] = DebertaForMaskedLM.from_pretrained(folders[name])

    context = Context(corpus.validation, configs["DeBERTa"].masking, seed=1)
    batches = Packing(corpus.validation, data.max_length, data.step_tokens, 0, data.mode).once(1 << 15)
    results = {"unigram": unigram_accuracy(corpus, batches, context)}
    results |= {name: mask_accuracy(model, batches, context) for name, model in models.items()}
    print("\n4. Accuracy on masked words in held-out documents:")
    for name, result in results.items():
        print(f"   {name:<10} top-1 {result.top1:6.1%}   top-5 {result.top5:6.1%}")
    draw(folders, out / "demo.png")
    print(f"\n5. Fill masks with the DeBERTa in {folders['DeBERTa']}:")
    for sentence in SENTENCES:
        guesses = fill_mask(sentence, models["DeBERTa"], tokenizer, top=5)[0]
        print(f"   {sentence}\n      " + ", ".join(f"{g.token} {g.probability:.0%}" for g in guesses))
    print(f"\nLoss curves: {out / 'demo.png'}. Now try: deberta fill 'a [MASK]' --model {folders['DeBERTa']}")
    return results


if __name__ == "__main__":
    main()
