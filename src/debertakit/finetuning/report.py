"""Reports of a run: report.html (one file, works offline), report.md and the model card.

Both reports have the same sections: a table, a figure, or both. matplotlib draws the figures as SVG and keeps their
text as text, so the browser's fonts can show Chinese labels.
"""

import html
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from debertakit.data.examples import Choice, Example, Question, Tagged, TextExample, gold
from debertakit.files import write_json, write_text
from debertakit.finetuning.evaluation import Evaluation
from debertakit.finetuning.significance import summary
from debertakit.tasks.decisions import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORST = 20
BINS = 10
MOST_CLASSES = 40
"""Larger confusion matrices would be unreadable and are omitted."""

Cell = str | float | int
Record = dict[str, Any]
"""Contents of run.json or metrics.json."""
Figures = dict[str, float]


@dataclass(frozen=True)
class Section:
    title: str
    header: Sequence[Cell] = ()
    rows: Sequence[Sequence[Cell]] = ()
    note: str = ""
    picture: str = ""
    """SVG, only in report.html."""
    shaded: bool = False
    """Shade the cells by value (confusion matrix)."""


def write_report(
    folder: Path,
    record: Record,
    metrics: Record,
    history: list[Figures],
    errors: Sequence[Section],
    curve: str | None = None,
) -> None:
    """Write report.html, report.md and the model card.

    ``record``: contents of run.json. ``history``: the Trainer's log. ``errors``: what the best model gets wrong on the
    dev set. ``curve``: the dev metric to plot; default: the metric that selected the checkpoint.
    """
    title = f"{record['task']}: {Path(record['model']).name}"
    sections = [scores(metrics), curves(history, curve or record["metric"]), *errors]
    sections.append(Section("Settings", ("", ""), [(k, _short(v)) for k, v in record.items()]))
    write_text(folder / "report.html", as_html(title, sections))
    write_text(folder / "report.md", as_markdown(title, sections))
    write_text(folder / "README.md", model_card(record, metrics))


def write_summary(folder: Path, record: Record, runs: list[tuple[str, Figures]]) -> None:
    """Write summary.json and report.md over several seeds."""
    names = list(runs[0][1])
    found = {name: summary([figures[name] for _, figures in runs]) for name in names}
    best = max(runs, key=lambda entry: entry[1][record["metric"]])[0]
    over = [(name, s.mean, s.sd, s.low, s.high) for name, s in found.items()]
    sections = [
        Section(f"Over {len(runs)} seeds", ("dev", "mean", "sd", "min", "max"), over, f"Best on the dev set: {best}."),
        Section("Each seed", ("", *names), [(run, *figures.values()) for run, figures in runs]),
        Section("Settings", ("", ""), [(k, _short(v)) for k, v in record.items() if k != "seed"]),
    ]
    title = f"{record['task']}: {Path(record['model']).name}"
    write_text(folder / "report.md", as_markdown(title, sections))
    write_json(folder / "summary.json", {name: asdict(s) for name, s in found.items()})


# --------------------------------------------------------------------------------------------------------- sections


def scores(metrics: Record) -> Section:
    rows = [
        (split, name, value) for split in metrics if split.startswith("dev") for name, value in metrics[split].items()
    ]
    notes = [f"Training took {metrics['seconds']:,.0f} s."]
    if "sift_overhead" in metrics:
        notes.append(f"A step with SiFT took {metrics['sift_overhead']:.2f} times one without.")
    if "best_f1" in metrics:
        notes.append(
            f'The scores are for a threshold of 0 for "no answer". The best threshold on this dev set, '
            f"{metrics['no_answer_threshold']:.2f}, gives an F1 of {metrics['best_f1']:.2f}."
        )
    notes += [f"{name}: {signature}." for name, signature in metrics.get("signatures", {}).items()]
    return Section("Scores", ("split", "metric", "value"), rows, " ".join(notes))


def curves(history: list[Figures], metric: str) -> Section:
    dev = [entry for entry in history if f"eval_{metric}" in entry]
    rows = [(e["step"], round(e["epoch"], 2), e["eval_loss"], e[f"eval_{metric}"]) for e in dev]
    train = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]

    def draw(figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        for name, points in (("train", train), ("dev", [(row[0], row[2]) for row in rows])):
            if points:
                left.plot(*zip(*points, strict=True), marker="." if name == "dev" else "", label=name)
        left.set(xlabel="step", ylabel="loss")
        left.legend()
        if rows:
            right.plot([row[0] for row in rows], [row[3] for row in rows], marker=".")
        right.set(xlabel="step", ylabel=f"dev {metric}")

    return Section("Training", ("step", "epoch", "dev loss", f"dev {metric}"), rows, picture=svg(draw))


def errors(kind: str, evaluation: Evaluation, labels: tuple[str, ...]) -> list[Section]:
    """Sections on the model's errors and its calibration."""
    if kind == "regression":
        return [scatter(evaluation), worst(evaluation, [abs(gold(e) - p.value) for e, p in _pairs(evaluation)])]
    if kind == "qa":
        wrong = [0.0 if _answered(e, p.value) else 1 + _sureness(p) for e, p in _pairs(evaluation)]
        return [worst(evaluation, wrong)]
    if kind == "tagging":
        missed = [float(sum(g != t for g, t in zip(e.tags, p.value, strict=True))) for e, p in _pairs(evaluation)]
        return [per_entity(evaluation), worst(evaluation, missed)]
    if kind == "multi-label":
        truth = np.array([[label in gold(e) for label in labels] for e in evaluation.examples])
        sure = np.array([p.probabilities for p in evaluation.predictions])
        sections = [per_class(truth, sure >= 0.5, labels), calibration(sure.ravel(), truth.ravel())]
        return [*sections, worst(evaluation, np.abs(truth - sure).max(1).tolist())]
    options = [range(len(p.probabilities)) if kind == "choice" else labels for p in evaluation.predictions]
    chance = [
        p.probabilities[list(names).index(gold(e))] if gold(e) in names else 0.0
        for (e, p), names in zip(_pairs(evaluation), options, strict=True)
    ]
    right = np.array([gold(e) == p.value for e, p in _pairs(evaluation)])
    sections = [calibration(np.array([max(p.probabilities) for p in evaluation.predictions]), right)]
    if kind == "single-label":
        truth = np.array([[gold(e) == label for label in labels] for e in evaluation.examples])
        guess = np.array([[value == label for label in labels] for value in evaluation.values])
        sections = [confusion(truth, guess, labels), per_class(truth, guess, labels), *sections]
    return [*sections, worst(evaluation, [0.0 if ok else 1 - c for ok, c in zip(right, chance, strict=True)])]


def confusion(truth: np.ndarray, guess: np.ndarray, labels: tuple[str, ...]) -> Section:
    title = "Confusion"
    if len(labels) > MOST_CLASSES:
        return Section(title, note=f"Omitted: {len(labels)} classes.")
    counts = truth.astype(int).T @ guess.astype(int)  # [gold, predicted]
    rows: list[Sequence[Cell]] = [(label, *row) for label, row in zip(labels, counts.tolist(), strict=True)]
    return Section(title, ("gold \\ predicted", *labels), rows, shaded=True)


def per_class(truth: np.ndarray, guess: np.ndarray, labels: tuple[str, ...]) -> Section:
    from sklearn.metrics import precision_recall_fscore_support

    rows = []
    for label, there, guessed in zip(labels, truth.T.astype(int), guess.T.astype(int), strict=True):
        p, r, f, _ = precision_recall_fscore_support(there, guessed, average="binary", zero_division=0)
        rows.append((label, 100 * p, 100 * r, 100 * f, int(there.sum())))
    return Section("Classes", ("class", "precision", "recall", "F1", "examples"), rows)


def per_entity(evaluation: Evaluation) -> Section:
    from seqeval.metrics import classification_report

    tags = [list(gold(example)) for example in evaluation.examples]
    table = classification_report(tags, [list(v) for v in evaluation.values], output_dict=True, zero_division=0)
    rows = [
        (name, 100 * row["precision"], 100 * row["recall"], 100 * row["f1-score"], int(row["support"]))
        for name, row in table.items()
    ]
    return Section("Entities", ("type", "precision", "recall", "F1", "entities"), rows)


def calibration(confidence: np.ndarray, right: np.ndarray) -> Section:
    """ECE = sum over bins of share * |accuracy - mean confidence|."""
    ece, rows = expected_calibration_error(confidence, right)

    def draw(figure: "Figure") -> None:
        axes = figure.subplots(1, 1)
        axes.plot([0, 1], [0, 1], linestyle=":", color="gray")
        axes.plot([row[2] for row in rows], [row[3] for row in rows], marker="o")
        axes.set(xlabel="confidence", ylabel="accuracy", aspect="equal")

    note = f"Expected calibration error: {100 * ece:.2f} %."
    return Section("Calibration", ("confidence", "examples", "mean confidence", "accuracy"), rows, note, svg(draw, 4))


def expected_calibration_error(
    confidence: np.ndarray, right: np.ndarray
) -> tuple[float, list[tuple[str, int, float, float]]]:
    """Return the ECE and, for each non-empty bin, its range, count, mean confidence and accuracy."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    rows = []
    for number in sorted(set(bins.tolist())):
        inside = bins == number
        share = f"{number / BINS:.1f}-{(number + 1) / BINS:.1f}"
        rows.append((share, int(inside.sum()), float(confidence[inside].mean()), float(right[inside].mean())))
    ece = sum(count * abs(mean - accuracy) for _, count, mean, accuracy in rows) / max(len(confidence), 1)
    return float(ece), rows


def scatter(evaluation: Evaluation) -> Section:
    def draw(figure: "Figure") -> None:
        axes = figure.subplots(1, 1)
        axes.plot([gold(e) for e in evaluation.examples], evaluation.values, ".", markersize=3, alpha=0.5)
        axes.set(xlabel="gold", ylabel="predicted")

    return Section("Gold and predicted", picture=svg(draw, 4))


def worst(evaluation: Evaluation, badness: Sequence[float]) -> Section:
    """List the examples with the largest ``badness``. An example with ``badness`` 0 is correct."""
    order = sorted((i for i in range(len(badness)) if badness[i] > 0), key=lambda i: -badness[i])[:WORST]
    rows = [
        (example.id, show_text(example), show_answer(example, gold(example)), show_answer(example, prediction.value))
        for example, prediction in ((evaluation.examples[i], evaluation.predictions[i]) for i in order)
    ]
    return Section("Worst examples", ("id", "text", "gold", "predicted"), rows, "" if rows else "There are no errors.")


# -------------------------------------------------------------------------------------------------------- rendering


def show_text(example: Example) -> str:
    if isinstance(example, Tagged):
        return " ".join(example.words)
    if isinstance(example, Question):
        return f"{example.question} ⟶ {_clip(example.context)}"
    if isinstance(example, Choice):
        options = "; ".join(f"({i}) {option}" for i, option in enumerate(example.options))
        return f"{_clip(example.text)} ⟶ {example.pair} {options}"
    assert isinstance(example, TextExample)
    return _clip(example.text) + (f" ⟶ {_clip(example.pair)}" if example.pair is not None else "")


def show_answer(example: Example, value: Any) -> str:
    if isinstance(example, Tagged):
        marked = [f"{word}/{tag}" for word, tag in zip(example.words, value, strict=True) if tag != "O"]
        return " ".join(marked) or "nothing"
    if isinstance(example, Choice):
        return str(value)
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "nothing"
    return _short(value) if value != "" else "no answer"


def as_html(title: str, sections: Sequence[Section]) -> str:
    body = "\n".join(map(_html_section, sections))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title>
<style>
body {{ font: 15px/1.5 system-ui, "Noto Sans CJK SC", sans-serif; max-width: 62rem; margin: 2rem auto }}
table {{ border-collapse: collapse; margin: .5rem 0 }} th, td {{ border: 1px solid #ddd; padding: .2rem .5rem }}
th {{ background: #f5f5f5; text-align: left }} td {{ vertical-align: top; overflow-wrap: anywhere }}
td:first-child {{ overflow-wrap: normal }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums }} svg {{ max-width: 100%; height: auto }}
</style></head><body>
<h1>{html.escape(title)}</h1>
{body}
</body></html>
"""


def _html_section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.note:
        parts.append(f"<p>{html.escape(section.note)}</p>")
    parts.append(section.picture)
    if section.rows:
        head = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in section.header)
        rows = "\n".join(f"<tr>{_html_cells(row, section.shaded)}</tr>" for row in section.rows)
        parts.append(f"<table><tr>{head}</tr>\n{rows}</table>")
    return "\n".join(part for part in parts if part)


def _html_cells(row: Sequence[Cell], shaded: bool) -> str:
    total = sum(cell for cell in row if not isinstance(cell, str)) or 1
    cells = []
    for cell in row:
        if isinstance(cell, str):
            cells.append(f"<td>{html.escape(cell)}</td>")
        else:
            shade = f' style="background:rgba(31,119,180,{0.8 * cell / total:.2f})"' if shaded else ""
            cells.append(f'<td class="number"{shade}>{_short(cell)}</td>')
    return "".join(cells)


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    parts = [f"# {_plain(title)}"]
    for section in sections:
        parts.append(f"## {section.title}")
        if section.note:
            parts.append(section.note)
        if section.rows:
            lines = [section.header, ["---"] * len(section.header), *section.rows]
            parts.append("\n".join("| " + " | ".join(_plain(_short(cell)) for cell in line) + " |" for line in lines))
        elif section.picture:
            parts.append("(drawn in report.html)")
    return "\n\n".join(parts) + "\n"


def svg(draw: Callable[["Figure"], None], width: float = 8) -> str:
    """Render ``draw(figure)`` as an SVG element. Returns "" if matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "debertakit"}):
        figure = Figure(figsize=(width, 3.2), layout="constrained")
        draw(figure)
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def model_card(record: Record, metrics: Record) -> str:
    pipelines = {"single-label": "text-classification", "multi-label": "text-classification"}
    pipelines |= {"regression": "text-classification", "tagging": "token-classification", "qa": "question-answering"}
    pipelines |= {"choice": "multiple-choice", "seq2seq": record["task"].replace("summarisation", "summarization")}
    rows = "\n".join(f"| {_plain(name)} | {_short(value)} |" for name, value in metrics["dev"].items())
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
        details = [f"**Labels**: {', '.join(map(_plain, record['labels'])) or 'none'}."]
        extra = f", SiFT with lambda {record['sift_lambda']:g}" if record["sift"] else ""
    listed = "\n".join(f"- {line}" for line in details)
    return f"""---
library_name: transformers
pipeline_tag: {pipelines[record["kind"]]}
tags: [debertakit]
---

# {_plain(record["task"])}

{_plain(Path(record["model"]).name)}, fine-tuned with debertakit on {record["train_examples"]:,} examples of
{_plain(record["task"])} ({record["kind"]}). {loads} [report.md](report.md) shows its errors,
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


def _pairs(evaluation: Evaluation) -> list[tuple[Any, Prediction]]:
    return list(zip(evaluation.examples, evaluation.predictions, strict=True))


def _answered(example: Question, value: str) -> bool:
    return value in (example.answers or ("",))


def _sureness(prediction: Prediction) -> float:
    """Confidence from 0 to 1: higher if the choice between an answer and "no answer" was clear."""
    return float(np.tanh(abs(prediction.no_answer) / 10))


def _clip(text: str, most: int = 600) -> str:
    return text if len(text) <= most else text[:most] + " …"


def _plain(text: str) -> str:
    """Escape user text for a Markdown table."""
    return " ".join(html.escape(str(text), quote=False).replace("|", "\\|").replace("`", "\\`").split())


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if 0.1 <= abs(value) < 1e6 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value))
    return str(value)
