"""Attention patterns averaged over a corpus."""

import math
import re

import numpy as np
import pytest

from debertakit.explain.corpus import REACH, SIDE, corpus_patterns, resampled
from debertakit.explain.options import Inputs, Outputs
from debertakit.explain.outputs import make_outputs
from debertakit.explain.parts import Subject, patterns, profile, take_apart
from tests import tiny

TEXTS = ["anna lives in paris", "a good film", " ".join(["one day we saw the film"] * 6)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return tiny.deberta(folder / "deberta"), tiny.bert(folder / "<b>")


@pytest.mark.parametrize("length", [3, SIDE, 40])
def test_a_resampled_matrix_keeps_its_rows_and_its_shape(length):
    draw = np.random.default_rng(0)
    attention = draw.dirichlet(np.ones(length), size=(2, length))
    small = resampled(attention)
    assert small.shape == (2, SIDE, SIDE)
    np.testing.assert_allclose(small.sum(-1), 1)
    first = np.zeros((length, length))
    first[:, 0] = 1
    assert resampled(first)[:, : math.ceil(SIDE / length)].sum(-1) == pytest.approx(1)
    if length == SIDE:
        np.testing.assert_allclose(small, attention)
    if length == 2 * SIDE:
        np.testing.assert_allclose(small, attention.reshape(2, SIDE, 2, SIDE, 2).mean(2).sum(-1))


def test_means_over_texts(models):
    subject = Subject.load(models[0])
    found = corpus_patterns(subject, TEXTS)
    anatomies = [take_apart(subject, text, longest=64) for text in TEXTS]
    assert found.texts == 3
    for name, values in found.strength.items():
        np.testing.assert_allclose(values, np.mean([patterns(each)[name] for each in anatomies], axis=0))
    np.testing.assert_allclose(found.matrices, np.mean([resampled(a.attention.mean(1)) for a in anatomies], axis=0))
    far = [profile(a) for a in anatomies if len(a.tokens) > REACH]  # the others have no such distance
    expected = np.mean([p.attention.mean(1)[:, p.distances == REACH] for p in far], axis=0)
    np.testing.assert_allclose(found.by_distance[:, -1:], expected)
    near = np.mean([p.attention.mean(1)[:, p.distances == 0] for p in map(profile, anatomies)], axis=0)
    np.testing.assert_allclose(found.by_distance[:, [REACH]], near)
    with pytest.raises(ValueError, match="the corpus has no text"):
        corpus_patterns(subject, [])


def test_page_of_two_models(models, tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS))
    file = tmp_path / "page.html"
    lines = make_outputs(list(map(str, models)), [], Inputs(corpus=str(corpus)), Outputs(out=file))
    html = file.read_text(encoding="utf-8")
    assert re.match(r"deberta: strongest heads over 3 texts: diagonal \d+%, stripe \d+%, \[CLS\] \d+%", lines[0])
    assert html.count("<polyline") == 4  # two models of two layers
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](http[^\"']+)", html)


def test_several_models_need_a_corpus_and_a_page(models, tmp_path):
    names, out = list(map(str, models)), tmp_path / "page.html"
    with pytest.raises(ValueError, match="to compare two on a text, use --against"):
        make_outputs(names, ["a film"], Inputs(), Outputs(out=out))
    with pytest.raises(ValueError, match="takes no texts and no --against"):
        make_outputs(names, ["a film"], Inputs(corpus="texts.txt"), Outputs(out=out))
