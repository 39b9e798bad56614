"""DeBERTa-MT (appendix A.4): which half of the objective sees absolute positions."""

import pytest
import torch

from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import make_run
from debertakit.pretraining.recipes import recipe
from tests.pretraining.material import config


@pytest.mark.parametrize(("causal_emd", "changed"), [("false", {"mlm"}), ("true", {"mlm", "arlm"})])
def test_the_mask_decoder_serves_the_masked_half_only(corpus, tokenizer, causal_emd, changed):
    run = make_run(config(f"model.causal_emd={causal_emd}", name="tiny-mt"), corpus, tokenizer, World())
    part = run.module.eval().prepare(run.packing.batch(0), run.context, 0.0)
    totals = torch.ones(2)
    with torch.no_grad():
        before = run.module(part, totals)[1][:, 0]
        run.module.model.deberta.embeddings.position_embeddings.weight.normal_(0.0, 1.0)
        after = run.module(part, totals)[1][:, 0]
    differs = {name for name, a, b in zip(run.module.weights, before, after, strict=True) if not torch.equal(a, b)}
    assert differs == changed


def test_the_recipes_leave_causal_emd_off():
    assert not any(recipe(name).model.get("causal_emd", False) for name in ("deberta-mt", "tiny-mt"))
