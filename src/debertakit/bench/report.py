"""Print, store and plot benchmark results."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from debertakit.attention import cpu
from debertakit.attention.linear import choice
from debertakit.bench.contest import Measurement
from debertakit.bench.suites import Peak
from debertakit.files import write_json
from debertakit.installation import install
from debertakit.precision import cpu_name

NAMES = {
    "ours": "debertakit",
    "hf": "HF DeBERTa",
    "bert": "HF BERT (SDPA)",
    "modernbert": "HF ModernBERT (SDPA)",
    "ort": "ONNX Runtime, HF DeBERTa",
    "onnx": "ONNX Runtime, our graph",
}


def machine() -> dict[str, str | int]:
    """Hardware and software of this measurement."""
    return {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "linear": choice(),
        "attention": f"fused kernel ({cpu.instruction_set()})" if cpu.available() else f"reference ({cpu.reason()})",
    }


def header(result: Measurement | Peak) -> str:
    if isinstance(result, Peak):
        return f"{'work':<10}{'ours':>12}{'HF':>12}{'BERT':>12}{'ours/HF':>10}"
    times = "".join(
        f"{name:>18}" for name in ("ours ms", "HF ms", "BERT ms", "ModernBERT ms", "HF in ORT ms", "ours in ORT ms")
    )
    return f"{'work':<10}{times}{'over HF':>10}{'over BERT':>11}{'over ModernBERT':>17}{'over ORT':>10}"


def line(result: Measurement | Peak) -> str:
    """Format one row: medians ± half the interquartile range, speed-up over HF, our time / that of others."""
    if isinstance(result, Peak):
        cells = "".join(
            f"{'-':>12}" if x is None else f"{x:>9,.0f} MB" for x in (result.ours_mb, result.hf_mb, result.bert_mb)
        )
        share = "" if result.hf_mb is None else f"{result.ours_mb / result.hf_mb:>10.3f}"
        return f"{result.work:<10}{cells}{share}"
    cells = ""
    for name in NAMES:
        timing = result.times.get(name)
        shown = "-" if timing is None else f"{timing.median:,.2f} ±{(timing.high - timing.low) / 2:.2f}"
        cells += f"{shown:>18}"
    over_hf = result.ratio("hf")
    faster = "-" if over_hf is None else f"{over_hf:.2f}x"
    bert, modernbert, onnx = (
        "-" if x is None else f"{1 / x:.2f}" for x in map(result.ratio, ("bert", "modernbert", "onnx"))
    )
    return f"{result.work:<10}{cells}{faster:>10}{bert:>11}{modernbert:>17}{onnx:>10}"


def write_results(path: Path, suite: str, results: Sequence[Measurement | Peak]) -> None:
    write_json(path, [result.row() | {"suite": suite} for result in results])


def plot(path: Path, suite: str, results: Sequence[Measurement | Peak]) -> None:
    """Draw bars relative to ours: shorter is better."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError(f"drawing needs matplotlib: {install('bench')}") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    works = [result.work for result in results]
    unit = "mb" if isinstance(results[0], Peak) else "ms"
    rows: list[dict[str, Any]] = [result.row() for result in results]
    peers = [name for name in NAMES if any(row.get(f"{name}_{unit}") for row in rows)]
    figure, axes = pyplot.subplots(figsize=(1.6 + 1.3 * len(works), 4))
    width = 0.8 / len(peers)
    for place, name in enumerate(peers):
        heights = [(row[f"{name}_{unit}"] or 0) / row[f"ours_{unit}"] for row in rows]
        bars = axes.bar([i + place * width for i in range(len(works))], heights, width, label=NAMES[name])
        axes.bar_label(bars, [f"{h:.2f}" if h else "" for h in heights], fontsize=7)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(works))], works)
    axes.set_ylabel(f"{'memory' if unit == 'mb' else 'time'}, debertakit = 1")
    axes.set_title(f"deberta bench {suite} ({torch.get_num_threads()} threads)")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
