"""Train a classifier on a CSV, score it on rows that it has not seen, and classify new texts.

python examples/classify_csv.py [MODEL]      the default model is bundled with debertakit: no network, about 20 seconds
"""

import csv
import sys
import tempfile
from itertools import product
from pathlib import Path

from debertakit import finetune, load

MODEL = sys.argv[1] if len(sys.argv) > 1 else "en-small"
THINGS = ["the soup", "the bread", "our waiter", "the coffee", "the terrace", "the music", "the dessert", "the wine"]
SAID = {
    "good": ["was wonderful", "made our evening", "was a pleasure", "was better than ever"],
    "bad": ["was a disappointment", "spoiled our evening", "was a mistake", "was worse than ever"],
}
ENDS = ["as always", "on Sunday", "for everyone at the table", "this time", "again", "in the end"]


def write(path: Path, things: list[str]) -> None:
    rows = []
    for opinion, verdicts in SAID.items():
        rows += [(" ".join(parts), opinion) for parts in product(things, verdicts, ENDS)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("review", "opinion"), *rows])


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="classify-"))
    write(folder / "train.csv", THINGS[2:])
    write(folder / "dev.csv", THINGS[:2])  # soup and bread are not in the training data
    columns = {"text": "review", "label": "opinion"}
    result = finetune(MODEL, folder / "run", train=folder / "train.csv", dev=folder / "dev.csv", **columns)
    print(f"accuracy on new subjects: {result.scores['accuracy']:.1f} %; report: {folder / 'run' / 'report.html'}")

    classify = load(folder / "run")
    for answer in classify(["the cake was wonderful", "my chair was a mistake"]):
        print(f"{answer.headline()}  {answer.confidence():.0%}")


if __name__ == "__main__":
    main()
