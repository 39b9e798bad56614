"""Compare token ids of our tokenizer and stock transformers with sentencepiece, on a real spm.model and real text.

    python benchmarks/tokenizer_parity.py SPM_MODEL TEXT_FILE... [--adversarial 20000]

Every non-empty line is one text. Prints, per file, how many texts get different ids from sentencepiece's, then the
totals and the speed. `--adversarial N` adds N random strings of combining marks, jamo, compatibility forms, control
characters and unassigned code points. These rarely occur in a corpus, but they test whether the character map is
identical.
"""

import argparse
import random
import tempfile
import time
import unicodedata
import warnings
from pathlib import Path

import sentencepiece
from transformers import AutoTokenizer, DebertaV2Tokenizer
from transformers.utils import logging

from debertakit.text.tokenizers import load_tokenizer

SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")  # these literals are special tokens by design


def adversarial(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    codes = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    marks = [c for c in codes if unicodedata.category(c)[0] == "M"]
    compatible = [c for c in codes if unicodedata.normalize("NFKD", c) != c]
    decomposed = [unicodedata.normalize("NFKD", c) for c in compatible]
    plain = " abcé1.\t\n中～\u200d\u200c\uff9e\x00\x85<0x41>"
    pools = [codes, codes[:0x3200], marks, compatible, decomposed, plain, plain]
    return ["".join(draw.choice(draw.choice(pools)) for _ in range(draw.randint(1, 24))) for _ in range(count)]


def timed(encode, texts):
    start = time.perf_counter()
    ids = [ids for at in range(0, len(texts), 1000) for ids in encode(texts[at : at + 1000])]
    return ids, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--adversarial", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()

    start = time.perf_counter()
    ours = load_tokenizer(args.model)
    print(f"loaded in {time.perf_counter() - start:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        saved = AutoTokenizer.from_pretrained(folder)
    truth = sentencepiece.SentencePieceProcessor(model_file=str(args.model))
    stock = DebertaV2Tokenizer.from_pretrained(args.model.parent)
    encoders = {
        "sentencepiece": truth.encode,
        "ours": lambda texts: ours(texts, add_special_tokens=False)["input_ids"],
        "ours, by AutoTokenizer": lambda texts: saved(texts, add_special_tokens=False)["input_ids"],
        "stock": lambda texts: stock(texts, add_special_tokens=False)["input_ids"],
    }
    corpora = {
        str(file): [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
        for file in args.files
    }
    if args.adversarial:
        corpora["adversarial"] = adversarial(args.adversarial)
    totals = dict.fromkeys(encoders, 0)
    seconds = dict.fromkeys(encoders, 0.0)
    compared = characters = 0
    for name, texts in corpora.items():
        texts = [text for text in texts if not any(special in text for special in SPECIALS)]
        results = {}
        for encoder, encode in encoders.items():
            results[encoder], spent = timed(encode, texts)
            seconds[encoder] += spent
        differ = {
            encoder: sum(a != b for a, b in zip(ids, results["sentencepiece"], strict=True))
            for encoder, ids in results.items()
        }
        totals = {encoder: totals[encoder] + n for encoder, n in differ.items()}
        compared, characters = compared + len(texts), characters + sum(map(len, texts))
        print(f"{name}: {len(texts)} texts; differ: " + ", ".join(f"{k} {v}" for k, v in list(differ.items())[1:]))
    print(f"\n{compared} texts, {characters / 1e6:.1f} M characters")
    for encoder, n in totals.items():
        print(f"{encoder:24} {n:7} differ   {characters / 1e6 / seconds[encoder]:6.2f} M characters/s")


if __name__ == "__main__":
    main()
