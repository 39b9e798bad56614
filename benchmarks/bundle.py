"""Make a bundled model from a finished pretraining run: fp16 weights, tokenizer, run.json and a model card.

    python benchmarks/bundle.py RUN src/debertakit/bundled/en-small --language en \\
        --data "English Wikipedia (2026-11), 200 MB" --licence CC-BY-SA-4.0 --scores scores.md

The folder may have at most 16 MB. ``--scores``: a Markdown file for the section "Scores" of the card.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from debertakit.files import replacing, write_json, write_text
from debertakit.pretraining import settings
from debertakit.text.tokenizers import TOKENIZER_FILES
from debertakit.training import log

MOST_BYTES = 16_000_000
CURVE_POINTS = 12


def bundle(run: Path, out: Path, *, language: str, data: str, licence: str, scores: str = "") -> int:
    """Write the folder. Returns its size in bytes."""
    if not (run / "model.safetensors").is_file():
        raise SystemExit(f"{run} is not a finished run: it has no model.safetensors")
    weights = {name: tensor.half() for name, tensor in load_file(run / "model.safetensors").items()}
    lost = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if lost:
        raise SystemExit(f"{lost[0]} has values that fp16 cannot hold")
    with replacing(out) as folder:
        folder.mkdir()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)  # safetensors writes a file that only its owner may read
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        write_json(folder / "config.json", {**config, "dtype": "float16"})
        for name in (*TOKENIZER_FILES, "tokenizer_config.json", "run.json"):
            if (run / name).is_file():
                shutil.copyfile(run / name, folder / name)
        parameters = sum(tensor.numel() for tensor in weights.values())
        write_text(folder / "README.md", card(run, out.name, parameters, language, data, licence, scores))
        size = sum(file.stat().st_size for file in folder.iterdir())
        if size > MOST_BYTES:
            raise SystemExit(
                f"{out} would have {size / 1e6:.1f} MB; a bundled model may have {MOST_BYTES / 1e6:.0f} MB"
            )
    return size


def card(run: Path, name: str, parameters: int, language: str, data: str, licence: str, scores: str) -> str:
    config = settings.load(run / "run.json")
    records = [record for record in log.read(run / "log.jsonl") if record["kind"] == "validation"]
    key = "token_mask_" if records and "token_mask_loss" in records[-1] else ""
    every = max(1, -(-len(records) // CURVE_POINTS))
    shown = records[::-1][::every][::-1]  # the last one is always shown
    curve = "\n".join(f"| {r['step']:,} | {r[key + 'loss']:.3f} | {r[key + 'accuracy']:.1%} |" for r in shown)
    masks = "15 % token masks" if key else "the masks of the run"
    optimizer, data_settings = config.optimizer, config.data
    layers = f"{config.model['num_hidden_layers']} layers of {config.model['hidden_size']}"
    rate = f"{config.masking.rate:.0%}"
    if config.masking.final_rate is not None:
        rate += f" falling to {config.masking.final_rate:.0%}"
    tokens = config.steps * data_settings.step_tokens / 1e6
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
language: {language}
license: {licence.lower()}
tags: [deberta, debertakit]
---

# {name}

A small DeBERTa ({layers}, {parameters / 1e6:.1f} M parameters, fp16), pretrained from scratch on a CPU with
debertakit, which uses it if a command is given no model.

    deberta fill "..." --model {name}

## Data and licence

{data}. The text has the licence {licence}; the weights are published under the same licence.

## Recipe

{config.name} with the settings in `run.json`: {config.steps:,} steps of {data_settings.step_tokens:,} tokens
({tokens:.0f} M tokens), sequences of {data_settings.max_length}, {config.masking.strategy} masks at a rate of {rate},
AdamW at {optimizer.lr:g}, {config.precision}, seed {config.seed}.
`deberta pretrain run.json --corpus TEXT --out run` repeats the run.

## Curve

Held-out documents, {masks}:

| step | loss (nats) | accuracy |
|---|---|---|
{curve}

## Scores

{scores.strip() or "None yet."}

## Limits

The model is small and has seen little text: it knows few facts, and larger models (such as
microsoft/deberta-v3-small) are better. It reads sequences of {data_settings.max_length} tokens best. Its text was not
filtered for bias or harmful content, and it repeats what is in the text.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a bundled model from a finished pretraining run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--language", choices=("en", "zh"), required=True)
    parser.add_argument("--data", required=True, help="what the training text is and where it comes from")
    parser.add_argument("--licence", default="CC-BY-SA-4.0", help="licence of the training text")
    parser.add_argument("--scores", type=Path, help="Markdown for the section Scores")
    given = parser.parse_args()
    scores = given.scores.read_text(encoding="utf-8") if given.scores else ""
    size = bundle(given.run, given.out, language=given.language, data=given.data, licence=given.licence, scores=scores)
    print(f"{given.out}: {size / 1e6:.1f} MB; largest change of a probability: {change(given.run, given.out):.2g}")


@torch.inference_mode()
def change(run: Path, out: Path) -> float:
    """Largest difference of a probability between the run and its fp16 copy, on one text."""
    from debertakit.loading import describe

    tokenizer = describe(out).tokenizer()
    ids = tokenizer("a [MASK] 北京是[MASK]国的首都", return_tensors="pt")["input_ids"]
    first, second = (describe(folder).network()(input_ids=ids).logits.softmax(-1) for folder in (run, out))
    return float((first - second).abs().max())


if __name__ == "__main__":
    main()
