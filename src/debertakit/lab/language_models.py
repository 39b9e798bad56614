"""Probabilities of hidden tokens, computed the same way for every kind of language model.

A *question* is a text with hidden tokens. Each kind of model answers with the log probability of the hidden tokens:

    masked      sum of  log p(x_i | x with [MASK] at all hidden places)
    permuted    sum of  log p(x_i | the tokens that are not hidden)         XLNet's query stream
    causal      sum of  log p(x_i | x_<i)                                   the context on the right is not used

A discriminator (RTD) has no probabilities of tokens; it scores whole texts: sum of log p(x_i is original | x).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, XLNetLMHeadModel

from debertakit.attention.layout import Layout
from debertakit.checkpoints import load_whole
from debertakit.generation.causal import DebertaForCausalLM
from debertakit.heads import DebertaForMaskedLM, DebertaForReplacedTokenDetection
from debertakit.loading import SavedModel, describe, longest_input
from debertakit.objectives.base import View
from debertakit.padding import PackedInput
from debertakit.pretraining.families import make_backbone
from debertakit.protocols import Tokenizer

BATCH_TOKENS = 8192
Kind = Literal["masked", "permuted", "causal", "detector"]


@dataclass(frozen=True)
class LanguageModel:
    kind: Kind
    network: PreTrainedModel
    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self.network.eval()
        if self.kind == "masked" and self.tokenizer.mask_token_id is None:
            raise ValueError("this tokenizer has no mask token")


@dataclass(frozen=True)
class Question:
    ids: tuple[int, ...]
    places: tuple[int, ...]
    """Indices of the hidden tokens."""


@dataclass(frozen=True)
class Answer:
    log_probability: float
    right: bool
    """Whether the most probable token of every hidden place is the true one."""


def open_language_model(path: str | Path) -> LanguageModel:
    """Open a masked, permuted or causal language model, or a discriminator."""
    saved = describe(path)
    kind = _kind(saved)
    if kind is None:
        raise ValueError(f"{saved} is no language model: it has {saved.head_name}")
    if kind == "masked":
        network = saved.network("MaskedLM")
    elif kind == "causal" and saved.ours:
        network = load_whole(DebertaForCausalLM, saved.name)
    elif kind == "permuted":
        cls = DebertaForMaskedLM if saved.ours else XLNetLMHeadModel
        network = load_whole(cls, saved.name, dtype=torch.float32)
    else:
        network = saved.network("CausalLM" if kind == "causal" else saved.head)
    return LanguageModel(kind, network, saved.tokenizer())


def _kind(saved: SavedModel) -> Kind | None:
    (architecture,) = (saved.config.architectures or [""])[:1]
    if architecture == "XLNetLMHeadModel":
        return "permuted"
    if saved.head == "CausalLM" or architecture.endswith("LMHeadModel"):
        return "causal"
    if saved.ours and saved.head == "MaskedLM":
        return _trained_as(Path(saved.name))
    if saved.head == "ReplacedTokenDetection" or architecture == "ElectraForPreTraining":
        return "detector"
    # BertForPreTraining and AlbertForPreTraining contain a masked LM
    return "masked" if saved.head in ("MaskedLM", "PreTraining") else None


def _trained_as(folder: Path) -> Kind:
    """DeBERTa is saved with the class of a masked LM, whatever its objective. The config of its run says more."""
    try:
        weights = json.loads((folder / "run.json").read_text(encoding="utf-8"))["objectives"]
        others = {"causal": weights.get("arlm", 0) + weights.get("prefix", 0), "permuted": weights.get("plm", 0)}
        if weights["mlm"] > 0:
            return "masked"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "masked"
    return "permuted" if others["permuted"] > others["causal"] else "causal" if others["causal"] > 0 else "masked"


# ------------------------------------------------------------------------------------------------------------ questions


@torch.inference_mode()
def answer(model: LanguageModel, questions: Sequence[Question]) -> list[Answer]:
    """Answer questions, those of equal length together. The order of the result is that of ``questions``."""
    _check_lengths(model, [len(question.ids) for question in questions])
    order = sorted(range(len(questions)), key=lambda i: len(questions[i].ids))
    found: dict[int, Answer] = {}
    for batch in _batches(order, [len(question.ids) for question in questions]):
        asked = [questions[i] for i in batch]
        logits, targets = _hidden_logits(model, asked)  # [places of all questions, vocabulary]
        scores = logits.float().log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
        right = logits.argmax(-1) == targets
        counts = [len(question.places) for question in asked]
        for i, values, hits in zip(batch, scores.split(counts), right.split(counts), strict=True):
            found[i] = Answer(sum(values.tolist()), bool(hits.all()))
    return [found[i] for i in range(len(questions))]


@torch.inference_mode()
def text_scores(model: LanguageModel, texts: Sequence[str]) -> list[float]:
    """Log probability of each text: pseudo-log-likelihood, likelihood, or that all tokens are original.

    Special tokens, [UNK] included, are not scored: a model is never trained to predict them.
    """
    of_text = [tuple(ids) for ids in model.tokenizer(list(texts))["input_ids"]]
    special = set(model.tokenizer.all_special_ids)
    distinct = list(dict.fromkeys(of_text))  # equal texts once: their scores must be equal to the last bit
    scored = {ids: tuple(at for at, token in enumerate(ids) if token not in special) for ids in distinct}
    if model.kind == "detector":
        found = _original_scores(model, distinct, scored)
    elif model.kind == "causal":
        asked = [Question(ids, places) for ids, places in scored.items()]
        answers = iter(answer(model, [question for question in asked if question.places]))
        found = {each.ids: next(answers).log_probability if each.places else 0.0 for each in asked}
    else:
        singles = [Question(ids, (at,)) for ids, places in scored.items() for at in places]
        found = dict.fromkeys(distinct, 0.0)
        for question, each in zip(singles, answer(model, singles), strict=True):
            found[question.ids] += each.log_probability
    return [found[ids] for ids in of_text]


def _check_lengths(model: LanguageModel, lengths: Sequence[int]) -> None:
    longest, fixed = longest_input(model.network, model.tokenizer)
    if fixed and max(lengths, default=0) > longest:
        raise ValueError(f"a sentence has {max(lengths)} tokens; this model reads {longest}")


def _batches(order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    tokens = 0
    for i in order:
        if batch and tokens + lengths[i] > BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += lengths[i]
    if batch:
        yield batch


# --------------------------------------------------------------------------------------------------------------- models


def _hidden_logits(model: LanguageModel, asked: Sequence[Question]) -> tuple[Tensor, Tensor]:
    """Logits and true tokens of all hidden places, question after question."""
    network, device = model.network, model.network.device
    lengths = torch.tensor([len(question.ids) for question in asked], dtype=torch.int32, device=device)
    flat = torch.tensor([token for question in asked for token in question.ids], device=device)
    counts = torch.tensor([len(question.places) for question in asked], device=device)
    starts = (lengths.cumsum(0) - lengths).long()
    places = torch.tensor([place for question in asked for place in question.places], device=device)
    rows = starts.repeat_interleave(counts) + places
    targets = flat[rows]
    sequence = torch.arange(len(asked), device=device).repeat_interleave(counts)
    if model.kind == "permuted":
        hidden = torch.zeros_like(flat).index_fill(0, rows, 1)  # hidden tokens do not see one another
        backbone = make_backbone(network)
        _, states = backbone.hidden_rows(View(flat, lengths, order=hidden), None, rows)
        assert states is not None
        return backbone.word_logits(states), targets
    if model.kind == "masked":
        assert model.tokenizer.mask_token_id is not None
        flat = flat.index_fill(0, rows, model.tokenizer.mask_token_id)
        if isinstance(network, DebertaForMaskedLM):
            return network.predict(_packed(flat, lengths), rows=rows), targets
    elif int(places.min()) == 0:
        raise ValueError("a causal model cannot predict the first token of a text; the tokenizer adds no [CLS]")
    padded, mask = _padded(model, flat, lengths)
    logits = network(input_ids=padded, attention_mask=mask).logits
    return logits[sequence, places - 1 if model.kind == "causal" else places], targets


def _original_scores(
    model: LanguageModel, texts: Sequence[tuple[int, ...]], scored: dict[tuple[int, ...], tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """Log probability that every scored token is original: sum of log sigmoid(-logit)."""
    _check_lengths(model, [len(ids) for ids in texts])
    found = {}
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for batch in _batches(order, [len(ids) for ids in texts]):
        lengths = torch.tensor([len(texts[i]) for i in batch], dtype=torch.int32, device=model.network.device)
        flat = torch.tensor([token for i in batch for token in texts[i]], device=model.network.device)
        if isinstance(model.network, DebertaForReplacedTokenDetection):
            logits = model.network.predict(_packed(flat, lengths))
        else:
            padded, mask = _padded(model, flat, lengths)
            logits = model.network(input_ids=padded, attention_mask=mask).logits[mask.bool()]
        original = F.logsigmoid(-logits.float())
        for i, values in zip(batch, original.split(lengths.tolist()), strict=True):
            found[texts[i]] = float(values[list(scored[texts[i]])].sum())
    return found


def _packed(flat: Tensor, lengths: Tensor) -> PackedInput:
    layout = Layout.from_lengths(lengths)
    return PackedInput(flat, layout, layout.q_positions, None, None, (1, len(flat)))


def _padded(model: LanguageModel, flat: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """[n, longest] ids and attention mask."""
    pad = model.tokenizer.pad_token_id or 0
    padded = torch.nn.utils.rnn.pad_sequence(flat.split(lengths.tolist()), batch_first=True, padding_value=pad)
    return padded, (torch.arange(padded.shape[1], device=flat.device) < lengths[:, None]).long()
