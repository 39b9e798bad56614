"""Compare each objective's loss with a computation by hand, sequence by sequence."""

import math

import numpy as np
import pytest
import torch

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives
from debertakit.objectives.base import Context, causal_view
from debertakit.objectives.joint import JointObjectives
from debertakit.objectives.pairs import NO_PAIR
from debertakit.padding import Recorder, pack_input
from debertakit.pretraining.families import make_backbone
from debertakit.text.masking import Masking
from debertakit.text.packing import Packing
from tests.models import small
from tests.objectives.material import cross_entropy, lively, sequences


def setting(corpus, tokenizer, objectives, masking=None, **fields):
    """A module with large random weights, one batch, and the batch's context."""
    model = DebertaForMaskedLM(small(vocab_size=len(tokenizer), **fields))
    module = lively(JointObjectives(make_backbone(model), objectives))
    context = Context(corpus.train, masking or Masking("ngram"), seed=3)
    return module, Packing(corpus.train, 32, 256).batch(1), context


def total(module, part):
    """Unweighted sums, and the weighted loss over the true counts."""
    counts = torch.tensor(part.counts(), dtype=torch.float32)
    with torch.no_grad():
        loss, figures = module(part, counts)
    return loss, dict(zip(module.weights, figures[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("emd_steps", [0, 2])
def test_mlm(corpus, tokenizer, emd_steps):
    module, batch, context = setting(corpus, tokenizer, Objectives(), emd_steps=emd_steps)
    part = module.prepare(batch, context, 0.0)
    view = part.views["masked"]
    expected, row = 0.0, 0
    hidden = dict(zip(view.masked.positions.tolist(), view.masked.targets.tolist(), strict=True))
    assert all(batch.input_ids[row] == target for row, target in hidden.items())
    for ids in sequences(view):
        with torch.no_grad():
            logits = module.model(ids).logits[0]
        for i in range(ids.shape[1]):
            if row + i in hidden:
                expected += cross_entropy(logits[i], hidden[row + i])
        row += ids.shape[1]
    loss, sums = total(module, part)
    assert sums["mlm"] == pytest.approx(expected, rel=1e-4)
    assert float(loss) == pytest.approx(expected / len(hidden), rel=1e-4)


def test_a_span_behind_one_mask_is_predicted_from_it(corpus, tokenizer):
    masking = Masking("span", one_mask_per_span=True, mask=1.0, random=0.0, rate=0.4)
    module, batch, context = setting(corpus, tokenizer, Objectives(), masking)
    part = module.prepare(batch, context, 0.0)
    view = part.views["masked"]
    assert len(view.ids) < len(batch.input_ids)
    with torch.no_grad():
        logits = torch.cat([module.model(ids).logits[0] for ids in sequences(view)])
    pairs = zip(view.masked.positions, view.masked.targets, strict=True)
    expected = sum(cross_entropy(logits[row], target) for row, target in pairs)
    assert total(module, part)[1]["mlm"] == pytest.approx(expected, rel=1e-4)


def test_arlm_reads_prefixes_only(corpus, tokenizer):
    """The loss of row t is what a bidirectional model without its future would give: run it on each prefix."""
    module, batch, context = setting(corpus, tokenizer, Objectives(mlm=0, arlm=1), emd_steps=0, num_hidden_layers=1)
    part = module.prepare(batch, context, 0.0)
    assert part.views.keys() == {"causal"}
    expected, terms = 0.0, 0
    table = module.model
    for ids in sequences(part.views["causal"]):
        for t in range(ids.shape[1] - 1):
            with torch.no_grad():  # one layer: the last row sees its prefix, all of it and nothing else
                expected += cross_entropy(table(ids[:, : t + 1]).logits[0, -1], int(ids[0, t + 1]))
            terms += 1
    loss, sums = total(module, part)
    assert sums["arlm"] == pytest.approx(expected, rel=1e-4)
    assert float(loss) == pytest.approx(expected / terms, rel=1e-4)


def hidden_states(backbone, packed):
    recorder = Recorder(packed, hidden_states=True, attentions=False)
    backbone.encode(packed, recorder=recorder)
    return [packed.pack(hidden) for hidden in recorder.hidden_states]


def test_a_causal_model_does_not_see_the_future_in_any_layer(corpus, tokenizer):
    fields = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 2}
    model = lively(DebertaForMaskedLM(small(vocab_size=len(tokenizer), **fields)))
    view = causal_view(Packing(corpus.train, 32, 256).batch(0))
    ends = view.lengths.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    with torch.no_grad():
        before = hidden_states(model.deberta, view.packed())
        for place in (1, 5, 9):
            changed = view.ids.clone()
            for start in starts:
                changed[start + place] = (changed[start + place] + 7) % len(tokenizer)
            packed = view.packed()
            packed.words = changed
            after = hidden_states(model.deberta, packed)
            assert len(after) == 5
            for depth, (a, b) in enumerate(zip(before, after, strict=True)):
                moved = (a - b).abs().amax(-1)
                for start, end in zip(starts, ends, strict=True):
                    assert moved[start : start + place].max() == 0, depth
                    assert moved[start + place] > 1e-3
                    if depth:  # and the rest does look back
                        assert moved[start + place + 1 : end].max() > 1e-3


def test_joint_training_is_the_weighted_sum(corpus, tokenizer):
    module, batch, context = setting(corpus, tokenizer, Objectives(mlm=0.5, arlm=2.0))
    part = module.prepare(batch, context, 0.0)
    loss, sums = total(module, part)
    counts = dict(zip(module.weights, part.counts(), strict=True))
    assert float(loss) == pytest.approx(0.5 * sums["mlm"] / counts["mlm"] + 2 * sums["arlm"] / counts["arlm"], rel=1e-5)
    for name in ("mlm", "arlm"):
        alone = JointObjectives(make_backbone(module.model), Objectives(**{"mlm": 0.0, name: 1.0})).eval()
        assert total(alone, alone.prepare(batch, context, 0.0))[1][name] == pytest.approx(sums[name], rel=1e-5)


def test_nsp_reads_the_decoded_cls(corpus, tokenizer):
    module, batch, context = setting(corpus, tokenizer, Objectives(mlm=1, nsp=1))
    part = module.prepare(batch, context, 0.0)
    view, head = part.views["masked"], module.objectives["nsp"]
    expected = 0.0
    for ids, label in zip(sequences(view), view.pair_labels.tolist(), strict=True):
        if label == NO_PAIR:
            continue
        grabbed = {}
        hook = module.model.lm_predictions.lm_head.register_forward_pre_hook(
            lambda _, args, grabbed=grabbed: grabbed.update(hidden=args[0])
        )
        with torch.no_grad():
            module.model.predict(pack_input(module.model.config, ids, None), rows=torch.tensor([0]))
        hook.remove()
        x = grabbed["hidden"][0].double().numpy()
        dense, out = head.dense, head.classifier
        pooled = np.tanh(dense.weight.double().detach().numpy() @ x + dense.bias.double().detach().numpy())
        logits = out.weight.double().detach().numpy() @ pooled + out.bias.double().detach().numpy()
        expected += math.log(np.exp(logits).sum()) - logits[label]
    assert total(module, part)[1]["nsp"] == pytest.approx(expected, rel=1e-4)


def test_nsp_gives_two_segments(corpus, tokenizer):
    module, batch, context = setting(corpus, tokenizer, Objectives(nsp=1), Masking(rate=0.3), type_vocab_size=2)
    view = module.prepare(batch, context, 0.0).views["masked"]
    separator = corpus.train.vocabulary["sep"]
    for ids, segments in zip(sequences(view), view.segments.split(view.lengths.tolist()), strict=True):
        first = ids[0].tolist().index(separator)
        assert segments.tolist() == [0] * (first + 1) + [1] * (ids.shape[1] - first - 1)


@pytest.mark.parametrize("emd_steps", [0, 2])
def test_position(corpus, tokenizer, emd_steps):
    module, batch, context = setting(corpus, tokenizer, Objectives(mlm=1, position=1), emd_steps=emd_steps)
    part = module.prepare(batch, context, 0.0)
    view, head = part.views["masked"], module.objectives["position"].classifier
    hidden_rows = set(view.masked.positions.tolist())
    expected, row = 0.0, 0
    for ids in sequences(view):
        with torch.no_grad():
            hidden = module.model.deberta(ids).last_hidden_state[0]
        for i in range(ids.shape[1]):
            if row + i in hidden_rows:
                expected += cross_entropy(head(hidden[i]).detach(), i)
        row += ids.shape[1]
    assert total(module, part)[1]["position"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("scored", ["all", "last"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_refinement(corpus, tokenizer, share, scored):
    options = {"refinement_rounds": 3, "refinement_replaced": share, "refinement_scored": scored}
    module, batch, context = setting(corpus, tokenizer, Objectives(mlm=0, refinement=1, **options))
    part = module.prepare(batch, context, 0.0)
    view = part.views["masked"]
    positions, targets = view.masked.positions.tolist(), view.masked.targets.tolist()
    ends = view.lengths.cumsum(0).tolist()
    ids, rounds = view.ids, []
    for _ in range(3):
        with torch.no_grad():
            logits = torch.cat([module.model(piece[None]).logits[0] for piece in ids.split(view.lengths.tolist())])
        rounds.append(sum(cross_entropy(logits[p], t) for p, t in zip(positions, targets, strict=True)))
        ids = view.ids.clone()
        for start, end in zip([0, *ends], ends, strict=False):
            own = [p for p in positions if start <= p < end]
            certain = sorted(own, key=lambda p: float(logits[p].log_softmax(-1).max()), reverse=True)
            for p in certain[: math.ceil(share * len(own))]:
                ids[p] = logits[p].argmax()
    kept = (ids == view.ids)[positions].double().mean()
    assert kept < 1 if share == 1 else 0.2 < kept < 0.8
    assert len(set(rounds)) == 3
    expected = sum(rounds) / 3 if scored == "all" else rounds[-1]
    assert total(module, part)[1]["refinement"] == pytest.approx(expected, rel=1e-4)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="must be > 0"):
        Objectives(mlm=0)
    with pytest.raises(ValueError, match="refinement"):
        Objectives(mlm=1, refinement=1)
    with pytest.raises(ValueError, match="refinement_replaced=0"):
        Objectives(mlm=0, refinement=1, refinement_replaced=0)
    with pytest.raises(ValueError, match="choose all or last"):
        Objectives(mlm=0, refinement=1, refinement_scored="first")


def test_a_convolution_cannot_be_causal(tokenizer):
    model = DebertaForMaskedLM(small("deberta-v2-xlarge", vocab_size=len(tokenizer)))
    with pytest.raises(ValueError, match="arlm needs causal attention"):
        JointObjectives(make_backbone(model), Objectives(mlm=1.0, arlm=1.0))
