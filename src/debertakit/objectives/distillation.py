"""Distillation: learn from a frozen teacher (``PretrainConfig.teacher``), which reads the same text.

Student and teacher read the text without masks. h is the student's last layer, t the teacher's:

    relations   sum over rows i of  sum over X in (Q, K, V) of  mean over heads a of  KL(R^t_aXi || R^s_aXi),
                R_aXi = softmax_j(x_ai . x_aj / sqrt(d_a)),  j in the sequence of i         MiniLMv2, 2012.15828
    hidden      sum over rows i of  mean over units of  (W h_i + b - norm(t_i))^2
    vectors     sum over sequences of  1 - cos(W mean_i(h_i) + b, v),  v: the teacher's sentence vector

Q, K and V are those of the last layers. The relation heads split both widths evenly; they need not be the attention
heads, so student and teacher may differ in width and heads. ``norm`` is a layer norm without weights. ``relations`` and
``hidden`` need a teacher with the student's vocabulary, ``vectors`` reads the decoded text. W and b are used only in
training.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from debertakit.model import DebertaPreTrainedModel
from debertakit.objectives.base import Backbone, Context, Objective, Outcome, Targets, View
from debertakit.objectives.teacher import QueriesKeysValues, Teacher, last_layer, queries_keys_values
from debertakit.text.packing import PackedBatch
from debertakit.text.shards import Shards

NO_KEY = -1e4
"""Score of padding: its probability is 0, and the difference of two such scores is finite."""


class Distillation(Objective):
    """Shared by the three objectives: the view, and the teacher."""

    view = "plain"
    decodes = False
    trains_all_parameters = False

    def __init__(self, backbone: Backbone, teacher: Teacher):
        super().__init__(backbone)
        self.teacher = teacher

    def build_view(self, batch: PackedBatch, context: Context, progress: float) -> View:
        ids, lengths = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.lengths)
        return View(ids, lengths, text_tokens=len(ids))

    def targets(self, view: View) -> Targets:
        """All rows; one term per row. There are no labels: the teacher's answer is computed in the forward pass."""
        rows = torch.arange(len(view.ids))
        return Targets(rows, torch.zeros_like(rows))

    def metrics(self, loss: float, accuracy: float) -> dict[str, float]:
        return {"loss": loss}


class RelationDistillation(Distillation):
    def __init__(self, backbone: Backbone, teacher: Teacher):
        super().__init__(backbone, teacher)
        teacher.check_pieces("relations")
        if not isinstance(backbone.model, DebertaPreTrainedModel):
            raise ValueError("objectives.relations needs a DeBERTa as student: use objectives.hidden")
        config = backbone.config
        self.heads = math.gcd(config.num_attention_heads, teacher.width)
        self._below: Tensor | None = None
        last_layer(teacher.model)  # raises if the teacher has no such layers
        last_layer(backbone.model.base_model).register_forward_pre_hook(self._keep_input)

    def _keep_input(self, layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._below = arguments[0]

    def check_corpus(self, shards: Shards, half: str, max_length: int) -> None:
        self.teacher.check_length(max_length)

    def targets(self, view: View) -> Targets:
        return Targets(view.starts, torch.zeros(len(view.ids), dtype=torch.long))  # the rows are not used

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        below, self._below = self._below, None
        assert below is not None
        student = queries_keys_values(backbone.model.base_model, below)
        taught = self.teacher.queries_keys_values(view)
        loss = relation_loss(student, taught, view.lengths.tolist(), self.heads)
        return Outcome(loss, loss.new_zeros(()))


class HiddenDistillation(Distillation):
    def __init__(self, backbone: Backbone, teacher: Teacher):
        super().__init__(backbone, teacher)
        teacher.check_pieces("hidden")
        self.project = _projection(backbone, teacher)

    def check_corpus(self, shards: Shards, half: str, max_length: int) -> None:
        self.teacher.check_length(max_length)

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        taught, _ = self.teacher.hidden_rows(view)
        wanted = F.layer_norm(taught.float(), taught.shape[-1:])
        loss = (self.project(hidden).float() - wanted).square().mean(-1).sum()
        return Outcome(loss, loss.new_zeros(()))


class VectorDistillation(Distillation):
    def __init__(self, backbone: Backbone, teacher: Teacher):
        super().__init__(backbone, teacher)
        self.project = _projection(backbone, teacher)

    def targets(self, view: View) -> Targets:
        """One term per sequence."""
        return Targets(torch.arange(len(view.ids)), torch.zeros(len(view.lengths), dtype=torch.long))

    def loss(self, backbone: Backbone, hidden: Tensor, targets: Targets, view: View) -> Outcome:
        means = torch.stack([rows.float().mean(0) for rows in hidden.split(view.lengths.tolist())])
        found = self.project(means).float()
        loss = (1 - F.cosine_similarity(found, self.teacher.sentence_vectors(view))).sum()
        return Outcome(loss, loss.new_zeros(()))


def relation_loss(student: QueriesKeysValues, teacher: QueriesKeysValues, lengths: list[int], heads: int) -> Tensor:
    """Sum over rows and Q, K, V of the mean KL divergence over heads. Tensors [T, width]; widths may differ."""
    longest = max(lengths)
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]  # [n, longest]
    real = real.to(student[0].device)
    total = student[0].new_zeros((), dtype=torch.float32)
    with torch.autocast(student[0].device.type, enabled=False):
        for one, other in zip(student, teacher, strict=True):
            found, wanted = (_relations(each.float(), lengths, heads, real) for each in (one, other))
            divergence = F.kl_div(found, wanted, log_target=True, reduction="none").sum(-1)  # [n, heads, longest]
            total = total + divergence.mean(1)[real].sum()
    return total


def _relations(rows: Tensor, lengths: list[int], heads: int, real: Tensor) -> Tensor:
    """Log relations of each row to the rows of its sequence. [T, width] -> [n, heads, longest, longest]."""
    padded = nn.utils.rnn.pad_sequence(list(rows.split(lengths)), batch_first=True)  # [n, longest, width]
    split = padded.unflatten(-1, (heads, -1)).transpose(1, 2)  # [n, heads, longest, d]
    scores = split @ split.transpose(-1, -2) / math.sqrt(split.shape[-1])
    return scores.masked_fill(~real[:, None, None, :], NO_KEY).log_softmax(-1)


def _projection(backbone: Backbone, teacher: Teacher) -> nn.Linear:
    linear = nn.Linear(backbone.config.hidden_size, teacher.width)
    nn.init.normal_(linear.weight, std=backbone.config.hidden_size**-0.5)
    nn.init.zeros_(linear.bias)
    return linear
