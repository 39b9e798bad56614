"""What a finished run leaves: the model in its folder, a picture of the loss, a model card."""

import shutil
import sys
from pathlib import Path
from typing import Any

from debertakit.pretraining import log
from debertakit.pretraining.settings import PretrainConfig
from debertakit.pretraining.state import MANIFEST, Progress
from debertakit.text.shards import Corpus

TRAINING_ONLY = {"optimizer.pt", "optimizer", "rng.pt", "progress.json", "heads.safetensors", MANIFEST}


def finish(
    folder: Path,
    checkpoint: Path,
    config: PretrainConfig,
    progress: Progress,
    figures: dict[str, float],
    corpus: Corpus,
    trainee: Any,
) -> None:
    """Copy the last checkpoint's model to the top of the folder; each file appears whole."""
    for path in checkpoint.iterdir():
        if path.name not in TRAINING_ONLY:
            aside = folder / (path.name + ".part")
            shutil.copyfile(path, aside)
            aside.replace(folder / path.name)
    parameters = sum(parameter.numel() for parameter in trainee.model.parameters())
    has_curve = draw_curve(folder)
    (folder / "README.md").write_text(
        model_card(config, progress, figures, corpus, parameters, has_curve), encoding="utf-8"
    )


def draw_curve(folder: Path) -> bool:
    """loss.png from log.jsonl; False where matplotlib is missing."""
    records = log.read(folder / "log.jsonl")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no loss curve: pip install 'debertakit[pretrain]' for matplotlib", file=sys.stderr)
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss (nats)", title=folder.name)
    for kind, style in (("train", {"alpha": 0.6}), ("validation", {"marker": "o", "markersize": 3})):
        points = [(record["step"], record["loss"]) for record in records if record["kind"] == kind]
        if points:
            axes.plot(*zip(*points, strict=True), label=kind, **style)
    axes.legend()
    axes.grid(alpha=0.3)
    FigureCanvasAgg(figure).print_png(str(folder / "loss.png"))
    return True


def model_card(
    config: PretrainConfig,
    progress: Progress,
    figures: dict[str, float],
    corpus: Corpus,
    parameters: int,
    has_curve: bool,
) -> str:
    rows = "\n".join(f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in figures.items())
    weights = ", ".join(f"{name} x {weight:g}" for name, weight in config.objectives.weights.items())
    inputs = ", ".join(entry["name"] for entry in corpus.manifest["inputs"][:5])
    optimizer = config.optimizer
    curve = "\n![loss](loss.png)\n" if has_curve else ""
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
tags: [deberta, debertakit]
---

# {config.name}

A DeBERTa of {parameters / 1e6:.1f} M parameters, pretrained from scratch with debertakit: {progress.step:,} steps,
{progress.tokens / 1e6:,.1f} M tokens, {progress.elapsed / 60:,.1f} minutes. The whole configuration is in `run.json`;
`deberta pretrain run.json --corpus ... --out ...` repeats the run.

    deberta fill --model FOLDER "the capital of France is [MASK]."

| validation | |
|---|---|
{rows}
{curve}
- **Corpus**: {inputs}; {corpus.train.tokens:,} training tokens, {corpus.validation.tokens:,} held out.
- **Objectives**: {weights}; masking by {config.masking.strategy}, rate {config.masking.rate:g}.
- **Optimiser**: AdamW, peak learning rate {optimizer.lr:g} ({optimizer.schedule}, warm-up {optimizer.warmup_steps}),
  weight decay {optimizer.weight_decay:g}, {config.data.step_tokens:,} tokens a step, seed {config.seed}.
- **Limits**: as good as its corpus and budget; nothing was done about bias or about what the text says.
"""
