"""``make demo``: fill masks, find sentences, fine-tune, pretrain, and time this package against transformers.

1. The bundled models fill masks in English and Chinese.
2. They find the sentences nearest to a query.
3. ``deberta finetune`` trains the English model to tell which package of Python a docstring comes from.
4. A tiny DeBERTa and a BERT of the same size are pretrained from scratch on Python's documentation (race.py).
5. The forward pass is timed next to transformers' DeBERTa and BERT.

Everything is written to the folder ``demo``; report.html shows all of it.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch

from debertakit.bench.options import BenchOptions
from debertakit.bench.report import NAMES
from debertakit.bench.suites import inference
from debertakit.demo import documentation
from debertakit.demo.race import contestants, held_out, mask_accuracy, race, unigram_accuracy
from debertakit.demo.report import Shown, write_report
from debertakit.files import write_text
from debertakit.finetuning.train import finetune
from debertakit.inference.fill import Candidate, fill_mask
from debertakit.inference.tasks import load
from debertakit.model_names import BUNDLED, bundled_folder
from debertakit.text.corpus import prepare
from debertakit.text.tokenizer_training import train_tokenizer

MASKED = {
    "en": (
        "The book was [MASK] in 1999 by a small press.",
        "The river flows into the [MASK].",
        "The capital of France is [MASK].",
    ),
    "zh": ("北京是[MASK]国的首都", "他毕业于清华大[MASK]。", "这本书于1999年[MASK]版。"),
}
QUERIES = ("wait until another task is finished", "read a message from a file", "report which tests failed")
CHINESE = (
    "他在银行工作。",
    "这条河每年夏天都会涨水。",
    "球队昨晚赢得了比赛。",
    "新的铁路连接了两座城市。",
    "她写了三本小说。",
)
CHINESE_QUERY = "火车站去年建成通车。"
AFTER = ("Return the number of [MASK] in the list.", "This method raises a [MASK] if the value is not found.")
MARK = "This folder was written by make demo, which deletes it when it runs again.\n"


def main(out: Path = Path("demo"), minutes: float = 1.6, bench: BenchOptions | None = None) -> Shown:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    _empty(out)
    shown = Shown()
    models = {language: folder for language, name in BUNDLED.items() if (folder := bundled_folder(name)) is not None}
    sentences = documentation.write_task(out / "docstrings.csv")
    if models:
        print("1. Fill masks with the bundled models:")
        for language, folder in models.items():
            shown.masks += _fill(folder, MASKED[language])
        print("\n2. Find the nearest sentences:")
        if "en" in models:
            shown.nearest += _nearest(models["en"], QUERIES, sentences)
        if "zh" in models:
            shown.nearest += _nearest(models["zh"], (CHINESE_QUERY,), CHINESE)
        if "en" in models:
            print(f"\n3. Fine-tune: which package of Python is a docstring from? ({out / 'docstrings.csv'})")
            shown.tuned = finetune(models["en"], out / "packages", train=out / "docstrings.csv", epochs=3, lr=3e-4)
            print(f"   {shown.tuned.verdict}")
    else:
        print("1. to 3. are skipped: this installation has no bundled models.")
    _pretrain(out, minutes, shown)
    print("\n5. Time per forward pass, in milliseconds (4 layers in the shape of deberta-v3-base):")
    for measured in inference(bench or BenchOptions(seconds=2.5, quick=True)):
        shown.times.append(measured)
        times = {name: timing for name, timing in measured.times.items() if timing is not None}
        listed = "   ".join(f"{NAMES[name]} {timing.median:.0f}" for name, timing in times.items())
        print(f"   {measured.work:<8} {listed}")
    write_report(out / "report.html", shown)
    print(f"\nReport: {(out / 'report.html').resolve()}")
    print(f"Next: deberta serve   or   deberta fill 'a [MASK] function' --model {out / 'deberta'}")
    return shown


def _empty(out: Path) -> None:
    """Make an empty folder. Only an earlier demo is deleted."""
    mark = out / "MADE-BY-DEMO"
    if out.exists() and any(out.iterdir()) and not mark.exists():
        raise ValueError(f"{out.resolve()} already exists and was not written by the demo; rename it")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write_text(mark, MARK)


def _fill(folder: Path, texts: tuple[str, ...]) -> list[tuple[str, list[Candidate]]]:
    predict = load(folder, "fill")
    filled = [(text, fill_mask(text, predict.model, predict.tokenizer)[0]) for text in texts]
    for text, guesses in filled:
        print(f"   {text}\n      " + ", ".join(f"{guess.token} {guess.probability:.0%}" for guess in guesses))
    return filled


def _nearest(
    folder: Path, queries: tuple[str, ...], sentences: list[str] | tuple[str, ...], top: int = 3
) -> list[tuple[str, list[tuple[float, str]]]]:
    """The sentences nearest to each query. The mean vector is subtracted: all texts share it, so it says nothing."""
    embed = load(folder, "embed", max_length=64)
    vectors = np.array([result.embedding for result in embed([*sentences, *queries])])
    vectors -= vectors[: len(sentences)].mean(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors[len(sentences) :] @ vectors[: len(sentences)].T
    found = []
    for query, row in zip(queries, similarity, strict=True):
        best = [(float(row[i]), sentences[i]) for i in np.argsort(-row)[:top]]
        found.append((query, best))
        print(f"   {query}\n" + "\n".join(f"      {score:.2f}  {text[:90]}" for score, text in best))
    return found


def _pretrain(out: Path, minutes: float, shown: Shown) -> None:
    print("\n4. Pretrain a DeBERTa and a BERT of the same size from scratch, step by step in turn.")
    characters = documentation.write_corpus(out / "text.txt")
    configs = contestants(minutes)
    deberta = configs["DeBERTa"]
    tokenizer = train_tokenizer([out / "text.txt"], kind="bpe", vocab_size=deberta.data.vocab_size)
    corpus = prepare(out / "text.txt", tokenizer, out / "corpus")
    print(
        f"   Text: Python's documentation, {characters / 1e6:.1f} M characters; {corpus.train.tokens:,} tokens for "
        f"training, {corpus.validation.tokens:,} held out. {torch.get_num_threads()} threads."
    )
    shown.racers = race(configs, corpus, tokenizer)
    batches, context = held_out(corpus, deberta)
    shown.accuracy = {"unigram": unigram_accuracy(corpus, batches, context)}
    shown.accuracy |= {name: mask_accuracy(racer.model, batches, context) for name, racer in shown.racers.items()}
    print(f"   {shown.steps} steps each. Masked words in held-out documents:")
    for name, result in shown.accuracy.items():
        print(f"   {name:<10} first guess right {result.top1:6.1%}   among the first five {result.top5:6.1%}")
    for name, racer in shown.racers.items():
        racer.model.save_pretrained(out / name.lower())
        tokenizer.save_pretrained(out / name.lower())
    shown.after = _fill(out / "deberta", AFTER)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"demo: {error}")
