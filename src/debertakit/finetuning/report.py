"""Reports of a run: report.html (one file, works offline), report.md and the model card.

Both reports have the same sections: a table, a chart, or both. report.html begins with the result: the score, its
baseline and its interval. Settings that differ from the default come before the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from debertakit.files import write_json, write_text
from debertakit.finetuning.card import Record, model_card, task_name
from debertakit.finetuning.charts import interval_bar
from debertakit.finetuning.rendering import Section, as_html, as_markdown, short
from debertakit.finetuning.sections import Figures, curves, scores
from debertakit.finetuning.significance import summary
from debertakit.finetuning.verdict import Verdict
from debertakit.theme import Say, Words, in_html

CHINESE = {"accuracy": "准确率", "exact": "完全匹配率", "majority class": "多数类", "chance": "随机猜测"}
SETTINGS, SETTING = Say("Settings", "设置"), Say("setting", "设置")
CHANGED = Say("Changed settings", "非默认设置")
VALUE, DEFAULT = Say("value", "值"), Say("default", "默认值")


def write_report(
    folder: Path,
    record: Record,
    metrics: Record,
    history: list[Figures],
    errors: Sequence[Section],
    *,
    curve: str | None = None,
    verdict: Verdict | None = None,
    defaults: Mapping[str, object] | None = None,
) -> None:
    """Write report.html, report.md and the model card.

    ``record``: contents of run.json. ``history``: the Trainer's log. ``errors``: sections on the errors of the best
    model on the dev set. ``curve``: the dev metric to plot; default: the metric that selected the checkpoint.
    ``defaults``: the value of each option if the user had not set it.
    """
    title = f"{task_name(record)} · {Path(record['model']).name}"
    baseline = verdict.baseline if verdict and curve is None else None
    sections = [
        scores(metrics),
        changed_settings(record, defaults or {}),
        curves(history, curve or record["metric"], baseline),
        *errors,
        Section(SETTINGS, (SETTING, VALUE), [(k, short(v)) for k, v in record.items()], folded=True, wide=True),
    ]
    if verdict is None:
        value = metrics["dev"].get(record["metric"])
        hero, lead = plain_hero(record["metric"], value), [] if value is None else [f"{record['metric']} {value:.2f}"]
    else:
        hero, lead = verdict_hero(verdict), str(verdict).splitlines()
    write_text(folder / "report.html", as_html(title, hero, sections))
    write_text(folder / "report.md", as_markdown(title, lead, sections))
    write_text(folder / "README.md", model_card(record, metrics))


def write_summary(folder: Path, record: Record, runs: list[tuple[str, Figures]]) -> None:
    """Write summary.json, report.html and report.md over several seeds."""
    names = list(runs[0][1])
    found = {name: summary([figures[name] for _, figures in runs]) for name in names}
    best = max(runs, key=lambda entry: entry[1][record["metric"]])[0]
    over = [(name, s.mean, s.sd, s.low, s.high) for name, s in found.items()]
    note = Say(f"Best on the dev set: {best}.", f"开发集上最好的是 {best}。")
    seeds = Say(f"Over {len(runs)} seeds", f"{len(runs)} 个随机种子")
    statistics = (
        Say("dev", "开发集"),
        Say("mean", "平均"),
        Say("sd", "标准差"),
        Say("min", "最小"),
        Say("max", "最大"),
    )
    settings = [(k, short(v)) for k, v in record.items() if k != "seed"]
    sections = [
        Section(seeds, statistics, over, note),
        Section(Say("Each seed", "各种子"), ("", *names), [(run, *figures.values()) for run, figures in runs]),
        Section(SETTINGS, (SETTING, VALUE), settings, folded=True, wide=True),
    ]
    title = f"{task_name(record)} · {Path(record['model']).name}"
    main = found[record["metric"]]
    spread = Say(
        f"mean of {len(runs)} seeds; standard deviation {main.sd:.2f}; from {main.low:.1f} to {main.high:.1f}",
        f"{len(runs)} 个种子的平均；标准差 {main.sd:.2f}；范围 {main.low:.1f} 至 {main.high:.1f}",
    )
    bar = interval_bar(main.mean, main.low, main.high, None, f"mean {main.mean:.1f}")
    write_text(folder / "report.html", as_html(title, hero_card(record["metric"], main.mean, spread, bar), sections))
    write_text(folder / "report.md", as_markdown(title, [f"{record['metric']} {main}"], sections))
    write_json(folder / "summary.json", {name: asdict(s) for name, s in found.items()})


def changed_settings(record: Record, defaults: Mapping[str, object]) -> Section:
    rows = [
        (name, short(record[name]), short("from the data" if usual is None and name == "max_length" else usual))
        for name, usual in defaults.items()
        if name in record and record[name] != usual
    ]
    none = Say("All options have their default values.", "所有选项均为默认值。")
    return Section(CHANGED, (SETTING, VALUE, DEFAULT), rows, "" if rows else none)


# --------------------------------------------------------------------------------------------------------- headline


def verdict_hero(verdict: Verdict) -> str:
    """The score with its baseline and its interval, in words and as a picture, and the warnings."""
    range_ = f"{verdict.low:.0f}–{verdict.high:.0f}"
    count = f"{verdict.examples:,}"
    words = Say(f"95 % interval {range_} on {count} dev examples", f"{count} 个开发集样例，95% 置信区间 {range_}")
    if verdict.baseline is not None:
        name, base = verdict.baseline_name, f"{verdict.baseline:.1f} %"
        words = Say(f"{name}: {base}; {words.en}", f"{CHINESE.get(name, name)}：{base}；{words.zh}")
    bar = ""
    if math.isfinite(verdict.low):
        bar = interval_bar(verdict.score, verdict.low, verdict.high, verdict.baseline, verdict.line)
    return hero_card(verdict.metric, verdict.score, words, bar, verdict.warnings)


def plain_hero(metric: str, value: float | None) -> str:
    """A score without baseline and interval."""
    return "" if value is None else hero_card(metric, value, "", "")


def hero_card(metric: str, value: float, words: Words, bar: str, warnings: Sequence[str] = ()) -> str:
    name = metric.replace("_", " ")
    unit = " %" if metric in ("accuracy", "exact") else ""
    shown = in_html(Say(name, CHINESE.get(metric, name)))
    shown_warnings = "".join(f'<p class="warning" lang="en">{in_html(warning)}</p>' for warning in warnings)
    return (
        f'<section class="card hero wide"><p class="headline">{value:.1f}{unit} <small>{shown}</small></p>'
        f"<p>{in_html(words)}</p>{bar}{shown_warnings}</section>"
    )
