"""Sections of a fine-tuning report: scores, curves, and the errors of the model on the dev set."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from debertakit.data.conll import has_entities
from debertakit.data.examples import Choice, Example, Question, Tagged, TextExample, gold
from debertakit.finetuning.card import Record
from debertakit.finetuning.charts import Series, chart
from debertakit.finetuning.evaluation import Evaluation
from debertakit.finetuning.rendering import Cell, Section, short
from debertakit.tasks.decisions import Prediction, softmax
from debertakit.theme import Say, Words

WORST = 20
BINS = 10
MOST_CLASSES = 40
"""Larger confusion matrices would be unreadable and are omitted."""

Figures = dict[str, float]

GOLD, PREDICTED = Say("gold", "正确答案"), Say("predicted", "预测")
CONFIDENCE, LINE, TEXT = Say("confidence", "置信度"), Say("line", "行号"), Say("text", "文本")
PRECISION, RECALL = Say("precision", "精确率"), Say("recall", "召回率")
TRAIN, DEV = Say("train", "训练"), Say("dev", "开发集")
MISTAKES = Say("Worst examples", "最严重的错误")
NO_MISTAKES = Say("There are no errors.", "没有错误。")


def scores(metrics: Record) -> Section:
    rows = [
        (split, name, value) for split in metrics if split.startswith("dev") for name, value in metrics[split].items()
    ]
    notes = [Say(f"Training took {metrics['seconds']:,.0f} s.", f"训练用时 {metrics['seconds']:,.0f} 秒。")]
    if "sift_overhead" in metrics:
        times = f"{metrics['sift_overhead']:.2f}"
        notes.append(
            Say(f"A step with SiFT took {times} times one without.", f"使用 SiFT 的一步用时为不使用时的 {times} 倍。")
        )
    if "best_f1" in metrics:
        best, threshold = f"{metrics['best_f1']:.2f}", f"{metrics['no_answer_threshold']:.2f}"
        notes.append(
            Say(
                f'The scores are for a threshold of 0 for "no answer". The best threshold on this dev set, '
                f"{threshold}, gives an F1 of {best}.",
                f"以上分数的“无答案”阈值为 0。在该开发集上，最佳阈值 {threshold} 的 F1 为 {best}。",
            )
        )
    notes += [Say(f"{name}: {text}.", f"{name}: {text}.") for name, text in metrics.get("signatures", {}).items()]
    header = (Say("split", "数据"), Say("metric", "指标"), Say("value", "值"))
    note = Say(" ".join(n.en for n in notes), "".join(n.zh for n in notes))
    return Section(Say("Scores", "分数"), header, rows, note)


def curves(history: list[Figures], metric: str, baseline: float | None = None) -> Section:
    """Loss and dev metric by step. ``baseline``: a horizontal line in the plot of the metric."""
    dev = [entry for entry in history if f"eval_{metric}" in entry]
    rows = [(e["step"], round(e["epoch"], 2), e["eval_loss"], e[f"eval_{metric}"]) for e in dev]
    train = [(float(entry["step"]), entry["loss"]) for entry in history if "loss" in entry]
    last = max([point[0] for point in train] + [float(row[0]) for row in rows], default=1.0)
    losses = [Series(TRAIN, train, 0), Series(DEV, [(float(row[0]), row[2]) for row in rows], 1)]
    name = metric.replace("_", " ")
    found = [Series("", [(float(row[0]), row[3]) for row in rows], 1)]
    if baseline is not None:
        found.append(Series(Say("baseline", "基线"), [(0.0, baseline), (last, baseline)], 2, dashed=True))
    drawn = chart(Say("Loss by step", "损失（按步）"), losses)
    drawn += chart(Say(f"Dev {name} by step", f"开发集 {name}（按步）"), found)
    header = (
        Say("step", "步"),
        Say("epoch", "轮"),
        Say("dev loss", "开发集损失"),
        Say(f"dev {name}", f"开发集 {name}"),
    )
    return Section(Say("Training", "训练过程"), header, rows, figures=drawn, wide=True)


def errors(kind: str, evaluation: Evaluation, labels: tuple[str, ...]) -> list[Section]:
    """Sections on the model's errors and its calibration."""
    if kind == "regression":
        return [scatter(evaluation), worst(evaluation, [abs(gold(e) - p.value) for e, p in _pairs(evaluation)])]
    if kind == "qa":
        wrong = [0.0 if _answered(e, p.value) else 1 + answer_confidence(p) for e, p in _pairs(evaluation)]
        return [worst(evaluation, wrong, [percent(answer_confidence(p)) for p in evaluation.predictions])]
    if kind == "tagging":
        missed = [float(sum(g != t for g, t in zip(e.tags, p.value, strict=True))) for e, p in _pairs(evaluation)]
        return [
            *(tagged_words(evaluation, labels) if not has_entities(labels) else [per_entity(evaluation)]),
            worst(evaluation, missed, [tag_confidence(e, p) for e, p in _pairs(evaluation)]),
        ]
    if kind == "multi-label":
        truth = np.array([[label in gold(e) for label in labels] for e in evaluation.examples])
        sure = np.array([p.probabilities for p in evaluation.predictions])
        far = np.abs(truth - sure)
        places = far.argmax(1)  # the label that is most wrong
        certainty = [f"{labels[i]} {percent(float(row[i]))}" for i, row in zip(places, sure, strict=True)]
        sections = [per_class(truth, sure >= 0.5, labels), calibration(sure.ravel(), truth.ravel())]
        return [*sections, worst(evaluation, far.max(1).tolist(), certainty)]
    options = [range(len(p.probabilities)) if kind == "choice" else labels for p in evaluation.predictions]
    chance = [
        p.probabilities[list(names).index(gold(e))] if gold(e) in names else 0.0
        for (e, p), names in zip(_pairs(evaluation), options, strict=True)
    ]
    right = np.array([gold(e) == p.value for e, p in _pairs(evaluation)])
    sure = np.array([max(p.probabilities) for p in evaluation.predictions])
    sections = [calibration(sure, right)]
    if kind == "single-label":
        truth = np.array([[gold(e) == label for label in labels] for e in evaluation.examples])
        guess = np.array([[value == label for label in labels] for value in evaluation.values])
        sections = [confusion(truth, guess, labels), per_class(truth, guess, labels), *sections]
    badness = [0.0 if ok else 1 - c for ok, c in zip(right, chance, strict=True)]
    return [*sections, worst(evaluation, badness, [percent(p) for p in sure.tolist()])]


def confusion(truth: np.ndarray, guess: np.ndarray, labels: tuple[str, ...]) -> Section:
    title = Say("Confusion", "混淆矩阵")
    if len(labels) > MOST_CLASSES:
        return Section(title, note=Say(f"Omitted: {len(labels)} classes.", f"类别过多，已省略：{len(labels)} 类。"))
    counts = truth.astype(int).T @ guess.astype(int)  # [gold, predicted]
    rows: list[Sequence[Cell]] = [(label, *row) for label, row in zip(labels, counts.tolist(), strict=True)]
    corner = Say("gold \\ predicted", "正确 \\ 预测")
    return Section(title, (corner, *labels), rows, shaded=True, wide=len(labels) > 5)


def per_class(truth: np.ndarray, guess: np.ndarray, labels: tuple[str, ...]) -> Section:
    from sklearn.metrics import precision_recall_fscore_support

    rows = []
    for label, there, guessed in zip(labels, truth.T.astype(int), guess.T.astype(int), strict=True):
        p, r, f, _ = precision_recall_fscore_support(there, guessed, average="binary", zero_division=0)
        rows.append((label, 100 * p, 100 * r, 100 * f, int(there.sum())))
    header = (Say("class", "类别"), PRECISION, RECALL, "F1", Say("examples", "样例数"))
    return Section(Say("Classes", "各类别"), header, rows)


def tagged_words(evaluation: Evaluation, labels: tuple[str, ...]) -> list[Section]:
    """Confusion and scores of tags that mark no entities, over words."""
    truth = np.array([tag for example in evaluation.examples for tag in gold(example)])[:, None] == labels
    guess = np.array([tag for value in evaluation.values for tag in value])[:, None] == labels
    return [confusion(truth, guess, labels), per_class(truth, guess, labels)]


def per_entity(evaluation: Evaluation) -> Section:
    from seqeval.metrics import classification_report

    tags = [list(gold(example)) for example in evaluation.examples]
    table = classification_report(tags, [list(v) for v in evaluation.values], output_dict=True, zero_division=0)
    rows = [
        (name, 100 * row["precision"], 100 * row["recall"], 100 * row["f1-score"], int(row["support"]))
        for name, row in table.items()
    ]
    header = (Say("type", "类型"), PRECISION, RECALL, "F1", Say("entities", "实体数"))
    return Section(Say("Entities", "实体"), header, rows)


def calibration(confidence: np.ndarray, right: np.ndarray) -> Section:
    """ECE = sum over bins of share * |accuracy - mean confidence|."""
    ece, rows = expected_calibration_error(confidence, right)
    found = Series(Say("model", "模型"), [(row[2], row[3]) for row in rows], 0)
    perfect = Series(Say("perfect", "理想"), [(0.0, 0.0), (1.0, 1.0)], 2, dashed=True)
    drawn = chart(Say("Accuracy by confidence", "准确率（按置信度）"), [perfect, found], (0, 1, 0, 1))
    value = f"{100 * ece:.2f} %"
    note = Say(
        f"Expected calibration error: {value}. On the dashed line, confidence equals accuracy.",
        f"期望校准误差：{value}。虚线上的置信度等于准确率。",
    )
    header = (CONFIDENCE, Say("examples", "样例数"), Say("mean confidence", "平均置信度"), Say("accuracy", "准确率"))
    return Section(Say("Calibration", "校准"), header, rows, note, drawn, wide=True)


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
    points = [(float(gold(e)), float(p.value)) for e, p in _pairs(evaluation)]
    low, high = min(map(min, points)), max(map(max, points))
    high += (high == low) * 1.0
    perfect = Series(Say("perfect", "理想"), [(low, low), (high, high)], 2, dashed=True)
    found = Series(Say("examples", "样例"), points, 0, joined=False)
    drawn = chart(Say("Predicted by gold value", "预测值（按正确值）"), [perfect, found], (low, high, low, high))
    return Section(Say("Gold and predicted", "正确值与预测值"), figures=drawn)


# --------------------------------------------------------------------------------------------------------- mistakes


def worst(evaluation: Evaluation, badness: Sequence[float], confidence: Sequence[str] | None = None) -> Section:
    """List the examples with the largest ``badness``. An example with ``badness`` 0 is correct."""
    order = sorted((i for i in range(len(badness)) if badness[i] > 0), key=lambda i: -badness[i])[:WORST]
    rows = []
    for i in order:
        example, prediction = evaluation.examples[i], evaluation.predictions[i]
        answers = (show_answer(example, gold(example)), show_answer(example, prediction.value))
        shown = short(badness[i]) if confidence is None else confidence[i]
        rows.append((place_of(example), *answers, shown, show_text(example)))
    last = CONFIDENCE if confidence is not None else Say("error", "误差")
    header = (line_name(evaluation.examples), GOLD, PREDICTED, last, TEXT)
    return Section(MISTAKES, header, rows, "" if rows else NO_MISTAKES, listed=True, wide=True)


def line_name(examples: Sequence[Example]) -> Words:
    return LINE if any(line_of(example) is not None for example in examples) else "id"


def line_of(example: Example) -> int | None:
    return None if isinstance(example, Question) else example.line


def place_of(example: Example) -> str:
    """The example's line in its file, or its id."""
    line = line_of(example)
    return example.id if line is None else str(line)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def answer_confidence(prediction: Prediction) -> float:
    """Probability of the answer among the best answers and "no answer"."""
    scores = [span.score for span in prediction.answers]
    if not scores:
        return 1.0
    chances = softmax([*scores, scores[0] + prediction.no_answer])
    return float(chances[-1] if prediction.value == "" else chances[0])


def tag_confidence(example: Tagged, prediction: Prediction) -> str:
    """Mean probability of the wrong tags."""
    tags = zip(example.tags or (), prediction.value, prediction.probabilities, strict=True)
    wrong = [chance for truth, guess, chance in tags if truth != guess]
    return percent(float(np.mean(wrong))) if wrong else ""


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
    return short(value) if value != "" else "no answer"


def _pairs(evaluation: Evaluation) -> list[tuple[Any, Prediction]]:
    return list(zip(evaluation.examples, evaluation.predictions, strict=True))


def _answered(example: Question, value: str) -> bool:
    return value in (example.answers or ("",))


def _clip(text: str, most: int = 600) -> str:
    return text if len(text) <= most else text[:most] + " …"
