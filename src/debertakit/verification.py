"""deberta verify: compare our models with stock transformers on the same random weights, for each released variant.

Each variant is shrunk (narrow, few layers, small vocabulary) but keeps its buckets, tables, sharing and convolution.
We compare hidden states for several lengths and ragged masks, the logits of every head, the gradients of all
parameters, save and load in both file layouts, and Microsoft's distance rule past 512 tokens.
"""

import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging as hf_logging

from debertakit import heads
from debertakit.acceleration import accelerate
from debertakit.config import PRESETS, DebertaConfig, preset
from debertakit.model import DebertaModel

TOLERANCE = 1e-5
TEXT_LENGTHS = (1, 2, 3, 17, 64, 130, 257, 512)
VERIFIED_HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


@dataclass
class VariantResult:
    """Results of one variant: largest absolute differences, and whether files load back bit for bit."""

    variant: str
    hidden: float = 0.0
    logits: float = 0.0
    gradients: float = 0.0
    past_512: float = 0.0
    accelerated: float = 0.0
    hf_files: bool = False
    microsoft_files: bool = False

    @property
    def passed(self) -> bool:
        differences = (self.hidden, self.logits, self.gradients, self.past_512, self.accelerated)
        # A NaN must fail the check, so do not write this as `max(...) > TOLERANCE`.
        return all(d <= TOLERANCE for d in differences) and self.hf_files and self.microsoft_files


def verify(variants: list[str] | None = None) -> Iterator[VariantResult]:
    """Check the variants one by one. A generator, so that the caller can show progress."""
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        for name in variants or list(PRESETS):
            yield verify_variant(name)
    finally:
        hf_logging.set_verbosity(level)
        hf_logging.enable_progress_bar()


def shrunk(name: str, **overrides: object) -> DebertaConfig:
    """Shrink a released variant: heads of width 16, a third of the heads, about a twelfth of the layers."""
    full = PRESETS[name]
    num_heads = full["num_attention_heads"] // 3
    small = {
        "num_hidden_layers": 1 + max(1, full["num_hidden_layers"] // 12),
        "hidden_size": 16 * num_heads,
        "num_attention_heads": num_heads,
        "intermediate_size": 64 * num_heads,
        "vocab_size": 211,
        "num_labels": 3,
    }
    return preset(name, **{**small, **overrides})


def stock_class(config: DebertaConfig, suffix: str) -> type[PreTrainedModel] | None:
    prefix = "Deberta" if config.model_type == "deberta" else "DebertaV2"
    return getattr(transformers, prefix + suffix, None)


def stock_model(config: DebertaConfig, suffix: str) -> PreTrainedModel:
    """Build a stock model with large random weights, so that attention is far from uniform."""
    cls = stock_class(config, suffix)
    assert cls is not None, f"transformers has no {suffix} for {config.model_type}"
    model = cls(cls.config_class.from_dict(config.to_dict())).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.15)
            if parameter.dim() == 1:
                parameter.add_(0.5)
    return model


def ours_from(stock: nn.Module, cls: type[PreTrainedModel], config: DebertaConfig) -> PreTrainedModel:
    model = cls(config).eval()
    model.load_state_dict(stock.state_dict(), strict=False)
    return model


def ragged_mask(batch: int, length: int) -> Tensor:
    """Return a mask with a full row, a row padded on the right, one padded on the left, and one with a gap."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if length > 2:
        mask[1 % batch, length // 2 :] = 0
        mask[2 % batch, : length // 3] = 0
        mask[3 % batch, length // 3 : length // 2] = 0
    return mask


def verify_variant(name: str) -> VariantResult:
    torch.manual_seed(0)
    config = shrunk(name, emd_steps=0)
    stock = stock_model(config, "Model")
    ours = ours_from(stock, DebertaModel, config)
    row = VariantResult(name)
    with torch.no_grad():
        row.hidden = _most(_hidden_difference(stock, ours, config, length) for length in TEXT_LENGTHS)
        row.past_512 = _past_512_difference(stock, ours, config)
        row.accelerated = _accelerated_difference(stock, config)
    row.gradients = _gradient_difference(stock, ours, config)
    row.logits = _most(_logits_difference(config, head) for head in VERIFIED_HEADS)
    row.hf_files = _hf_files(config)
    row.microsoft_files = _microsoft_files(config)
    return row


def _batch(config: DebertaConfig, length: int) -> tuple[Tensor, Tensor]:
    batch = 4
    return torch.randint(1, config.vocab_size, (batch, length)), ragged_mask(batch, length)


def _hidden_difference(stock: PreTrainedModel, ours: PreTrainedModel, config: DebertaConfig, length: int) -> float:
    ids, mask = _batch(config, length)
    theirs = stock(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    mine = ours(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    return _most(_worst(a, b, mask) for a, b in zip(theirs, mine, strict=True))


def _most(values: Iterable[float]) -> float:
    """Return the largest value, or NaN if any value is NaN (Python's ``max`` may ignore it)."""
    return float(torch.tensor([*values]).max())


def _worst(a: Tensor, b: Tensor, mask: Tensor) -> float:
    return float((a - b)[mask.bool()].abs().max())


def _gradient_difference(stock: PreTrainedModel, ours: PreTrainedModel, config: DebertaConfig) -> float:
    ids, mask = _batch(config, 40)
    weights = torch.randn(*ids.shape, config.hidden_size) * mask[..., None]
    for model in (stock, ours):
        model.zero_grad()
        (model(ids, attention_mask=mask).last_hidden_state * weights).sum().div(ids.numel()).backward()
    theirs = dict(stock.named_parameters())

    def difference(mine: Tensor | None, stock: Tensor | None) -> float:
        if mine is None or stock is None:
            return 0.0 if mine is stock else math.inf
        return float((mine - stock).abs().max())

    return _most(difference(p.grad, theirs[name].grad) for name, p in ours.named_parameters())


def _logits_difference(config: DebertaConfig, head: str) -> float:
    config = DebertaConfig(**{**config.to_dict(), "num_labels": 2 if head == "QuestionAnswering" else 3})
    if stock_class(config, f"For{head}") is None:  # transformers has no multiple choice for v1
        return 0.0
    stock = stock_model(config, f"For{head}")
    ours = ours_from(stock, getattr(heads, f"DebertaFor{head}"), config)
    ids, mask = _batch(config, 30)
    if head == "MultipleChoice":
        ids, mask = ids.view(2, 2, -1), mask.view(2, 2, -1)
    with torch.no_grad():
        theirs, mine = (model(ids, attention_mask=mask).to_tuple() for model in (stock, ours))
    per_token = head in ("MaskedLM", "TokenClassification", "QuestionAnswering")
    # Pooled heads read the first column. If it is padding, stock computes a value and we return zeros.
    keep = mask.bool() if per_token else mask[..., 0].bool()
    return _most(float((a - b)[keep].abs().max()) for a, b in zip(theirs, mine, strict=True))


def _past_512_difference(stock: PreTrainedModel, ours: PreTrainedModel, config: DebertaConfig) -> float:
    """Compare at 700 tokens. The stock encoder gets the relative positions of Microsoft's rule as an argument."""
    length = 700
    ids, mask = _batch(config, length)
    ids, mask = ids[:2], mask[:2]
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    positions = torch.from_numpy(microsoft_relative_position(distance, config.position_buckets))
    nowhere = torch.zeros_like(ids)  # stock's own position ids end at 512
    embedded = stock.embeddings(ids, position_ids=nowhere, token_type_ids=nowhere, mask=mask)
    theirs = stock.encoder(embedded, mask, relative_pos=positions[None]).last_hidden_state
    return _worst(theirs, ours(ids, attention_mask=mask).last_hidden_state, mask)


def microsoft_relative_position(distance: np.ndarray, buckets: int, max_position: int = 512) -> np.ndarray:
    """Return Microsoft's relative position of each distance. An independent implementation, only for this check."""
    if buckets <= 0:
        return distance
    mid = buckets // 2
    out = np.zeros_like(distance)
    for x in np.unique(distance):
        size = min(abs(int(x)), max_position - 1)
        if size > mid:
            size = mid + int(np.ceil(np.log(size / mid) / np.log((max_position - 1) / mid) * (mid - 1)))
        out[distance == x] = size if x > 0 else -size
    return out


def _accelerated_difference(stock: PreTrainedModel, config: DebertaConfig) -> float:
    ids, mask = _batch(config, 90)
    theirs = stock(ids, attention_mask=mask).last_hidden_state
    mine = accelerate(copy.deepcopy(stock))(ids, attention_mask=mask).last_hidden_state
    return _worst(theirs, mine, mask)


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def _in_folder(check: Callable[[Path], bool]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return check(Path(folder))


def _hf_files(config: DebertaConfig) -> bool:
    """Check that a stock checkpoint saved by us, and our own with mask decoder and LM head, load back bit for bit."""

    def check(folder: Path) -> bool:
        stock = stock_model(config, "ForSequenceClassification")
        stock.save_pretrained(folder / "a")
        heads.DebertaForSequenceClassification.from_pretrained(folder / "a").save_pretrained(folder / "b")
        back = type(stock).from_pretrained(folder / "b")
        ours = heads.DebertaForMaskedLM(DebertaConfig(**{**config.to_dict(), "emd_steps": 2}))
        ours.save_pretrained(folder / "c")
        again = heads.DebertaForMaskedLM.from_pretrained(folder / "c")
        return _same(stock.state_dict(), back.state_dict()) and _same(ours.state_dict(), again.state_dict())

    return _in_folder(check)


def _microsoft_files(config: DebertaConfig) -> bool:
    """Check loading a file in Microsoft's format: a half-precision pickle with old prefix, all heads, GDES residual."""

    def check(folder: Path) -> bool:
        full = DebertaConfig(**{**config.to_dict(), "emd_steps": 2})
        mlm = heads.DebertaForMaskedLM(full)
        rtd = heads.DebertaForReplacedTokenDetection(full)
        state = {**rtd.state_dict(), **mlm.state_dict()}
        half = {key.replace("deberta.", "bert.", 1): value.half() for key, value in state.items()}
        half["bert.embeddings.word_embeddings._weight"] = torch.zeros(1)
        torch.save(half, folder / "pytorch_model.bin")
        written = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "emd_steps", "architectures")}
        (folder / "config.json").write_text(json.dumps(written, default=str), encoding="utf-8")
        expected = {key: value.half().float() for key, value in state.items()}
        loaded = [cls.from_pretrained(folder) for cls in (type(mlm), type(rtd))]
        return all(
            model.config.emd_steps == 2
            and model.config.model_type == config.model_type
            and _same({key: expected[key] for key in model.state_dict()}, model.state_dict())
            for model in loaded
        )

    return _in_folder(check)
