"""Output of a finished run: the exported model, a loss curve, and a model card."""

import shutil
import sys
from pathlib import Path

from debertakit.files import replacing, write_text
from debertakit.installation import install
from debertakit.objectives.training_module import HEADS_FILE, TrainingModule
from debertakit.pretraining.families import FAMILIES, LOAD
from debertakit.pretraining.settings import PretrainConfig
from debertakit.pretraining.state import CONFIG, Progress
from debertakit.text.shards import Corpus
from debertakit.training import log
from debertakit.training.checksums import CHECKSUMS

TRAINING_ONLY = {"optimizer.pt", "optimizer", "rng.pt", "progress.json", HEADS_FILE, CHECKSUMS, CONFIG}


def finish(
    folder: Path,
    checkpoint: Path,
    config: PretrainConfig,
    progress: Progress,
    metrics: dict[str, float],
    corpus: Corpus,
    module: TrainingModule,
) -> None:
    """Copy the last checkpoint's model to ``folder``. Write loss curve and model card."""
    for path in checkpoint.rglob("*"):
        name = path.relative_to(checkpoint)
        if path.is_file() and name.parts[0] not in TRAINING_ONLY:
            (folder / name).parent.mkdir(exist_ok=True)
            with replacing(folder / name) as temporary:
                shutil.copyfile(path, temporary)
    has_curve = draw_curve(folder)
    write_text(folder / "README.md", model_card(config, progress, metrics, corpus, module, has_curve))


def draw_curve(folder: Path) -> bool:
    """Draw loss.png from log.jsonl. Returns False if matplotlib is missing."""
    records = log.read(folder / "log.jsonl")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no loss curve: {install('pretrain')} for matplotlib", file=sys.stderr)
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss (nats)", title=folder.name)
    for kind, style in (("train", {"alpha": 0.6}), ("validation", {"marker": "o", "markersize": 3})):
        points = [(record["step"], record["loss"]) for record in records if record["kind"] == kind and "loss" in record]
        if points:
            axes.plot(*zip(*points, strict=True), label=kind, **style)
    axes.legend()
    axes.grid(alpha=0.3)
    with replacing(folder / "loss.png") as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return True


def model_card(
    config: PretrainConfig,
    progress: Progress,
    metrics: dict[str, float],
    corpus: Corpus,
    module: TrainingModule,
    has_curve: bool,
) -> str:
    family = FAMILIES[config.family]
    parameters = sum(parameter.numel() for parameter in module.model.parameters())
    rows = "\n".join(f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in metrics.items())
    weights = ", ".join(f"{name} x {weight:g}" for name, weight in module.weights.items())
    origin = "from scratch" if config.init is None else f"starting from {Path(config.init).name}"
    if config.teacher is not None:
        origin += f", taught by {Path(config.teacher).name},"
    example = family.examples.get(module.pipeline_tag, LOAD)
    inputs = ", ".join(entry["name"] for entry in corpus.manifest["inputs"][:5])
    optimizer = config.optimizer
    curve = "\n![loss](loss.png)\n" if has_curve else ""
    return f"""---
library_name: transformers
pipeline_tag: {module.pipeline_tag}
tags: [{config.family}, debertakit]
---

# {config.name}

A {family.title} model with {parameters / 1e6:.1f} M parameters, pretrained {origin} with debertakit: {progress.step:,}
steps, {progress.tokens / 1e6:,.1f} M tokens, {progress.elapsed / 60:,.1f} minutes. The whole configuration is in
`run.json`; `deberta pretrain run.json --corpus ... --out ...` repeats the run.

    {example}

| validation | |
|---|---|
{rows}
{curve}
- **Corpus**: {inputs}; {corpus.train.tokens:,} training tokens, {corpus.validation.tokens:,} held out.
- **Objectives**: {weights}; masking by {config.masking.strategy}, rate {config.masking.rate:g}.
- **Optimiser**: AdamW, peak learning rate {optimizer.lr:g} ({optimizer.schedule}, warm-up {optimizer.warmup_steps}),
  weight decay {optimizer.weight_decay:g}, {config.data.step_tokens:,} tokens per step, seed {config.seed}.
- **Limits**: the quality depends on the corpus and the budget. Bias and harmful content of the text were not filtered.
"""
