"""The HTML report of the demo."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import torch
import transformers

from debertakit.bench.contest import Measurement
from debertakit.bench.report import NAMES
from debertakit.demo.race import Accuracy, Racer
from debertakit.files import write_text
from debertakit.finetuning.charts import Series, chart
from debertakit.finetuning.rendering import Cell, Section, as_html
from debertakit.finetuning.runs import RunResult
from debertakit.inference.fill import Candidate
from debertakit.theme import Say, in_html


@dataclass
class Shown:
    """Results of the demo. A part that was skipped is empty."""

    masks: list[tuple[str, list[Candidate]]] = field(default_factory=list)
    """Each text with the candidates for its mask, by the bundled models."""
    nearest: list[tuple[str, list[tuple[float, str]]]] = field(default_factory=list)
    """Each query with its nearest sentences and their similarity."""
    tuned: RunResult | None = None
    racers: dict[str, Racer] = field(default_factory=dict)
    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    """Masked words in held-out documents, of a unigram model and of each racer."""
    after: list[tuple[str, list[Candidate]]] = field(default_factory=list)
    """Each text with the candidates for its mask, by the DeBERTa that the demo pretrained."""
    times: list[Measurement] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Pretraining steps, the same for all racers."""
        return max((int(racer.curve[-1][0]) for racer in self.racers.values()), default=0)


def write_report(path: Path, shown: Shown) -> None:
    write_text(path, as_html("debertakit", _hero(shown), _sections(shown)))


def _hero(shown: Shown) -> str:
    """The comparison of the racers in one sentence."""
    deberta, bert = (shown.accuracy[name].top1 for name in ("DeBERTa", "BERT"))
    words = Say(
        f"masked words right by a DeBERTa, {bert:.1%} by a BERT of the same size, after the same {shown.steps:,} steps "
        f"from scratch on this machine",
        f"的被掩码词由 DeBERTa 猜对，同样大小的 BERT 为 {bert:.1%}；两者都在本机从零训练了 {shown.steps:,} 步",
    )
    threads = torch.get_num_threads()
    versions = (
        f"{platform.system()} {platform.machine()}, {threads} thread{'' if threads == 1 else 's'}, Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    return (
        f'<section class="card hero wide"><p class="headline">{deberta:.1%}</p><p>{in_html(words)}</p>'
        f'<p class="note">{escape(versions)}</p></section>'
    )


def _sections(shown: Shown) -> list[Section]:
    sections = []
    if shown.masks:
        title = Say("Masks filled by the bundled models", "内置模型做掩码填空")
        sections.append(_filled(title, shown.masks))
    if shown.nearest:
        header = (Say("query", "查询"), Say("similarity", "相似度"), Say("sentence", "句子"))
        rows = [(query if i == 0 else "", *pair) for query, pairs in shown.nearest for i, pair in enumerate(pairs)]
        note = Say("deberta embed turns texts into vectors.", "deberta embed 把文本变成向量。")
        sections.append(Section(Say("Nearest sentences", "最相近的句子"), header, rows, note, wide=True))
    if shown.tuned is not None:
        title = Say("Which package of Python is a docstring from?", "一段文档字符串来自 Python 的哪个包？")
        note = Say(
            f"{shown.tuned.verdict} deberta finetune docstrings.csv took {shown.tuned.seconds:.0f} s; its own report "
            "is packages/report.html.",
            f"{shown.tuned.verdict} deberta finetune docstrings.csv 用时 {shown.tuned.seconds:.0f} 秒，"
            "它自己的报告在 packages/report.html。",
        )
        sections.append(Section(title, note=note))
    sections.append(_curves(shown))
    sections.append(_accuracy(shown))
    title = Say("Masks filled by the DeBERTa of this demo", "本次演示训练的 DeBERTa 做掩码填空")
    sections.append(_filled(title, shown.after))
    if shown.times:
        sections.append(_times(shown.times))
    return sections


def _filled(title: Say, masks: Sequence[tuple[str, Sequence[Candidate]]]) -> Section:
    rows = [(text, ", ".join(f"{guess.token} {guess.probability:.0%}" for guess in found)) for text, found in masks]
    return Section(title, (Say("text", "文本"), Say("most probable", "最可能的词")), rows, wide=True)


def _curves(shown: Shown) -> Section:
    caption = Say(
        "validation loss, nats per masked token, against steps; both take one step each in turn",
        "验证损失（每个被掩码词元的奈特数）随步数的变化；两个模型轮流各走一步",
    )
    series = [Series(name, racer.curve, number) for number, (name, racer) in enumerate(shown.racers.items())]
    return Section(Say("Pretraining from scratch", "从零预训练"), figures=chart(caption, series))


def _accuracy(shown: Shown) -> Section:
    header = ("", Say("first guess right", "首选正确"), Say("among the first five", "前五个中有正确答案"))
    names = {"unigram": Say("always the most frequent words", "总是猜最高频的词")}
    rows = [(names.get(name, name), f"{a.top1:.1%}", f"{a.top5:.1%}") for name, a in shown.accuracy.items()]
    return Section(Say("Masked words in held-out documents", "未参与训练的文档中的被掩码词"), header, rows)


def _times(times: Sequence[Measurement]) -> Section:
    note = Say(
        "Milliseconds per forward pass of 4 layers in the shape of deberta-v3-base; median, interleaved; fp32.",
        "形状与 deberta-v3-base 相同的 4 层做一次前向计算的毫秒数；交替计时，取中位数；fp32。",
    )
    header: list[Cell] = [Say("batch × length", "批大小 × 长度"), *NAMES.values()]
    rows: list[list[Cell]] = []
    for measured in times:
        timings = [measured.times.get(name) for name in NAMES]
        rows.append([measured.work, *("" if timing is None else f"{timing.median:.0f}" for timing in timings)])
    return Section(Say("Speed", "速度"), header, rows, note)
