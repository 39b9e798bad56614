from dataclasses import replace

import numpy as np
import pytest

from debertakit import demo


@pytest.fixture(scope="module")
def documentation():
    return list(demo.python_documentation())


@pytest.mark.slow
def test_the_demo_runs_from_text_to_filled_masks(documentation, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "python_documentation", lambda: iter(documentation[:400]))
    smaller = demo.contestants(0.02)
    smaller = {name: replace(config, data=replace(config.data, vocab_size=1000)) for name, config in smaller.items()}
    monkeypatch.setattr(demo, "contestants", lambda minutes: smaller)
    results = demo.main(tmp_path / "demo", minutes=0.02)
    assert set(results) == {"unigram", "BERT", "DeBERTa"}
    assert all(0 <= result.top1 <= result.top5 <= 1 for result in results.values())
    assert results["unigram"].top5 > 0.02
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 1000
    shown = capsys.readouterr().out
    assert "Return the number of [MASK]" in shown
    assert "top-5" in shown


def test_the_contestants_differ_only_in_positions_and_learning_rate():
    deberta, bert = demo.contestants(1.0).values()
    positions = {"relative_attention", "pos_att_type", "norm_rel_ebd", "position_biased_input", "emd_steps"}
    assert {key for key in bert.model if bert.model[key] != deberta.model.get(key)} == positions
    assert replace(bert, name="", model={}, optimizer=deberta.optimizer) == replace(deberta, name="", model={})
    assert bert.model["position_biased_input"]
    assert not bert.model["relative_attention"]


@pytest.mark.slow
def test_the_text_is_pythons_own_and_has_documents(documentation):
    assert len(documentation) > 200
    assert any("with statement" in text or "`with`" in text for text in documentation)
    assert np.median([len(text) for text in documentation]) > 300
