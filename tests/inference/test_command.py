"""Invalid combinations of options are refused before a model is loaded."""

from pathlib import Path

import pytest

from debertakit.inference.command import inputs, predict
from debertakit.inference.tasks import EntityTagger, OptionChooser, PairScorer
from tests.inference import material

FILES = {"file": Path("in.csv"), "out": Path("out.csv")}


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "give texts, or --file"),
        (["a"], FILES, "give texts, or --file"),
        ([], {"file": Path("in.csv")}, "--file needs --out"),
        ([], {**FILES, "engine": "spark"}, "local or ray"),
        (["a"], {"engine": "ray"}, "--engine ray is for files"),
        ([], {**FILES, "workers": 2}, "--workers belongs to --engine ray"),
        (["a"], {"out": Path("out.csv")}, "--out belongs to --file"),
        (["a"], {"columns": ["text=review"]}, "--column belongs to --file"),
        ([], {**FILES, "pair": "b"}, "--pair does not go with --file"),
        ([], {**FILES, "as_json": True}, "--json does not go with --file"),
    ],
)
def test_options_that_do_not_go_together(texts, options, message):
    with pytest.raises(ValueError, match=message):
        predict("/nowhere/at-all", texts, **options)


def test_the_second_text():
    tokenizer = material.tokenizer()
    choose = OptionChooser(material.model("MultipleChoice"), tokenizer)
    assert inputs(choose, ["a", "x", "y"], "b") == [{"text": "a", "options": ["x", "y"], "pair": "b"}]
    score = PairScorer(material.model("SequenceClassification", num_labels=1), tokenizer)
    assert inputs(score, ["a", "b"], None) == inputs(score, ["a"], "b") == [{"text": "a", "pair": "b"}]
    tag = EntityTagger(material.model("TokenClassification"), tokenizer)
    with pytest.raises(ValueError, match="--pair: this task has no pair; it reads text"):
        inputs(tag, ["a"], "b")
