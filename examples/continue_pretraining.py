"""Continue pretraining on your own text, and compare what the model predicts before and after.

python examples/continue_pretraining.py [MODEL [TEXT]]      without arguments: the bundled model, and Python's reference
"""

import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

from debertakit import DebertaForMaskedLM, fill_mask, load_tokenizer, pretrain
from debertakit.model_names import check_model

MODEL = check_model(sys.argv[1] if len(sys.argv) > 1 else "en-small")  # the folder of the model
QUESTION = "If the attribute is not found, an [MASK] is raised."
SETTINGS = ["steps=60", "optimizer.lr=5e-4", "optimizer.warmup_steps=6", "evaluate_every=30", "data.max_length=64"]


def documents() -> str:
    """Python's language reference, part of every installation: one document per topic, separated by empty lines."""
    return "\n\n".join(" ".join(text.split()) for text in topics.values())


def show(model: str | Path) -> None:
    network, tokenizer = DebertaForMaskedLM.from_pretrained(model), load_tokenizer(str(model))
    for candidate in fill_mask(QUESTION, network, tokenizer, top=3)[0]:
        print(f"  {candidate.probability:6.1%}  {candidate.token}")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="continue-"))
    corpus = Path(sys.argv[2]) if len(sys.argv) > 2 else folder / "text.txt"
    if len(sys.argv) < 3:
        corpus.write_text(documents(), encoding="utf-8")
    # The weights, the shape and the tokenizer come from the model; the recipe sets the objective and the optimiser.
    metrics = pretrain("small", str(corpus), folder / "run", init=MODEL, assignments=SETTINGS)
    print(f"validation loss {metrics['loss']:.2f}; the model is in {folder / 'run'}")
    for name, model in (("before", MODEL), ("after", folder / "run")):
        print(f"{QUESTION} ({name})")
        show(model)


if __name__ == "__main__":
    main()
