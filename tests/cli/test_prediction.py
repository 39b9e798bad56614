"""Commands that predict. Invalid combinations of options are refused before a model is loaded."""

import re

import pytest
from transformers import BertConfig, BertForMaskedLM
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.cli.prediction import inputs_of, is_file_name, predictions_file
from debertakit.inference.options import FileOptions
from debertakit.inference.tasks import EntityTagger, OptionChooser, PairScorer
from tests import tiny
from tests.inference import material

FILES = ("--file", "in.csv", "--out", "out.csv")


def predict(*arguments):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "pass texts (deberta predict MODEL"),
        (("a", *FILES), "pass texts (deberta predict MODEL"),
        (("--file", "in.parquet", "--engine", "ray"), "no such folder"),
        ((*FILES, "--engine", "spark"), "unknown engine 'spark'; choose local or ray"),
        (("a", "--engine", "ray"), "--engine is not an option of a run without a file"),
        ((*FILES, "--workers", 2), "--workers needs --engine ray"),
        (("a", "--out", "out.csv"), "--out is not an option of a run without a file"),
        (("a", "--column", "text=review"), "--column is not an option of a run without a file"),
        ((*FILES, "--json"), "--json is not an option of a run with a file"),
        (("in.csv", "--json"), "--json is not an option of a run with a file"),
        (("a", "--label", "x"), "--label is not an option of a run without --task zero-shot"),
        (("a", "--task", "ner", "--template", "{}"), "--template is not an option of a run without --task zero-shot"),
        (("a", "--backend", "jax"), "unknown backend 'jax'"),
    ],
)
def test_options_that_do_not_go_together(arguments, message):
    found = predict("/nowhere/at-all", *arguments)
    assert isinstance(found.exception, ValueError)
    assert message in str(found.exception)


def test_a_masked_language_model_fills_masks(tmp_path):
    """Without --long, each task reads long texts in its own way; fill has only one."""
    folder = material.saved(tmp_path / "m", "MaskedLM")
    found = predict(folder, "the [MASK] sat")
    assert found.exit_code == 0, found.exception
    assert found.stdout.strip()


def test_zero_shot(tmp_path):
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    folder = material.saved(tmp_path / "m", "SequenceClassification", id2label=labels, num_labels=3)
    found = predict(folder, "the cat", "--task", "zero-shot", "--label", "cat", "--label", "dog", "--json")
    assert found.exit_code == 0, found.exception
    assert all(name in found.stdout for name in ("cat", "dog"))


def test_the_second_text():
    tokenizer = material.tokenizer()
    choose = OptionChooser(material.model("MultipleChoice"), tokenizer)
    assert inputs_of(choose, ["a", "x", "y"], "b") == [{"text": "a", "options": ["x", "y"], "pair": "b"}]
    score = PairScorer(material.model("SequenceClassification", num_labels=1), tokenizer)
    assert inputs_of(score, ["a", "b"], None) == inputs_of(score, ["a"], "b") == [{"text": "a", "pair": "b"}]
    tag = EntityTagger(material.model("TokenClassification"), tokenizer)
    with pytest.raises(ValueError, match="--pair: this task reads text, words, and no pair"):
        inputs_of(tag, ["a"], "b")


def test_columns():
    given = FileOptions(text="review", column=["pair=reply=1"])
    assert given.columns() == {"text": "review", "pair": "reply=1"}
    with pytest.raises(ValueError, match="--column review: write it as field=column"):
        FileOptions(column=["review"]).columns()


def test_a_file_and_its_predictions(tmp_path):
    assert all(map(is_file_name, ("my.csv", "data/My.JSONL", "a.xlsx")))
    assert not any(map(is_file_name, ("a fine film.csv", "fine", "3.14", "see you at example.com")))
    assert predictions_file(tmp_path / "my.csv") == tmp_path / "my-predictions.csv"
    (tmp_path / "my-predictions.csv").touch()
    assert predictions_file(tmp_path / "my.csv") == tmp_path / "my-predictions-2.csv"
    assert predictions_file(tmp_path / "my.json").suffix == ".jsonl"


def test_the_confidence_is_printed(tmp_path):
    folder = material.saved(tmp_path / "m", "SequenceClassification", num_labels=2)
    assert re.fullmatch(r"LABEL_[01]  \((5|6|7|8|9)\d\.\d%\)\n", predict(folder, "the cat").stdout)


def test_fill_takes_other_masked_language_models(tmp_path):
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=len(tiny.tokenizer()), **shape)).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    command = ["fill", "the [MASK] was good", "--model", str(tmp_path), "--top", "2"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert len(found.stdout.splitlines()) == 2
    refused = CliRunner().invoke(app, [*command, "--generator"])
    assert "--generator needs a DeBERTa v3 checkpoint" in str(refused.exception)
