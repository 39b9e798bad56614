"""Compare the throughput of corpus preparation with that of the tokenizer alone on the same text.

    python benchmarks/corpus_throughput.py TEXT [TEXT ...] [--kind bpe] [--megabytes 30]

For each file, a tokenizer with a vocabulary of 8,192 is trained on the first 2 MB. Then three alternating rounds time
`encode_batch` alone, on text in memory, and `prepare`, which reads the file, cleans and tokenises it, finds words
(rjieba for Chinese) and writes shards. Prints both in tokens per second, and the throughput of `prepare` divided by
that of `encode_batch` (goal: 0.8).
"""

import argparse
import lzma
import statistics
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

from debertakit.text.corpus import prepare
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.text.tokenizers import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--kind", default="bpe")
    parser.add_argument("--megabytes", type=int, default=30)
    arguments = parser.parse_args()
    for file in arguments.files:
        with tempfile.TemporaryDirectory() as folder:
            measure(file, arguments.kind, arguments.megabytes << 20, Path(folder))


def measure(file: Path, kind: str, size: int, folder: Path) -> None:
    with lzma.open(file) if file.suffix == ".xz" else file.open("rb") as stream:
        data = stream.read(size).decode("utf-8", "ignore").encode()  # a cut may split a character
    (folder / "text.txt").write_bytes(data)
    (folder / "head.txt").write_bytes(data[: 2 << 20].rpartition(b"\n")[0])
    train_tokenizer(folder / "head.txt", kind=kind, vocab_size=8192).save_pretrained(folder / "tokenizer")
    tokenizer = load_tokenizer(folder / "tokenizer")
    backend = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    documents = data.decode("utf-8", "replace").split("\n\n")
    alone, whole = [], []
    for turn in range(3):
        start = time.perf_counter()
        count = 0
        for i in range(0, len(documents), 500):
            count += sum(map(len, backend.encode_batch(documents[i : i + 500], add_special_tokens=False)))
        alone.append(count / (time.perf_counter() - start))
        start = time.perf_counter()
        corpus = prepare(folder / "text.txt", tokenizer, folder / f"corpus-{turn}")
        whole.append((corpus.train.tokens + corpus.validation.tokens) / (time.perf_counter() - start))
    ratio = statistics.median(b / a for a, b in zip(alone, whole, strict=True))
    print(
        f"{file.name} ({corpus.manifest['language']}, {kind}): encode_batch {statistics.median(alone):,.0f} tokens/s, "
        f"prepare {statistics.median(whole):,.0f}, share {ratio:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
