"""Permutation language modelling: gradients through the whole model show which tokens each target can see."""

import numpy as np
import pytest
import torch

from debertakit.objectives import Objectives
from debertakit.objectives.base import Context
from debertakit.objectives.joint import JointObjectives
from debertakit.pretraining.families import make_backbone
from debertakit.text.masking import Masking
from debertakit.text.packing import Packing
from tests.objectives.material import cross_entropy, lively

LAYERS = 3


@pytest.fixture(scope="module")
def module(tokenizer):
    from transformers import XLNetConfig, XLNetLMHeadModel

    config = XLNetConfig(
        vocab_size=len(tokenizer), d_model=32, n_layer=LAYERS, n_head=2, d_inner=64, pad_token_id=0, mem_len=None
    )
    return lively(JointObjectives(make_backbone(XLNetLMHeadModel(config)), Objectives(mlm=0, plm=1))).eval()


def test_a_target_sees_what_comes_before_it_and_nothing_else(corpus, tokenizer, module):
    """d loss_t / d content_j is nonzero exactly for the tokens j before t in the permutation."""
    context = Context(corpus.train, Masking("token", rate=0.4), seed=3)
    part = module.prepare(Packing(corpus.train, 16, 64).batch(1), context, 0.0)
    view, targets = part.views["permuted"], part.targets["plm"]
    embedded = []
    hook = module.model.transformer.word_embedding.register_forward_hook(
        lambda _, __, output: embedded.append(output.requires_grad_())
    )
    _, hidden = module.backbone.hidden_rows(view, None, targets.rows)
    hook.remove()
    losses = torch.nn.functional.cross_entropy(module.backbone.word_logits(hidden), targets.labels, reduction="none")
    sequence = torch.arange(len(view.lengths)).repeat_interleave(view.lengths)
    within = torch.arange(len(view.ids)) - view.starts[sequence]
    seen = {True: 0, False: 0}
    for number, row in enumerate(targets.rows.tolist()):
        (gradient,) = torch.autograd.grad(losses[number], embedded[0], retain_graph=True)
        moved = gradient[within, sequence].abs().amax(-1)  # the stock model holds [length, batch, hidden]
        for j in range(len(view.ids)):
            before = sequence[j] == sequence[row] and (view.order[j] == 0 or view.order[j] < view.order[row])
            assert (moved[j] > 0) == before, (row, j)
            seen[bool(before)] += int(view.order[j] > 0 and sequence[j] == sequence[row])
    assert min(seen.values()) > 20  # among the targets themselves, both ways


def test_the_loss_is_that_of_predicting_one_by_one(corpus, tokenizer, module):
    """Compute each target alone, with a model whose input contains only the tokens before it."""
    context = Context(corpus.train, Masking("ngram", rate=1 / 6), seed=3)
    part = module.prepare(Packing(corpus.train, 16, 96).batch(1), context, 0.0)
    view = part.views["permuted"]
    expected, low = 0.0, 0
    for ids in view.ids.split(view.lengths.tolist()):
        order = view.order[low : low + len(ids)]
        for place in order.nonzero().squeeze(-1).tolist():
            hidden_later = order >= order[place]
            changed = torch.where(hidden_later & (order > 0), torch.randint(5, len(tokenizer) - 1, ids.shape), ids)
            unseen = ((order[None] > 0) & (order[None] >= order[:, None])).float()
            mapping = torch.zeros(1, 1, len(ids))
            mapping[0, 0, place] = 1
            with torch.no_grad():
                logits = module.model(
                    changed[None],
                    perm_mask=unseen[None],
                    target_mapping=mapping,
                    token_type_ids=torch.zeros_like(ids)[None],
                ).logits[0, 0]
            expected += cross_entropy(logits, int(ids[place]))
        low += len(ids)
    with torch.no_grad():
        loss, figures = module(part, torch.tensor(part.counts(), dtype=torch.float32))
    assert float(figures[0, 0]) == pytest.approx(expected, rel=1e-4)
    assert float(loss) == pytest.approx(expected / part.counts()[0], rel=1e-4)


def test_the_order(corpus, module):
    """Targets are the last sixth of a random order, new in every epoch and independent of the batch."""
    context = Context(corpus.train, Masking("token", rate=1 / 6), seed=3)
    packing = Packing(corpus.train, 32, 4096)
    batch = packing.batch(0)
    permuted_view = module.objectives["plm"].build_view
    view = permuted_view(batch, context, 0.0)
    assert view.ids.tolist() == batch.input_ids.tolist()
    special = np.isin(batch.input_ids, corpus.train.vocabulary["special"])
    assert not view.order[special].any()
    share = float((view.order > 0).sum()) / float((~special).sum())
    assert share == pytest.approx(1 / 6, abs=0.02)
    firsts = []
    for order in view.order.split(view.lengths.tolist()):
        places = order.nonzero().squeeze(-1)
        assert sorted(order[places].tolist()) == list(range(1, len(places) + 1))
        if len(places) > 1:
            firsts.append(int(order[places[0]]) == 1)
    assert 0.1 < np.mean(firsts) < 0.6  # from left to right it would be 1
    half = permuted_view(packing.batch(0, 1, 2), context, 0.0)
    assert view.order[-len(half.ids) :].tolist() == half.order.tolist()
    chunk = batch.chunks[0]
    again = next(
        (s, b)
        for b in (packing.batch(step) for step in range(1, 99))
        for s in range(len(b.chunks))
        if b.chunks[s] == chunk and b.epochs[s] > 0
    )
    later = permuted_view(again[1], context, 0.0).order.split(again[1].lengths.tolist())[again[0]]
    assert later.tolist() != view.order[: batch.lengths[0]].tolist()
