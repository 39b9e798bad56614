"""report.html, report.md and results.json of a comparison. The curves are drawn only in report.html."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from debertakit.files import write_json, write_text
from debertakit.finetuning.charts import Series, chart
from debertakit.finetuning.rendering import Section, as_html, as_markdown, short
from debertakit.finetuning.significance import Summary
from debertakit.lab.claims import Claim
from debertakit.lab.compare import Prepared
from debertakit.lab.floors import ORDERS
from debertakit.lab.results import BITS, PAIRS, WORDS, Point, Results, Row, collect
from debertakit.theme import Say, Words, in_html

TITLE = "deberta compare"
COLOURS = (0, 1, 3, 4, 5, 6, 7, 8, 2)
TWO_SEEDS = (
    "Two seeds make the test too sure: where seeds matter ten times as much as examples, one in eight comparisons of "
    "equal models has p < 0.05 (simulated)."
)
VERDICTS = {"supported": "支持", "not shown": "未证明", "contradicted": "相反"}


def write_report(prepared: Prepared) -> str:
    """Write the three files, and return the verdicts in words."""
    found = collect(prepared)
    write_json(prepared.out / "results.json", as_json(found))
    write_text(prepared.out / "report.md", as_text(found))
    write_text(prepared.out / "report.html", as_page(found))
    said = "\n".join(map(str, found.claims))
    return f"{said}\nreport: {prepared.out / 'report.html'}"


def as_json(found: Results) -> dict[str, Any]:
    whole = asdict(found)
    whole["claims"] = [{**asdict(claim), "verdict": claim.verdict} for claim in found.claims]
    return whole


def as_page(found: Results) -> str:
    return as_html(TITLE, _hero(found), sections(found))


def as_text(found: Results) -> str:
    return as_markdown(TITLE, [lead(found).en], sections(found))


def sections(found: Results) -> list[Section]:
    return [
        claims(found),
        scores(found),
        curves(found),
        cost(found),
        limits(found),
        *([paradigms(found)] if found.paradigms else []),
        settings(found),
        *(config(name, fields) for name, fields in found.configs.items()),
    ]


def lead(found: Results) -> Say:
    counts = {verdict: sum(claim.verdict == verdict for claim in found.claims) for verdict in VERDICTS}
    first = found.rows[0].name
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    translated = "，".join(f"{VERDICTS[verdict]} {count}" for verdict, count in counts.items())
    tokens, seeds = f"{found.run_tokens:,}", found.settings["seeds"]
    return Say(
        f"Claims that {first} is better: {told}. {tokens} tokens a run, {seeds} seeds.",
        f"关于“{first} 更好”的论断：{translated}。每次运行 {tokens} 词元，{seeds} 个种子。",
    )


def _hero(found: Results) -> str:
    return f'<section class="card hero wide"><p class="headline sentence">{in_html(lead(found))}</p></section>'


# ------------------------------------------------------------------------------------------------------------- sections


def claims(found: Results) -> Section:
    rows = [(*_claim(claim), *_numbers(claim)) for claim in found.claims]
    header = (
        Say("claim", "论断"),
        Say("measure", "指标"),
        Say("verdict at this scale", "此规模下的结论"),
        Say("difference", "差"),
        Say("95 % interval", "95% 区间"),
        Say("p (Holm)", "p（Holm）"),
    )
    note = Say(
        "Paired over seeds and examples; t-tests with the variance of both, at the 5 % level after Holm's correction "
        "over all claims of this table. A positive difference is in favour of the claim. Not shown means that this run "
        "cannot tell; it does not mean that the two are equal.",
        "按种子与样例配对；t 检验同时计入两者的方差，对表中全部论断作 Holm 校正，显著性水平 5%。差为正表示支持论断。"
        "“未证明”表示此次运行无法判断，并不表示两者相同。",
    )
    return Section(Say("Claims", "论断"), header, rows, note, wide=True)


def _claim(claim: Claim) -> tuple[Words, Words, Words]:
    said = Say(f"{claim.better} is better than {claim.than}", f"{claim.better} 优于 {claim.than}")
    return said, claim.measure, Say(claim.verdict, VERDICTS[claim.verdict])


def _numbers(claim: Claim) -> tuple[str, str, str]:
    each = claim.difference
    return f"{each.mean:+.3g}", f"{each.low:+.3g} … {each.high:+.3g}", f"{claim.corrected_p:.2g}"


def scores(found: Results) -> Section:
    """Mean ± standard deviation over the seeds; floors below the models."""
    rows = [
        (row.name, *(_score(row.summary(measure), found) for measure in found.measures))
        for row in (*found.rows, *found.floors)
    ]
    note = Say(
        f"Mean ± standard deviation over the seeds. {WORDS} and {PAIRS}: per cent right. {BITS}: lower is better. The "
        "last rows are floors without a neural network. A dash: the measure does not exist for this kind of model (a "
        "discriminator does not predict words). A causal model reads only the text on the left of a hidden word.",
        "各种子的平均 ± 标准差。隐藏词与最小对：正确百分比；每字符比特数越低越好。最后几行是无神经网络的基线。"
        "横线表示该类模型没有此指标。因果模型只读取隐藏词左侧的文本。",
    )
    return Section(Say("Scores", "分数"), (Say("recipe", "配方"), *found.measures), rows, note, wide=True)


def _score(value: Summary | None, found: Results) -> str:
    if value is None:
        return "–"
    spread = f" ± {value.sd:.2g}" if found.settings["seeds"] > 1 and value.sd else ""
    return f"{value.mean:.2f}{spread}"


def curves(found: Results) -> Section:
    speeds = {row.name: row.tokens_per_second for row in found.rows}

    def thousands(name: str, point: Point) -> float:
        return point.tokens / 1e3

    def seconds(name: str, point: Point) -> float:
        return point.tokens / (speeds[name] or 1.0)

    captions = {
        Say("bits per character by thousand tokens", "每字符比特数（按千词元）"): thousands,
        Say("bits per character by seconds of one quiet core", "每字符比特数（按单个空闲核心的秒数）"): seconds,
    }
    drawn = "".join(_curves(found, caption, x) for caption, x in captions.items())
    note = Say(
        "Bits per character of the first hidden words, at checkpoints of the run. The bands reach from the lowest to "
        "the highest seed. Seconds are tokens divided by the measured speed.",
        "在各检查点上测得的隐藏词每字符比特数。阴影为各种子的最低至最高值。秒数由词元数除以实测速度得出。",
    )
    header = (Say("recipe", "配方"), *(Say(f"{share}/4 of the run", f"运行的 {share}/4") for share in (1, 2, 3, 4)))
    rows = [(name, *_quarters(points)) for name, points in found.curves.items()]
    return Section(Say("Learning curves", "学习曲线"), header, rows, note, drawn, wide=True)


def _curves(found: Results, caption: Words, x: Callable[[str, Point], float]) -> str:
    lines = []
    for number, (name, points) in enumerate(found.curves.items()):
        series = [(x(name, point), point.mean) for point in points]
        band = [(x(name, point), point.low, point.high) for point in points]
        lines.append(Series(name, series, COLOURS[number % len(COLOURS)], dashed=number >= len(COLOURS), band=band))
    return chart(caption, lines)


def _quarters(points: list[Point]) -> list[str]:
    return [f"{points[max(0, len(points) * share // 4 - 1)].mean:.2f}" for share in (1, 2, 3, 4)]


def cost(found: Results) -> Section:
    rows = []
    for row in found.rows:
        seconds = found.run_tokens / row.tokens_per_second if row.tokens_per_second else 0.0
        rate = f"{row.rate:g}" + (" (edge)" if row.rate_at_edge else "")
        size = f"{row.parameters or 0:,}" + (f" ({row.widened})" if row.widened else "")
        speed, memory = f"{row.tokens_per_second or 0:,.0f}", f"{row.peak_mb or 0:,.0f}"
        ratio, sweep = _ratio(row, found.rows[0]), f"{row.sweep_tokens:,}"
        rows.append((row.name, size, ratio, rate, sweep, speed, f"{seconds:,.0f}", memory))
    header = (
        Say("recipe", "配方"),
        Say("parameters", "参数量"),
        Say("against the first", "相对第一个"),
        Say("learning rate", "学习率"),
        Say("sweep, tokens", "搜索所用词元"),
        Say("tokens/s", "词元/秒"),
        Say("seconds a run", "每次运行秒数"),
        Say("peak MB", "内存峰值 MB"),
    )
    note = Say(
        "Speed is measured apart from the runs, as processor time of training steps, one run at a time. Parameters are "
        "those of the exported model: a generator is not counted. (edge): the best learning rate is the lowest or "
        "highest that the sweep tried, so a better one may lie outside.",
        "速度与训练分开测量，为训练步的处理器时间，一次只测一个。参数量为导出模型的参数量，不含生成器。"
        "(edge)：最佳学习率位于搜索范围的边缘，更好的值可能在范围之外。",
    )
    return Section(Say("Size, learning rate and cost", "规模、学习率与开销"), header, rows, note, wide=True)


def _ratio(row: Row, first: Row) -> str:
    return f"{100 * ((row.parameters or 0) / (first.parameters or 1) - 1):+.1f} %"


def limits(found: Results) -> Section:
    settings = found.settings
    seeds, rates = settings["seeds"], settings["rates"]
    n_gram = " and ".join(ORDERS)
    rows: list[tuple[Words, Words]] = [
        (
            Say("scale", "规模"),
            Say(
                f"{found.run_tokens:,} tokens and {found.rows[0].parameters or 0:,} parameters a run. Nothing here "
                "says what happens with a thousand times as much. A model that is still on its plateau (see the "
                "curves) may overtake the others later.",
                "结论只适用于此规模。仍处于平台期的模型以后可能反超。",
            ),
        ),
        (
            Say("seeds", "种子"),
            Say(
                f"{seeds} seeds. "
                + ("One seed shows nothing." if seeds == 1 else "")
                + (TWO_SEEDS if seeds == 2 else ""),
                f"{seeds} 个种子。",
            ),
        ),
        (
            Say("examples", "样例"),
            Say(
                f"{found.hidden_words:,} hidden words of {found.hidden_texts:,} held-out passages of this corpus.",
                f"来自 {found.hidden_texts:,} 段留出文本的 {found.hidden_words:,} 个隐藏词。",
            ),
        ),
        (
            Say("learning rates", "学习率"),
            Say(
                f"{rates} rates a recipe, compared by validation loss on {settings['sweep']:g} of the budget and more. "
                "All other hyper-parameters are those of the recipe."
                if rates > 1
                else "No sweep: every recipe has its own learning rate, which nobody tuned for this budget.",
                f"每个配方 {rates} 个学习率。",
            ),
        ),
        (
            Say("tokenizer", "分词器"),
            Say(
                "One tokenizer for all recipes: the same text in the same number of tokens."
                if settings["tokenizer"]
                else "Each recipe has its own kind of tokenizer, of one size: equal tokens are not exactly equal text.",
                "所有配方共用一个分词器。" if settings["tokenizer"] else "各配方使用各自类型的分词器。",
            ),
        ),
        (
            Say("floors", "基线"),
            Say(
                f"The {n_gram} are counted on the first 4 M characters of the training text.",
                "n 元模型取自训练文本的前 400 万个字符。",
            ),
        ),
    ]
    if not settings["tasks"]:
        no_tasks = Say("Nothing was fine-tuned: these numbers say nothing about tasks.", "没有微调任务。")
        rows.append((Say("tasks", "任务"), no_tasks))
    if settings["quick"]:
        rows.append(
            ("--quick", Say("A trial of the command: no number here means anything.", "仅为试运行，数字没有意义。"))
        )
    title = Say("What this run can and cannot show", "此次运行能说明与不能说明什么")
    return Section(title, (Say("about", "关于"), ""), rows, wide=True)


def paradigms(found: Results) -> Section:
    names = list(found.paradigms)
    rows = [
        (paradigm, *(f"{100 * found.paradigms[name][paradigm]:.0f}" for name in names))
        for paradigm in found.paradigms[names[0]]
    ]
    note = Say(
        "Per cent right, mean over the seeds. Chance is 50; a tie is wrong.", "正确百分比，各种子平均；随机为 50。"
    )
    return Section(
        Say("Minimal pairs by paradigm", "各类最小对"),
        (Say("paradigm", "类别"), *names),
        rows,
        note,
        folded=True,
        wide=True,
    )


def settings(found: Results) -> Section:
    rows = [(name, short(value)) for name, value in {**found.settings, **found.machine}.items()]
    title, header = Say("Command and machine", "命令与机器"), (Say("setting", "设置"), Say("value", "值"))
    return Section(title, header, rows, folded=True, wide=True)


def config(name: str, fields: dict[str, object]) -> Section:
    flat: dict[str, object] = {}
    for key, value in fields.items():
        inside = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{part}".rstrip("."): each for part, each in inside.items()}
    rows = [(key, short(value)) for key, value in flat.items()]
    return Section(name, (Say("field", "字段"), Say("value", "值")), rows, folded=True, wide=True)
