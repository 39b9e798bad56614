"""Translation and summarisation: an encoder-decoder trained on pairs of texts, and what its texts are worth.

    loss = mean over target tokens of  (1 - s) * -ln p(token)  +  s * mean over the vocabulary of -ln p

with label smoothing s. A step is a budget of tokens, source and target together, of pairs of like length. Which pairs
it holds is a function of (seed, step), and the learning rate one of the share that is done, of the steps or of the
minutes: a run that was cut off goes on from its last checkpoint.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from debertakit.generation.command import is_seq2seq, write_all
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM
from debertakit.heads import IGNORED
from debertakit.pretraining.log import Log
from debertakit.pretraining.optim import Optimizer, clip_gradients, learning_rate, make_optimizer
from debertakit.text.tokenizers import load_tokenizer

METRICS = ("bleu", "rouge")


@dataclass(frozen=True)
class Settings:
    epochs: float = 20.0
    minutes: float | None = None
    """Train for this long instead."""
    step_tokens: int = 4096
    """Source and target tokens of a step."""
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(lr=1e-3, beta2=0.98, eps=1e-8, weight_decay=0.01, warmup_steps=400)
    )
    label_smoothing: float = 0.1
    max_source: int = 128
    max_target: int = 128
    """Tokens, [CLS] and [SEP] among them; longer texts are cut."""
    beams: int = 4
    seed: int = 0
    log_every: int = 100
    evaluate_every: int = 1000
    checkpoint_every: int = 500


class Pair(NamedTuple):
    source: str
    target: str


def read_pairs(source: Path, target: Path | None = None, fields: tuple[str, str] = ("source", "target")) -> list[Pair]:
    """Two parallel text files, or one file of JSON lines with these fields; pairs with an empty side are left out."""
    lines = source.read_text(encoding="utf-8").splitlines()
    if target is not None:
        others = target.read_text(encoding="utf-8").splitlines()
        if len(lines) != len(others):
            raise ValueError(f"{source} has {len(lines):,} lines and {target} {len(others):,}: they are not parallel")
        pairs = [Pair(*pair) for pair in zip(lines, others, strict=True)]
    else:
        pairs = [_from_json(source, number, line, fields) for number, line in enumerate(lines, 1) if line.strip()]
    pairs = [Pair(*(" ".join(side.split()) for side in pair)) for pair in pairs]
    kept = [pair for pair in pairs if pair.source and pair.target]
    if not kept:
        raise ValueError(f"{source} holds no pairs of texts")
    return kept


def _from_json(path: Path, number: int, line: str, fields: tuple[str, str]) -> Pair:
    try:
        row = json.loads(line)
        return Pair(str(row[fields[0]]), str(row[fields[1]]))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}, line {number}: not a JSON object with {fields[0]!r} and {fields[1]!r}") from None


# ------------------------------------------------------------------------------------------------------------- batches


class Batch(NamedTuple):
    input_ids: Tensor  # [batch, source]
    attention_mask: Tensor
    labels: Tensor  # [batch, target], -100 behind the end


@dataclass
class Batches:
    """Steps over encoded pairs; ``batch(step)`` is a function of the seed and the step."""

    sources: list[list[int]]
    labels: list[list[int]]
    step_tokens: int
    seed: int
    pad: int

    @classmethod
    def of(cls, pairs: Sequence[Pair], tokenizer: Any, settings: Settings) -> "Batches":
        def encode(texts: list[str], longest: int) -> list[list[int]]:
            return tokenizer(texts, truncation=True, max_length=longest)["input_ids"]

        sources = encode([pair.source for pair in pairs], settings.max_source)
        targets = encode([pair.target for pair in pairs], settings.max_target)
        labels = [ids[1:] for ids in targets]  # the start is given, not predicted
        return cls(sources, labels, settings.step_tokens, settings.seed, tokenizer.pad_token_id)

    def __post_init__(self) -> None:
        sizes = np.array([len(s) + len(t) for s, t in zip(self.sources, self.labels, strict=True)])
        self._sizes = sizes
        ends = np.cumsum(np.sort(sizes))
        self._cuts = np.searchsorted(ends, np.arange(self.step_tokens, ends[-1], self.step_tokens), side="right")
        self._order: tuple[int, list[np.ndarray]] | None = None

    def __len__(self) -> int:
        """Steps in a pass over the pairs."""
        return len(self._cuts) + 1

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, len(self))
        if self._order is None or self._order[0] != epoch:
            draw = np.random.default_rng((self.seed, epoch))
            shuffled = draw.permutation(len(self._sizes))
            by_size = shuffled[np.argsort(self._sizes[shuffled], kind="stable")]
            parts = np.split(by_size, self._cuts)
            self._order = epoch, [parts[i] for i in draw.permutation(len(parts))]
        return self.make(self._order[1][place].tolist())

    def make(self, chosen: list[int]) -> Batch:
        def block(rows: list[list[int]], fill: int) -> Tensor:
            return pad_sequence([torch.tensor(rows[i]) for i in chosen], batch_first=True, padding_value=fill)

        sources = block(self.sources, self.pad)
        lengths = torch.tensor([len(self.sources[i]) for i in chosen])
        mask = (torch.arange(sources.shape[1]) < lengths[:, None]).long()
        return Batch(sources, mask, block(self.labels, IGNORED))


# ------------------------------------------------------------------------------------------------------------ training


def labelled_logits(model: Any, batch: Batch) -> Tensor:
    """[labelled tokens, vocabulary]"""
    decoder_ids = model.prepare_decoder_input_ids_from_labels(batch.labels)
    wanted = batch.labels != IGNORED
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        decoder_input_ids=decoder_ids,
        decoder_attention_mask=wanted.long(),
    ).logits
    return logits[wanted]


def train(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Pair],
    dev: Sequence[Pair],
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
) -> dict[str, float]:
    """Train in place, any encoder-decoder of transformers or ours; model and tokenizer are left in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists() and not resume:
        raise ValueError(f"{out} holds a run already; go on with --resume, or choose another folder")
    torch.manual_seed(settings.seed)
    batches, held_out = (Batches.of(half, tokenizer, settings) for half in (pairs, dev))
    optimizer = make_optimizer(model, settings.optimizer)
    step, before = _load(checkpoint, model, optimizer) if checkpoint.exists() else (0, 0.0)
    total: float
    total, unit = max(1, round(settings.epochs * len(batches))), "steps"
    if settings.minutes is not None:
        total, unit = 60 * settings.minutes, "seconds"
    log = Log(out, "none", total, unit, step)
    began, elapsed = time.monotonic(), before
    losses: list[float] = []
    tokens = 0
    mark = (began, 0)
    figures: dict[str, float] = {}
    try:
        while (done := elapsed if settings.minutes is not None else step) < total:
            model.train()
            rate = learning_rate(settings.optimizer, step, done / total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = batches.batch(step)
            logits = labelled_logits(model, batch)
            targets = batch.labels[batch.labels != IGNORED]
            loss = F.cross_entropy(logits.float(), targets, label_smoothing=settings.label_smoothing)
            loss.backward()
            clip_gradients(model, settings.optimizer.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            elapsed = before + time.monotonic() - began
            losses.append(loss.item())
            tokens += int(batch.attention_mask.sum()) + len(targets)
            done = elapsed if settings.minutes is not None else step
            log.advance(done, step, losses[-1])
            last = done >= total
            if step % settings.log_every == 0 or last:
                now = time.monotonic()
                rates = {"tokens_per_second": (tokens - mark[1]) / (now - mark[0]), "lr": rate}
                log.write("train", step, loss=sum(losses) / len(losses), **rates, elapsed=elapsed)
                losses, mark = [], (now, tokens)
            if step % settings.evaluate_every == 0 or last:
                figures = evaluate_loss(model, held_out)
                log.write("dev", step, **figures, epochs=step / len(batches), elapsed=elapsed)
            if step % settings.checkpoint_every == 0 or last:
                _save(checkpoint, model, optimizer, step, elapsed)
    finally:
        log.close()
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "settings.json").write_text(json.dumps(asdict(settings), indent=1), encoding="utf-8")
    return {**figures, "steps": step, "minutes": elapsed / 60}


@torch.inference_mode()
def evaluate_loss(model: Any, batches: Batches) -> dict[str, float]:
    """Mean loss of the target tokens, without smoothing, and its perplexity."""
    model.eval()
    total, count = 0.0, 0
    for step in range(len(batches)):
        batch = batches.batch(step)
        targets = batch.labels[batch.labels != IGNORED]
        total += F.cross_entropy(labelled_logits(model, batch).float(), targets, reduction="sum").item()
        count += len(targets)
    return {"loss": total / count, "perplexity": math.exp(min(total / count, 50))}


def _save(path: Path, model: Any, optimizer: Any, step: int, elapsed: float) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    aside = path.with_suffix(".part")
    torch.save({**state, "step": step, "elapsed": elapsed}, aside)
    aside.replace(path)


def _load(path: Path, model: Any, optimizer: Any) -> tuple[int, float]:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return state["step"], state["elapsed"]


# -------------------------------------------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class Scores:
    figures: dict[str, float]
    signatures: dict[str, str]
    """What sacreBLEU says about how it counted."""
    texts: list[str]


def evaluate(
    model: Any, tokenizer: Any, pairs: Sequence[Pair], settings: Settings, metric: str, batch: int = 32
) -> Scores:
    """Write a text for each source and score it: ``bleu`` (sacreBLEU and chrF) or ``rouge`` (1, 2, L)."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    texts = write_all(
        model,
        tokenizer,
        [pair.source for pair in pairs],
        batch,
        longest=settings.max_source,
        max_new_tokens=settings.max_target,
        num_beams=settings.beams,
    )
    figures, signatures = (translation_scores if metric == "bleu" else summary_scores)(
        texts, [pair.target for pair in pairs]
    )
    return Scores(figures, signatures, texts)


def translation_scores(texts: list[str], references: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise ImportError("BLEU needs a package: pip install debertakit[generate]") from None
    figures, signatures = {}, {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        figures[name] = metric.corpus_score(texts, [references]).score
        signatures[name] = str(metric.get_signature())
    return figures, signatures


def summary_scores(texts: list[str], references: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Mean F1 of ROUGE-1, -2 and -L, times 100, words stemmed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ImportError("ROUGE needs a package: pip install debertakit[generate]") from None
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    rows = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    figures = {name: 100 * sum(row[name].fmeasure for row in rows) / len(rows) for name in rows[0]}
    return figures, {}


# ------------------------------------------------------------------------------------------------------------ the task

TASKS = {"translation": "bleu", "summarisation": "rouge"}


def finetune_pairs(
    model: str | Path,
    out: Path,
    task: str,
    pairs: Sequence[Pair],
    dev: Sequence[Pair] | None = None,
    settings: Settings | None = None,
    *,
    decoder_layers: int | None = None,
    resume: bool = False,
) -> Scores:
    """Train a DeBERTa-D, or a decoder grown out of a DeBERTa encoder, and score it on the dev set (a tenth if None).

    The model, its log, results.json and written.txt, a line for each pair of the dev set, are left in ``out``.
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose from {', '.join(TASKS)}")
    settings = settings or Settings()
    if dev is None:
        held_out = max(1, len(pairs) // 10)
        order = np.random.default_rng(settings.seed).permutation(len(pairs))
        pairs, dev = ([pairs[i] for i in half] for half in (order[held_out:], order[:held_out]))
    tokenizer = load_tokenizer(model)
    figures = train(load(model, decoder_layers), tokenizer, pairs, dev, settings, out, resume=resume)
    scores = evaluate(DebertaForSeq2SeqLM.from_pretrained(out).eval(), tokenizer, dev, settings, TASKS[task])
    results = {"training": figures, "dev": scores.figures, "signatures": scores.signatures}
    (out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    (out / "written.txt").write_text("".join(f"{text}\n" for text in scores.texts), encoding="utf-8")
    return scores


def run_pairs(
    model: str,
    out: Path,
    task: str,
    files: tuple[Path | None, Path | None],
    train: Path | None,
    dev: Path | None,
    fields: tuple[str | None, str | None],
    **changes: Any,
) -> None:
    """``deberta finetune --task translation``: two parallel files, or tables of JSON lines; prints the scores."""
    source, target = files
    names = (fields[0] or "source", fields[1] or "target")
    if (source is None) == (train is None) or (source is None) != (target is None):
        raise ValueError(f"--task {task} needs --source and --target, or --train with JSON lines (--text, --label)")
    pairs = read_pairs(source or train, target, names)  # type: ignore[arg-type]  # one of them is there
    resume = changes.pop("resume")
    optimizer = Optimizer(lr=changes.pop("lr") or 3e-4, beta2=0.98, warmup_steps=400)
    settings = Settings(optimizer=optimizer, **{name: value for name, value in changes.items() if value is not None})
    held_out = None if dev is None else read_pairs(dev, fields=names)
    scores = finetune_pairs(model, out, task, pairs, held_out, settings, resume=resume)
    print(f"{out}: " + ", ".join(f"{name} {value:.2f}" for name, value in scores.figures.items()) + " on the dev set")
    for name, signature in scores.signatures.items():
        print(f"{name}: {signature}")


def load(model: str | Path, decoder_layers: int | None = None) -> DebertaForSeq2SeqLM:
    """A DeBERTa-D as it is; any other DeBERTa grows a decoder."""
    if is_seq2seq(model):
        return DebertaForSeq2SeqLM.from_pretrained(model, dtype=torch.float32)
    return DebertaForSeq2SeqLM.from_encoder(model, decoder_layers)
