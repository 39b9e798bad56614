"""Translation and summarisation: train an encoder-decoder on text pairs and score its output.

    loss = mean over target tokens of  (1 - s) * -ln p(token)  +  s * mean over the vocabulary of -ln p

where s is the label smoothing. A step is a batch of pairs of similar length, filled up to a budget of source and target
tokens. The pairs in a step depend only on (seed, step), and the learning rate on the step and the completed share of
the steps or minutes. An interrupted run can therefore resume from its last checkpoint.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from debertakit.data.pairs import FIELDS, Pair, read_pairs
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, is_seq2seq
from debertakit.generation.writing import load_writer, write_all
from debertakit.model import IGNORED
from debertakit.precision import PRECISIONS, autocast, best_device, precision_line, resolve_precision
from debertakit.tasks.text_scores import check, text_scores
from debertakit.text.tokenizers import load_tokenizer
from debertakit.training.log import Log
from debertakit.training.optim import Optimizer, clip_gradients, learning_rate, make_optimizer


@dataclass(frozen=True)
class Settings:
    epochs: float = 20.0
    minutes: float | None = None
    """Train for this long instead of ``epochs``."""
    step_tokens: int = 4096
    """Source and target tokens per step."""
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(lr=3e-4, beta2=0.98, eps=1e-8, weight_decay=0.01, warmup_steps=400)
    )
    """With ``epochs``, warm-up is at most a tenth of the steps."""
    label_smoothing: float = 0.1
    max_source: int = 128
    max_target: int = 128
    """Maximum tokens, including [CLS] and [SEP]; longer texts are truncated."""
    beams: int = 4
    seed: int = 0
    log_every: int = 100
    evaluate_every: int = 1000
    checkpoint_every: int = 500
    precision: str = "auto"
    """auto: bf16 if the device supports it natively, else fp32. settings.json records the resolved precision. Dev loss
    and scores are always computed in fp32."""

    def __post_init__(self) -> None:
        for name in ("epochs", "minutes", "step_tokens", "max_source", "max_target", "beams", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}: above 0")
        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r}; choose from {', '.join(PRECISIONS)}")


# ------------------------------------------------------------------------------------------------------------- batches


class Batch(NamedTuple):
    input_ids: Tensor  # [batch, source]
    attention_mask: Tensor
    labels: Tensor  # [batch, target], -100 for padding


@dataclass
class Batches:
    """Batches of encoded pairs. ``batch(step)`` depends only on the seed and the step."""

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
        labels = [ids[1:] for ids in targets]  # the first token is given, not predicted
        return cls(sources, labels, settings.step_tokens, settings.seed, tokenizer.pad_token_id)

    def __post_init__(self) -> None:
        sizes = np.array([len(s) + len(t) for s, t in zip(self.sources, self.labels, strict=True)])
        self._sizes = sizes
        ends = np.cumsum(np.sort(sizes))
        cuts = np.searchsorted(ends, np.arange(self.step_tokens, ends[-1], self.step_tokens), side="right")
        self._cuts = np.setdiff1d(cuts, [0])  # a pair longer than the budget is a step of its own
        self._order: tuple[int, list[np.ndarray]] | None = None

    def __len__(self) -> int:
        """Steps per epoch."""
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
    """Logits of the labelled tokens: [labelled tokens, vocabulary]."""
    batch = Batch(*(tensor.to(model.device) for tensor in batch))
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
    """Train an encoder-decoder (ours or from transformers) in place, and save it with its tokenizer in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists() and not resume:
        raise ValueError(f"{out} holds a run already; go on with --resume, or choose another folder")
    device = best_device()
    precision = resolve_precision(settings.precision, device, recorded_precision(out) if checkpoint.exists() else None)
    _keep_settings(out / "settings.json", replace(settings, precision=precision), checkpoint.exists())
    print(precision_line(precision, device), file=sys.stderr)
    model.to(device)
    torch.manual_seed(settings.seed)
    batches, held_out = (Batches.of(half, tokenizer, settings) for half in (pairs, dev))
    optimizer = make_optimizer(model, settings.optimizer)
    step, before = _load(checkpoint, model, optimizer) if checkpoint.exists() else (0, 0.0)
    total: float
    total, unit = max(1, round(settings.epochs * len(batches))), "steps"
    rates = replace(settings.optimizer, warmup_steps=min(settings.optimizer.warmup_steps, -(-total // 10)))
    if settings.minutes is not None:
        total, unit, rates = 60 * settings.minutes, "seconds", settings.optimizer
    log = Log(out, "none", total, unit, step)
    began, elapsed = time.monotonic(), before
    losses: list[float] = []
    tokens = 0
    mark = (began, 0)
    figures: dict[str, float] = {}
    try:
        while (done := elapsed if settings.minutes is not None else step) < total:
            model.train()
            rate = learning_rate(rates, step, done / total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = batches.batch(step)
            with autocast(precision, device):
                logits = labelled_logits(model, batch)
            targets = batch.labels[batch.labels != IGNORED].to(logits.device)
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
                speed = (tokens - mark[1]) / (now - mark[0])
                loss_so_far = sum(losses) / len(losses)
                log.write("train", step, loss=loss_so_far, tokens_per_second=speed, lr=rate, elapsed=elapsed)
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
    return {**figures, "steps": step, "minutes": elapsed / 60}


@torch.inference_mode()
def evaluate_loss(model: Any, batches: Batches) -> dict[str, float]:
    """Mean loss over target tokens without label smoothing, and its perplexity."""
    model.eval()
    total, count = 0.0, 0
    for step in range(len(batches)):
        batch = batches.batch(step)
        logits = labelled_logits(model, batch).float()
        targets = batch.labels[batch.labels != IGNORED].to(logits.device)
        total += F.cross_entropy(logits, targets, reduction="sum").item()
        count += len(targets)
    return {"loss": total / count, "perplexity": math.exp(min(total / count, 50))}


def recorded_precision(out: Path) -> str | None:
    """Precision in settings.json. Version 1 did not record it and trained in fp32."""
    path = out / "settings.json"
    return json.loads(path.read_text(encoding="utf-8")).get("precision", "fp32") if path.is_file() else None


def _keep_settings(path: Path, settings: Settings, resumed: bool) -> None:
    """Write the settings. A resumed run must have the settings that it started with."""
    now = json.loads(json.dumps(asdict(settings)))
    if resumed and path.is_file():
        before = {"precision": settings.precision, **json.loads(path.read_text(encoding="utf-8"))}
        changed = [f"{name} was {before.get(name)}" for name, value in now.items() if before.get(name) != value]
        if changed:
            raise ValueError(f"{path.parent} was begun with other settings: {'; '.join(changed)}")
    _write(path, json.dumps(now, indent=1))


def _write(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def _save(path: Path, model: Any, optimizer: Any, step: int, elapsed: float) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    aside = path.with_suffix(".part")
    torch.save({**state, "step": step, "elapsed": elapsed}, aside)
    aside.replace(path)


def _load(path: Path, model: Any, optimizer: Any) -> tuple[int, float]:
    state = torch.load(path, weights_only=True)
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError):
        raise ValueError(f"{path} is the checkpoint of a model of another shape") from None
    torch.set_rng_state(state["random"])
    return state["step"], state["elapsed"]


# -------------------------------------------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class Scores:
    figures: dict[str, float]
    signatures: dict[str, str]
    """sacreBLEU's signatures, which say how each score was computed."""
    texts: list[str]


def evaluate(
    model: Any, tokenizer: Any, pairs: Sequence[Pair], settings: Settings, metric: str, batch: int = 32
) -> Scores:
    """Generate a text for each source and score it with ``bleu`` (sacreBLEU and chrF) or ``rouge`` (1, 2, L)."""
    check(metric)
    texts = write_all(
        model,
        tokenizer,
        [pair.source for pair in pairs],
        batch,
        longest=settings.max_source,
        max_new_tokens=settings.max_target,
        num_beams=settings.beams,
    )
    figures, signatures = text_scores(metric, texts, [pair.target for pair in pairs])
    return Scores(figures, signatures, texts)


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
    """Train a DeBERTa-D, or a DeBERTa encoder with a new decoder, and score it on ``dev`` (None: a tenth of ``pairs``).

    ``out`` receives the model, its log, results.json and written.txt (one line per dev pair).
    """
    metric = metric_of(task)
    check(metric)
    settings = settings or Settings()
    if dev is None:
        if len(pairs) < 2:
            raise ValueError("one pair alone cannot be trained on and held out: give more, or a dev set")
        held_out = max(1, len(pairs) // 10)
        order = np.random.default_rng(settings.seed).permutation(len(pairs))
        pairs, dev = ([pairs[i] for i in half] for half in (order[held_out:], order[:held_out]))
    torch.manual_seed(settings.seed)  # for the randomly initialised weights of a new decoder
    tokenizer = load_tokenizer(model)
    figures = train(load(model, tokenizer, decoder_layers), tokenizer, pairs, dev, settings, out, resume=resume)
    scores = evaluate(load_writer(out), tokenizer, dev, settings, metric)
    results = {"training": figures, "dev": scores.figures, "signatures": scores.signatures}
    _write(out / "written.txt", "".join(f"{text}\n" for text in scores.texts))
    _write(out / "results.json", json.dumps(results, indent=1))
    return scores


def metric_of(task: str) -> str:
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose from {', '.join(TASKS)}")
    return TASKS[task]


def load(model: str | Path, tokenizer: Any, decoder_layers: int | None = None) -> DebertaForSeq2SeqLM:
    """Load a DeBERTa-D, or add a decoder to any other DeBERTa, with start and end tokens from the tokenizer."""
    if is_seq2seq(model):
        return DebertaForSeq2SeqLM.from_pretrained(model, dtype=torch.float32)
    return DebertaForSeq2SeqLM.from_encoder(model, decoder_layers, tokenizer)


# --------------------------------------------------------------------------------------------------------- the command


@dataclass(frozen=True)
class Files:
    """Location of text pairs: two parallel files, or two columns of a table."""

    source: Path | None = None
    target: Path | None = None
    table: Path | None = None
    fields: tuple[str, str] = FIELDS

    def read(self, hint: str) -> list[Pair]:
        if (self.source is None) == (self.table is None) or (self.source is None) != (self.target is None):
            raise ValueError(hint)
        first = self.table if self.source is None else self.source
        assert first is not None
        return read_pairs(first, self.target, self.fields)


def run_pairs(
    model: str,
    out: Path,
    task: str,
    train: Files,
    dev: Files | None,
    *,
    resume: bool,
    decoder_layers: int | None = None,
    **changes: Any,
) -> None:
    """Run ``deberta finetune --task translation`` and print the dev scores."""
    check(metric_of(task))
    pairs = train.read(f"--task {task} needs --source and --target, or --train with the columns --text and --label")
    held_out = None if dev is None else dev.read("--dev-source and --dev-target go together, in place of --dev")
    given = {name: value for name, value in changes.items() if value is not None}
    rates = {name: given.pop(name) for name in ("lr", "weight_decay") if name in given}
    settings = Settings(**given)
    settings = replace(settings, optimizer=replace(settings.optimizer, **rates))
    scores = finetune_pairs(model, out, task, pairs, held_out, settings, decoder_layers=decoder_layers, resume=resume)
    _tell(f"{out}: ", scores, " on the dev set")


def run_evaluate_pairs(model: Path, task: str, files: Files, out: Path | None) -> None:
    """Run ``deberta evaluate --task translation``: score a DeBERTa-D on pairs and write its texts to ``out``."""
    metric = metric_of(task)
    check(metric)
    pairs = files.read(f"--task {task} needs --source and --target, or --file with the columns --text and --label")
    if not is_seq2seq(model):
        raise ValueError(f"{model} is no DeBERTa-D; deberta finetune --task {task} makes one of it")
    kept = Path(model) / "settings.json"
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    lengths = {name: known[name] for name in ("max_source", "max_target", "beams") if name in known}
    scores = evaluate(load_writer(model), load_tokenizer(model), pairs, Settings(**lengths), metric)
    _tell("", scores, f" on {len(pairs):,} pairs")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        _write(out / "written.txt", "".join(f"{text}\n" for text in scores.texts))


def _tell(before: str, scores: Scores, behind: str) -> None:
    print(before + ", ".join(f"{name} {value:.2f}" for name, value in scores.figures.items()) + behind)
    for name, signature in scores.signatures.items():
        print(f"{name}: {signature}")
