"""An HTML page about the comparison of two runs (deberta evaluate A B --compare --report FILE)."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from debertakit.data.examples import gold
from debertakit.files import write_text
from debertakit.finetuning.charts import interval_bar, signed
from debertakit.finetuning.evaluation import finished_runs, read_predictions
from debertakit.finetuning.rendering import Cell, Section, as_html, short
from debertakit.finetuning.report import SETTING
from debertakit.finetuning.sections import GOLD, TEXT, WORST, line_name, percent, place_of, show_answer, show_text
from debertakit.finetuning.significance import Comparison
from debertakit.theme import Say, in_html

UNINTERESTING = {"seed", "train_examples", "dev_examples"}


def write_comparison(path: Path, a: Path, b: Path, found: Comparison, split: str) -> None:
    """Write the verdict, the tests, the settings that differ, and examples on which the runs disagree."""
    sides = [finished_runs(folder) for folder in (a, b)]
    records = [json.loads((side[0] / "run.json").read_text(encoding="utf-8")) for side in sides]
    names = short_names(a, b)
    metric, kind = records[0]["metric"], records[0]["kind"]
    files = [side[0] / f"predictions-{split}.jsonl" for side in sides]
    read = [read_predictions(file, kind) for file in files]
    examples, values = read[0][0], [values for _, values in read]
    sections = [differing_settings(records, names), tests(found)]
    if kind != "seq2seq":
        if kind in ("single-label", "choice"):
            sections.append(who_is_right(examples, values, names))
        sections.append(disagreements(examples, values, [confidences(file, kind) for file in files], names))
    else:
        sections.append(different_texts(examples, values, names))
    write_text(path, as_html(" / ".join(names), hero(found, names, metric, len(examples), len(sides[0])), sections))


def short_names(a: Path, b: Path) -> list[str]:
    """The names of the folders, or their paths if the names are the same."""
    names = [a.resolve().name, b.resolve().name]
    return names if names[0] != names[1] else [str(a), str(b)]


def hero(found: Comparison, names: Sequence[str], metric: str, examples: int, seeds: int) -> str:
    p = f"p = {found.randomisation_p:.2g}"
    said = Say(found.verdict(*names), f"没有显著差异（{p}）")
    if found.randomisation_p < 0.05 and found.a != found.b:
        said = Say(said.en, f"{names[0] if found.a > found.b else names[1]} 更好（{p}）")
    shown, best = metric.replace("_", " "), max(found.a, found.b)
    bars = "".join(
        f'<div class="score{" chosen" if score == best else ""}"><span>{in_html(name)}</span>'
        f'<span class="bar"><i style="width:{max(0.0, min(100.0, score)):.1f}%"></i></span>'
        f"<span>{score:.1f}</span></div>"
        for name, score in zip(names, (found.a, found.b), strict=True)
    )
    change, range_ = signed(found.difference), f"{signed(found.low)} … {signed(found.high)}"
    words = Say(
        f"{shown}, {names[0]} minus {names[1]}: {change}; 95 % interval {range_}; {examples:,} examples"
        + (f", {seeds} seeds" if seeds > 1 else ""),
        f"{shown} 之差（{names[0]} 减 {names[1]}）：{change}；95% 置信区间 {range_}；{examples:,} 个样例"
        + (f"，{seeds} 个种子" if seeds > 1 else ""),
    )
    reach = 1.2 * max(abs(found.low), abs(found.high), abs(found.difference), 0.5)
    bar = ""
    if math.isfinite(found.low):
        label = f"difference {change}, 95 % interval {range_}"
        bar = interval_bar(found.difference, found.low, found.high, 0.0, label, (-reach, reach))
    return (
        f'<section class="card hero wide"><p class="headline sentence">{in_html(said)}</p>{bars}'
        f"<p>{in_html(words)}</p>{bar}</section>"
    )


def tests(found: Comparison) -> Section:
    rows: list[tuple[Say | str, str]] = [
        (Say("approximate randomisation", "近似随机化检验"), p_value(found.randomisation_p)),
        (Say("paired bootstrap", "配对自助法"), p_value(found.bootstrap_p)),
    ]
    if found.mcnemar_p is not None:
        rows.append((Say("McNemar's exact test", "McNemar 精确检验"), p_value(found.mcnemar_p)))
    note = Say(
        "The verdict uses approximate randomisation at the 5 % level.", "结论依据近似随机化检验，显著性水平为 5%。"
    )
    return Section(Say("Tests", "检验"), (Say("test", "检验"), "p"), rows, note)


def p_value(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


def differing_settings(records: Sequence[dict[str, Any]], names: Sequence[str]) -> Section:
    keys = [key for key in records[0] if key not in UNINTERESTING and records[0].get(key) != records[1].get(key)]
    rows = [(key, *(short(record.get(key)) for record in records)) for key in keys]
    same = Say("The runs have the same settings.", "两次运行的设置相同。")
    return Section(Say("Different settings", "不同的设置"), (SETTING, *names), rows, "" if rows else same)


def who_is_right(examples: Sequence[Any], values: Sequence[Sequence[Any]], names: Sequence[str]) -> Section:
    """Counts of examples that both, one or none of the runs (first seeds) predict correctly."""
    right = [[gold(e) == value for e, value in zip(examples, side, strict=True)] for side in values]
    count = {(x, y): 0 for x in (True, False) for y in (True, False)}
    for pair in zip(*right, strict=True):
        count[pair] += 1
    rows: list[tuple[Cell, ...]] = [
        (Say("both", "两者都对"), count[True, True]),
        (Say(f"only {names[0]}", f"只有 {names[0]}"), count[True, False]),
        (Say(f"only {names[1]}", f"只有 {names[1]}"), count[False, True]),
        (Say("neither", "两者都错"), count[False, False]),
    ]
    return Section(Say("Who is right", "谁预测正确"), (Say("right", "正确"), Say("examples", "样例数")), rows)


def disagreements(
    examples: Sequence[Any], values: Sequence[Sequence[Any]], sure: Sequence[Sequence[float]], names: Sequence[str]
) -> Section:
    """Examples on which the first seeds differ, in order of the higher confidence of the two runs."""
    different = [i for i in range(len(examples)) if values[0][i] != values[1][i]]
    order = sorted(different, key=lambda i: -max(side[i] for side in sure))[:WORST]
    rows = []
    for i in order:
        example = examples[i]
        answers = [
            ("✓ " if side[i] == gold(example) else "")
            + show_answer(example, side[i])
            + (f" ({percent(chance[i])})" if chance[i] else "")
            for side, chance in zip(values, sure, strict=True)
        ]
        rows.append((place_of(example), show_answer(example, gold(example)), *answers, show_text(example)))
    note = Say(f"{len(different):,} examples have different predictions.", f"{len(different):,} 个样例的预测不同。")
    header: tuple[Cell, ...] = (line_name(examples), GOLD, *names, TEXT)
    return Section(Say("Disagreements", "预测不同的样例"), header, rows, note, listed=True, wide=True)


def different_texts(examples: Sequence[Any], values: Sequence[Sequence[Any]], names: Sequence[str]) -> Section:
    order = [i for i in range(len(examples)) if values[0][i] != values[1][i]][:WORST]
    rows = [(examples[i].target, values[0][i], values[1][i], examples[i].source) for i in order]
    header: tuple[Cell, ...] = (Say("reference", "参考"), *names, Say("source", "原文"))
    return Section(Say("Disagreements", "输出不同的样例"), header, rows, listed=True, wide=True)


def confidences(file: Path, kind: str) -> list[float]:
    """Confidence of each prediction in a file of one label per example; 0 for other kinds."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if kind not in ("single-label", "choice"):
        return [0.0] * len(lines)
    return [max(json.loads(line).get("probabilities") or [0.0]) for line in lines]
