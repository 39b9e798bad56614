"""How the logits of several models become one, against the equations written out."""

import json

import pytest
import torch

from debertakit.ensembles import Ensemble, combined, read_ensemble
from tests.models import small


def test_probabilities_are_averaged():
    logits = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    found = combined("single-label", logits, "probabilities").softmax(-1)
    torch.testing.assert_close(found, logits.softmax(-1).mean(0))
    assert torch.equal(combined("tagging", logits, "logits"), logits.mean(0))
    torch.testing.assert_close(combined("multi-label", logits, "probabilities").sigmoid(), logits.sigmoid().mean(0))


def test_votes_and_how_a_tie_is_decided():
    sure, unsure = [0.0, 9.0, 0.0], [0.1, 0.0, 0.0]
    three = torch.tensor([unsure, unsure, sure])
    assert combined("choice", three, "probabilities").argmax() == 1
    assert combined("choice", three, "votes").argmax() == 0
    torch.testing.assert_close(
        combined("choice", three, "votes").exp(), torch.tensor([2 / 3, 1 / 3, 0.0]), atol=1e-5, rtol=0
    )
    assert combined("choice", three[1:], "votes").argmax() == 1  # one vote each: the surer model decides
    labels = torch.tensor([[4.0, 0.1], [-0.1, 0.1], [-0.1, -9.0]])
    assert (combined("multi-label", labels, "votes") > 0).tolist() == [False, True]


def test_numbers_have_a_mean_and_a_median():
    values = torch.tensor([[1.0], [2.0], [9.0]])
    assert combined("regression", values, "probabilities").tolist() == [4.0]
    assert combined("regression", values, "votes").tolist() == [2.0]


def test_padding_gets_no_probability():
    logits = torch.full((2, 2, 6), -1e4)
    logits[:, :, :3] = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(1))
    whole = combined("qa", logits, "probabilities")
    assert torch.isfinite(whole).all()
    torch.testing.assert_close(whole[:, :3], combined("qa", logits[:, :, :3], "probabilities"))


def test_one_member_answers_with_its_own_logits():
    logits = torch.randn(1, 4)
    for how in ("probabilities", "logits", "votes"):
        assert torch.equal(combined("single-label", logits, how), logits[0])


def test_the_file_of_an_ensemble(tmp_path):
    assert read_ensemble(tmp_path) is None
    file = tmp_path / "ensemble.json"
    file.write_text(json.dumps({"combine": "votes", "members": ["member-0"]}))
    assert read_ensemble(tmp_path) == ([tmp_path / "member-0"], "votes")
    for broken in ("{", "[]", '{"combine": "magic", "members": ["a"]}', '{"combine": "votes", "members": []}'):
        file.write_text(broken)
        with pytest.raises(ValueError, match=r"ensemble\.json is damaged"):
            read_ensemble(tmp_path)


def test_an_ensemble_has_no_forward_of_its_own():
    from debertakit.model import DebertaModel

    with pytest.raises(ValueError, match="use one of its members"):
        Ensemble([DebertaModel(small())], "logits")(input_ids=torch.zeros(1, 2))
