"""The span-boundary objective reads the two tokens next to a span and the position in the span, nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives
from debertakit.objectives.base import Context, View
from debertakit.objectives.joint import JointObjectives
from debertakit.objectives.sbo import LONGEST
from debertakit.pretraining.families import make_backbone
from debertakit.text.masking import Masked, Masking
from debertakit.text.packing import Packing
from tests.models import small
from tests.objectives.material import cross_entropy, lively, sequences

MODULE = JointObjectives(make_backbone(DebertaForMaskedLM(small(vocab_size=60))), Objectives(sbo=1))


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=4))
@settings(max_examples=60)
def test_rows_are_the_boundaries(hidden):
    """Walk from each masked token to the nearest unmasked token on both sides. [CLS] and [SEP] are never masked."""
    flags = [flag for sequence in hidden for flag in (False, *sequence, False)]
    positions = np.flatnonzero(flags)
    lengths = np.array([len(sequence) + 2 for sequence in hidden], np.int32)
    ids = np.arange(len(flags)) % 50
    masked = Masked(ids, lengths, positions, ids[positions] + 7, np.zeros(len(positions), np.int64))
    view = View(torch.from_numpy(ids), torch.from_numpy(lengths), masked=masked)
    targets = MODULE.objectives["sbo"].targets(view)
    expected = []
    for row in positions.tolist():
        left = right = row
        while flags[left]:
            left -= 1
        while flags[right]:
            right += 1
        if row - left - 1 < LONGEST:
            expected.append((left, right, row - left - 1, int(ids[row]) + 7))
    lefts, rights = targets.rows.chunk(2) if len(targets.rows) else ([], [])
    positions, labels = targets.span_positions.tolist(), targets.labels.tolist()
    found = zip(map(int, lefts), map(int, rights), positions, labels, strict=True)
    assert list(found) == expected
    assert not any(flags[row] for row in targets.rows.tolist())


def test_one_mask_for_a_span_is_predicted_in_the_same_way(corpus, tokenizer):
    """Every token of a span, from the tokens around its [MASK] and from its place in the original span."""
    masking = Masking("span", rate=0.4, one_mask_per_span=True)
    context = Context(corpus.train, masking, seed=3)
    view = MODULE.objectives["sbo"].build_view(Packing(corpus.train, 32, 1024).batch(1), context, 0.0)
    masked, expected = view.masked, []
    rows = set(masked.positions.tolist())
    place: dict[int, int] = {}
    for row, target in zip(masked.positions.tolist(), masked.targets.tolist(), strict=True):
        left = right = row
        while left in rows:
            left -= 1
        while right in rows:
            right += 1
        place[left] = place.get(left, -1) + 1  # counts the tokens of the span
        if place[left] < LONGEST:
            expected.append((left, right, place[left], target))
    targets = MODULE.objectives["sbo"].targets(view)
    lefts, rights = (half.tolist() for half in targets.rows.chunk(2))
    found = list(zip(lefts, rights, targets.span_positions.tolist(), targets.labels.tolist(), strict=True))
    assert found == expected
    assert len(rows) < len(masked.positions)  # several tokens share a [MASK]
    assert max(place.values()) > 1


@pytest.mark.parametrize("weights", [{"mlm": 0.0, "sbo": 1.0}, {"mlm": 1.0, "sbo": 1.0}])
def test_the_loss(corpus, tokenizer, weights):
    """Compute the loss in numpy from rows of the last layer, including spans at both ends of a sequence."""
    model = DebertaForMaskedLM(small(vocab_size=len(tokenizer), emd_steps=0))
    module = lively(JointObjectives(make_backbone(model), Objectives(**weights)))
    context = Context(corpus.train, Masking("span", rate=0.3, replace_by="span"), seed=3)
    part = module.prepare(Packing(corpus.train, 32, 1024).batch(1), context, 0.0)
    view, head = part.views["masked"], module.objectives["sbo"]
    hidden = set(view.masked.positions.tolist())
    targets = dict(zip(view.masked.positions.tolist(), view.masked.targets.tolist(), strict=True))
    with torch.no_grad():
        rows = torch.cat([model.deberta(ids).last_hidden_state[0] for ids in sequences(view)]).double().numpy()

    def array(tensor):
        return tensor.detach().double().numpy()

    def layer(x, dense, norm):
        x = array(dense.weight) @ x + array(dense.bias)
        x = x * 0.5 * (1 + torch.erf(torch.tensor(x) / 2**0.5).numpy())
        return (x - x.mean()) / np.sqrt(x.var() + norm.eps) * array(norm.weight) + array(norm.bias)

    expected, at_start, at_end = 0.0, 0, 0
    starts, ends = set(view.starts.tolist()), set((view.lengths.cumsum(0) - 1).tolist())
    for row in hidden:
        left = right = row
        while left in hidden:
            left -= 1
        while right in hidden:
            right += 1
        at_start, at_end = at_start + (left in starts), at_end + (right in ends)
        x = np.concatenate([rows[left], rows[right], array(head.places.weight)[row - left - 1]])
        y = layer(layer(x, head.dense_1, head.LayerNorm_1), head.dense_2, head.LayerNorm_2)
        logits = array(model.deberta.embeddings.word_embeddings.weight) @ y + array(head.bias)
        expected += cross_entropy(torch.from_numpy(logits), targets[row])
    assert at_start
    assert at_end
    with torch.no_grad():
        _, figures = module(part, torch.tensor(part.counts(), dtype=torch.float32))
    assert float(figures[list(module.weights).index("sbo"), 0]) == pytest.approx(expected, rel=1e-4)
