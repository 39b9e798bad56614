"""Replaced-token detection (ELECTRA, DeBERTaV3): a generator fills the masks, the model detects replaced tokens.

For a text x, masked positions m, and x^M the text with [MASK] at m:

    L_MLM = - sum over i in m of  log p_G(x_i | x^M)
    x^R   = x, but x_i ~ softmax(logits_G(x^M)_i / temperature) for i in m, over non-special tokens
    L_RTD = - sum over i of  log p_D([x^R_i != x_i] | x^R)
    loss  = L_MLM / |m| + weight * L_RTD / |i|

i ranges over the tokens that can be replaced. Microsoft and ELECTRA also count [CLS] and [SEP]. These tokens are always
original and easy to recognise, so they only make loss and accuracy look better, most of all on short texts.

No gradient flows through the sampling. *Joint* steps make one update with the sum of both losses. *Decoupled* steps
(DeBERTaV3) first update the generator, then the discriminator: on tokens sampled before the generator's update, with
the generator's embedding table after it. One AdamW serves both models, because it only updates parameters that have a
gradient.

The embedding tables E (words, and positions and segments if the input has them) are shared in one of three ways; sg
means stop-gradient:

    es    E_D = E_G              both losses update the shared table (in decoupled steps one after the other)
    nes   E_D and E_G            each loss updates its own table
    gdes  E_D = sg(E_G) + E_d    L_MLM updates E_G, L_RTD updates E_d and never E_G

Tokens are sampled with the inverse CDF, from one number in [0, 1) per masked token. The numbers are a function of
(seed, chunk, epoch): like the masks, they do not depend on batch size, processes or interruptions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from debertakit.checkpoints import State, merge_gdes
from debertakit.objectives import Rtd, Sharing
from debertakit.objectives.base import Backbone, Context, Targets, View, as_tensor, masked_targets, masked_view
from debertakit.objectives.mlm import MaskedLanguageModelling
from debertakit.objectives.random_streams import REPLACEMENT, chunk_generator
from debertakit.objectives.training_module import HEADS_FILE, MODEL_FILE, Gather, TrainingModule, without_prefix
from debertakit.text.masking import Masked
from debertakit.text.packing import PackedBatch

GENERATOR_FILE = "generator/model.safetensors"
RESIDUAL = "._weight"  # Microsoft's name for E_d


@dataclass
class RtdPart:
    """One part of a step. The generator's pass writes ``sampled``; the discriminator's pass reads it."""

    masked: View
    """Input of the generator."""
    text: View
    """The original text."""
    masked_tokens: Targets
    """Masked rows and their original tokens."""
    draws: Tensor
    """[M]: uniform numbers in [0, 1) for sampling."""
    counted: Tensor
    """Rows of tokens that can be replaced."""
    sampled: Tensor | None = None
    """[M]: tokens sampled from the generator."""
    scores: Tensor | None = None
    """[counted]: the discriminator's logits, for evaluation."""

    @property
    def tokens(self) -> int:
        return len(self.text.ids)

    def counts(self) -> list[int]:
        return [len(self.masked_tokens.labels), len(self.counted)]

    def to(self, device: torch.device) -> "RtdPart":
        draws, counted = self.draws.to(device), self.counted.to(device)
        return RtdPart(self.masked.to(device), self.text.to(device), self.masked_tokens.to(device), draws, counted)

    def replaced(self) -> View:
        """Input of the discriminator: the text with the sampled tokens."""
        assert self.sampled is not None
        return replace(self.text, ids=self.text.ids.index_copy(0, self.masked_tokens.rows, self.sampled))

    def labels(self) -> Tensor:
        """[counted]: True if the token differs from the original."""
        return (self.replaced().ids != self.text.ids)[self.counted]


class ReplacedTokenDetection(TrainingModule[RtdPart]):
    """Discriminator (``model``, the result) and generator in one module."""

    pipeline_tag = "feature-extraction"
    ordinary: Tensor
    """Ids of the non-special tokens, which may be sampled."""

    def __init__(
        self,
        discriminator: Backbone,
        generator: Backbone,
        options: Rtd,
        vocabulary_size: int,
        special_ids: Sequence[int],
        *,
        new: bool = True,
    ):
        """``new``: the discriminator's tables are randomly initialised, not those of a checkpoint."""
        super().__init__()
        self.model, self.generator = discriminator.model, generator.model
        self.discriminator_backbone, self.generator_backbone = discriminator, generator
        self.mlm = MaskedLanguageModelling(generator)
        self.options = options
        self.weights = {"mlm": 1.0, "rtd": options.weight}
        self.shared = share(self.model, self.generator, options.sharing, new)
        ordinary = np.setdiff1d(np.arange(vocabulary_size), special_ids)
        self.register_buffer("ordinary", as_tensor(ordinary), persistent=False)

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        return {"model": self.model, "generator": self.generator}

    @property
    def trains_all_parameters(self) -> bool:
        return self.options.steps == "joint" and not self.options.warmup_steps

    def phases(self, step: int) -> tuple[str, ...]:
        if step < (self.options.warmup_steps or 0):
            return ("warmup",)
        return ("all",) if self.options.steps == "joint" else ("generator", "discriminator")

    def prepare(self, batch: PackedBatch, context: Context, progress: float) -> RtdPart:
        view = masked_view(batch, context, progress)
        assert view.masked is not None
        special = np.isin(batch.input_ids, context.shards.vocabulary["special"])
        return RtdPart(
            masked=view,
            text=replace(view, ids=torch.from_numpy(batch.input_ids)),
            masked_tokens=masked_targets(view),
            draws=torch.from_numpy(draw(batch, view.masked, context.seed)),
            counted=as_tensor(np.flatnonzero(~special)),
        )

    def forward(self, part: RtdPart, totals: Tensor, phase: str = "all") -> tuple[Tensor, Tensor]:
        """Losses that the phase does not compute are zero."""
        loss, sums = totals.new_zeros(()), totals.new_zeros(2, 2)
        masked, counted = totals.clamp(min=1).unbind()
        for embedding in self.shared:  # warm-up does not train the discriminator, so its embeddings are frozen
            embedding.weight.requires_grad_(phase != "warmup")
        if phase != "discriminator":
            rows, _ = self.generator_backbone.hidden_rows(part.masked, part.masked_tokens.rows, None)
            assert rows is not None
            words = self.generator_backbone.word_logits(rows).float()  # [M, vocabulary]
            mlm = self.mlm.outcome(words, part.masked_tokens.labels)
            part.sampled = sample(words.detach(), part.draws, self.ordinary, self.options.temperature)
            loss = loss + mlm.loss / masked
            sums[0] = torch.stack([mlm.loss.detach(), mlm.correct])
        if phase in ("all", "discriminator"):
            scores = self.discriminator_backbone.detection_logits(part.replaced())[part.counted].float()
            labels = part.labels()
            rtd = F.binary_cross_entropy_with_logits(scores, labels.float(), reduction="sum")
            loss = loss + self.options.weight * rtd / counted
            sums[1, 0] = rtd.detach()
            if not self.training:
                sums[1, 1] = ((scores > 0) == labels).sum()
                part.scores = scores
        return loss, sums

    def metrics(self, name: str, loss: float, accuracy: float) -> dict[str, float]:
        """Detection is binary and has no perplexity."""
        return self.mlm.metrics(loss, accuracy) if name == "mlm" else {"loss": loss, "accuracy": accuracy}

    def extra_metrics(self, parts: Sequence[RtdPart], gather: Gather) -> dict[str, float]:
        """ELECTRA's metrics other than loss and accuracy."""
        scores = torch.cat(gather(torch.cat([part.scores.cpu() for part in parts if part.scores is not None])))
        labels = torch.cat(gather(torch.cat([part.labels().cpu() for part in parts])))
        masked = sum(gather(sum(part.counts()[0] for part in parts)))
        found = scores > 0
        correct = float((found & labels).sum())
        return {
            "replaced": float(labels.sum()) / max(masked, 1),
            "rtd_precision": correct / max(int(found.sum()), 1),
            "rtd_recall": correct / max(int(labels.sum()), 1),
            "rtd_auc": area_under_curve(scores, labels),
        }

    def to_files(self, weights: State) -> dict[str, State]:
        """Merge the tables for the discriminator's file. E_d is saved separately, for an exact resume."""
        discriminator, generator = without_prefix("model.", weights), without_prefix("generator.", weights)
        residuals = {key: value for key, value in discriminator.items() if key.endswith(RESIDUAL)}
        merged = merge_gdes(discriminator, generator)
        files = {
            MODEL_FILE: {key: value for key, value in merged.items() if key not in residuals},
            GENERATOR_FILE: generator,
        }
        return {**files, HEADS_FILE: residuals} if residuals else files

    def from_files(self, files: dict[str, State]) -> State:
        residuals = files.get(HEADS_FILE, {})
        tables = {key.removesuffix(RESIDUAL) + ".weight" for key in residuals}
        discriminator = {key: value for key, value in files[MODEL_FILE].items() if key not in tables}
        weights = {f"model.{key}": value for key, value in {**discriminator, **residuals}.items()}
        return weights | {f"generator.{key}": value for key, value in files[GENERATOR_FILE].items()}


class DisentangledEmbedding(nn.Module):
    """Lookup in sg(E_G) + E_d."""

    def __init__(self, generator: nn.Embedding, residual: Tensor):
        super().__init__()
        self._generator = (generator,)  # in a tuple, so that its table is not a parameter of this module
        self._weight = nn.Parameter(residual)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._generator[0].weight.detach()) + F.embedding(ids, self._weight)


def share(model: PreTrainedModel, generator: PreTrainedModel, sharing: Sharing, new: bool) -> tuple[nn.Embedding, ...]:
    """Share the embedding tables. Returns the generator's embeddings that the discriminator also reads.

    If ``new``, E_d starts at zero. Otherwise the discriminator's tables keep their values: gdes sets E_d = E_D - E_G,
    es copies them to the generator.
    """
    ours, theirs = model.base_model.embeddings, generator.base_model.embeddings
    if sharing == "nes":
        return ()
    shared = []
    for name, table in list(ours.named_children()):
        if not isinstance(table, nn.Embedding):
            continue
        other = getattr(theirs, name)
        if other.weight.shape != table.weight.shape:
            raise ValueError(
                f"rtd.sharing={sharing} needs embeddings of equal shape: {name} is {list(other.weight.shape)} in the "
                f"generator and {list(table.weight.shape)} in the discriminator. Use rtd.sharing=nes"
            )
        if sharing == "es":
            if not new:
                other.weight.data.copy_(table.weight)
            table.weight = other.weight
        else:
            residual = (table.weight - other.weight).detach() * (not new)
            setattr(ours, name, DisentangledEmbedding(other, residual))
        shared.append(other)
    return tuple(shared)


def draw(batch: PackedBatch, masked: Masked, seed: int) -> NDArray[np.float32]:
    """Draw a number in [0, 1) for each masked token."""
    before = np.searchsorted(masked.positions, np.cumsum(masked.lengths))
    keys = zip(batch.chunks, batch.epochs, np.diff(before, prepend=0), strict=True)
    draws = [chunk_generator(seed, c, e, REPLACEMENT).random(n, np.float32) for c, e, n in keys]
    return np.concatenate(draws)


def sample(logits: Tensor, draws: Tensor, ordinary: Tensor, temperature: float) -> Tensor:
    """Sample tokens [M] from ``ordinary``: the first whose cumulative probability exceeds the drawn number."""
    total = (logits[:, ordinary] / temperature).softmax(-1).cumsum(-1)
    found = torch.searchsorted(total, draws[:, None] * total[:, -1:], right=True)
    return ordinary[found.squeeze(-1).clamp(max=len(ordinary) - 1)]


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """ROC AUC: how often a replaced token scores above an original one (ties: 1/2). 0.5 if one class is missing."""
    positive = int(labels.sum())
    negative = len(labels) - positive
    if not positive or not negative:
        return 0.5
    _, which, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0).double() - (counts - 1) / 2  # mean rank of equal scores
    return float((ranks[which][labels].sum() - positive * (positive + 1) / 2) / (positive * negative))
