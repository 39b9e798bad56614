"""Output of a finished run: the exported model, a loss curve, and a model card."""

import shutil
import sys
from pathlib import Path
from typing import Any

from debertakit.pretraining.settings import PretrainConfig
from debertakit.pretraining.state import MANIFEST, Progress
from debertakit.text.shards import Corpus
from debertakit.training import log

NAMES = {"deberta": "DeBERTa", "bert": "BERT", "roberta": "RoBERTa", "albert": "ALBERT"}
NAMES |= {"xlnet": "XLNet", "electra": "ELECTRA", "deberta-d": "DeBERTa-D", "gpt2": "GPT-2"}
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
    """Copy the last checkpoint's model to ``folder``, each file atomically. Write loss curve and model card."""
    for path in checkpoint.rglob("*"):
        name = path.relative_to(checkpoint)
        if path.is_file() and name.parts[0] not in TRAINING_ONLY:
            aside = folder / f"{name}.part"
            aside.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, aside)
            aside.replace(folder / name)
    parameters = sum(parameter.numel() for parameter in trainee.model.parameters())
    has_curve = draw_curve(folder)
    (folder / "README.md").write_text(
        model_card(config, progress, figures, corpus, parameters, has_curve), encoding="utf-8"
    )


def draw_curve(folder: Path) -> bool:
    """Draw loss.png from log.jsonl. Returns False if matplotlib is missing."""
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
    objectives = config.objectives.weights | ({} if config.rtd is None else {"rtd": config.rtd.weight})
    weights = ", ".join(f"{name} x {weight:g}" for name, weight in objectives.items())
    origin = "from scratch" if config.init is None else f"on from {Path(config.init).name}"
    tag, use = _use(config)
    inputs = ", ".join(entry["name"] for entry in corpus.manifest["inputs"][:5])
    optimizer = config.optimizer
    curve = "\n![loss](loss.png)\n" if has_curve else ""
    return f"""---
library_name: transformers
pipeline_tag: {tag}
tags: [{config.family}, debertakit]
---

# {config.name}

A {NAMES[config.family]} of {parameters / 1e6:.1f} M parameters, pretrained {origin} with debertakit: {progress.step:,}
steps, {progress.tokens / 1e6:,.1f} M tokens, {progress.elapsed / 60:,.1f} minutes. The whole configuration is in
`run.json`; `deberta pretrain run.json --corpus ... --out ...` repeats the run.

    {use}

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


def _use(config: PretrainConfig) -> tuple[str, str]:
    """The hub's pipeline tag for this model, and a one-line usage example."""
    prompt = "the capital of France is"
    text = f"{prompt} [MASK]."
    if config.rtd is not None:
        return "feature-extraction", 'transformers.AutoModel.from_pretrained("FOLDER")  # FOLDER/generator fills masks'
    if config.family == "deberta-d":
        return "text-generation", f'deberta generate --model FOLDER "{text}"'
    if config.family == "xlnet":
        return "text-generation", 'transformers.XLNetLMHeadModel.from_pretrained("FOLDER")'
    if config.family == "gpt2":
        return "text-generation", f'transformers.pipeline("text-generation", "FOLDER")("{prompt}")'
    if config.family == "deberta" and config.objectives.arlm > 0:
        return "text-generation", f'deberta generate --model FOLDER "{prompt}"'
    if config.family == "deberta":
        return "fill-mask", f'deberta fill --model FOLDER "{text}"'
    return "fill-mask", f'transformers.pipeline("fill-mask", "FOLDER")("{text}")'
