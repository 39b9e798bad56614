"""The model card (README.md) of a fine-tuned model."""

from pathlib import Path
from typing import Any

from debertakit.finetuning.rendering import plain, short

Record = dict[str, Any]
"""Contents of run.json or metrics.json."""


def task_name(record: Record) -> str:
    """The benchmark, or the file that the user trained on."""
    return Path(record["train"]).name if record["task"] == "own" else str(record["task"])


def model_card(record: Record, metrics: Record) -> str:
    pipelines = {"single-label": "text-classification", "multi-label": "text-classification"}
    pipelines |= {"regression": "text-classification", "tagging": "token-classification", "qa": "question-answering"}
    pipelines |= {"choice": "multiple-choice", "seq2seq": record["task"].replace("summarisation", "summarization")}
    rows = "\n".join(f"| {plain(name)} | {short(value)} |" for name, value in metrics["dev"].items())
    if record["kind"] == "seq2seq":
        loads = "It loads in transformers after `import debertakit.generation.seq2seq`."
        training = f"{metrics['steps']:,} steps of {record['step_tokens']:,} source and target tokens"
        lengths = f"{record['max_source']} source and {record['max_target']} target tokens"
        details = [f"**Scores**: beam search with {record['beams']} beams."]
        details += [f"**{name}**: {signature}." for name, signature in metrics["signatures"].items()]
        extra = f", label smoothing {record['label_smoothing']:g}"
    else:
        loads = "It loads in stock transformers."
        training = f"{record['epochs']:g} epochs, {record['batch_size']} examples per step"
        lengths = f"{record['max_length']} tokens"
        details = [f"**Labels**: {', '.join(map(plain, record['labels'])) or 'none'}."]
        extra = f", SiFT with lambda {record['sift_lambda']:g}" if record["sift"] else ""
    listed = "\n".join(f"- {line}" for line in details)
    return f"""---
library_name: transformers
pipeline_tag: {pipelines[record["kind"]]}
tags: [debertakit]
---

# {plain(task_name(record))}

{plain(Path(record["model"]).name)}, fine-tuned with debertakit on {record["train_examples"]:,} examples of
{plain(task_name(record))} ({record["kind"]}). {loads} [report.md](report.md) shows its errors,
`run.json` its settings.

| dev | |
|---|---|
{rows}

{listed}
- **Training**: {training}, learning rate {record["lr"]:g},
  at most {lengths}, seed {record["seed"]}{extra}. The checkpoint was selected on the dev set,
  so the scores above are optimistic.
- **Limits**: the model repeats errors and biases of its training examples. Nothing was done to reduce bias.
"""
