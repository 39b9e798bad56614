"""Prefix language modelling: what each row sees, what is predicted, and the loss of stock transformers."""

import pytest
import torch
from transformers import DebertaV2Config, DebertaV2Model

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives
from debertakit.objectives.base import Context
from debertakit.objectives.joint import JointObjectives
from debertakit.pretraining.families import make_backbone
from debertakit.text.masking import Masking
from debertakit.text.packing import Packing
from tests.models import small
from tests.objectives.material import cross_entropy, lively, sequences


@pytest.fixture(scope="module")
def module(tokenizer):
    model = DebertaForMaskedLM(small(vocab_size=len(tokenizer), emd_steps=0))
    return lively(JointObjectives(make_backbone(model), Objectives(mlm=0, prefix=1)))


@pytest.fixture
def part(corpus, module):
    return module.prepare(Packing(corpus.train, 32, 256).batch(1), Context(corpus.train, Masking(), seed=3), 0.0)


def test_prefixes_are_drawn_anew_in_every_epoch_and_do_not_depend_on_the_batch(corpus, module):
    packing, context = Packing(corpus.train, 32, 4096), Context(corpus.train, Masking(), seed=3)
    build, batch = module.objectives["prefix"].build_view, packing.batch(0)
    view = build(batch, context, 0.0)
    assert (view.prefix >= 1).all()
    assert (view.prefix < view.lengths).all()
    share = (view.prefix.double() / view.lengths)[view.lengths > 20]
    assert float(share.mean()) == pytest.approx(0.5, abs=0.1)
    parts = torch.cat([build(packing.batch(0, p, 2), context, 0.0).prefix for p in range(2)])
    assert torch.equal(parts, view.prefix)
    later = build(packing.batch(packing.epoch_tokens // 4096 + 1), context, 0.0)
    again = dict(zip(later.lengths.tolist(), later.prefix.tolist(), strict=True))
    assert again != dict(zip(view.lengths.tolist(), view.prefix.tolist(), strict=True))


def test_the_loss_equals_stock_transformers_with_the_mask_written_out(module, part):
    view = part.views["prefix"]
    stock = DebertaV2Model(DebertaV2Config.from_dict(module.model.config.to_dict())).eval()
    stock.load_state_dict(module.model.deberta.state_dict(), strict=False)
    head, words = module.model.lm_predictions.lm_head, module.model.get_input_embeddings().weight
    expected, terms = 0.0, 0
    for ids, prefix in zip(sequences(view), view.prefix.tolist(), strict=True):
        n = ids.shape[1]
        seen = torch.tensor([[j < prefix or j <= i for j in range(n)] for i in range(n)]).long()
        with torch.no_grad():
            embedded = stock.embeddings(ids, mask=torch.ones_like(ids))
            hidden = stock.encoder(embedded, seen[None]).last_hidden_state[0]
            logits = head(hidden, words)
        for t in range(prefix - 1, n - 1):
            expected += cross_entropy(logits[t], int(ids[0, t + 1]))
            terms += 1
    with torch.no_grad():
        loss, sums = module(part, torch.tensor(part.counts(), dtype=torch.float32))
    assert part.counts() == [terms]
    assert float(sums[0, 0]) == pytest.approx(expected, rel=1e-4)
    assert float(loss) == pytest.approx(expected / terms, rel=1e-4)


def test_a_convolution_cannot_have_a_prefix(tokenizer):
    model = DebertaForMaskedLM(small("deberta-v2-xlarge", vocab_size=len(tokenizer)))
    with pytest.raises(ValueError, match="prefix needs prefix attention"):
        JointObjectives(make_backbone(model), Objectives(mlm=0, prefix=1))
