"""Recipes are data: complete, replaceable field by field, and equal after writing and reading."""

import pytest
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.pretraining.models import make_config
from debertakit.pretraining.recipes import RECIPES, recipe
from debertakit.pretraining.settings import Data, from_json, load, override


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_complete_and_survives_its_json(name, tokenizer, tmp_path):
    config = recipe(name)
    assert config.name == name
    make_config(config, tokenizer)
    assert from_json(config.to_json()) == config
    (tmp_path / "run.json").write_text(config.to_json(), encoding="utf-8")
    assert recipe(str(tmp_path / "run.json")) == config


def test_values_are_read_as_their_field():
    changes = ["optimizer.lr=1e-3", "model.hidden_size=64", "model.pos_att_type=c2p", "minutes=2", "compile=true"]
    config = override(recipe("tiny"), [*changes, "steps=1_000", "data.mode=blocks", "objectives.arlm=1"])
    assert (config.optimizer.lr, config.model["hidden_size"], config.model["pos_att_type"]) == (1e-3, 64, ["c2p"])
    assert (config.minutes, config.compile, config.steps, config.data.mode) == (2.0, True, 1000, "blocks")
    assert config.objectives.weights == {"mlm": 1.0, "arlm": 1.0}
    assert override(config, ["minutes=none"]).minutes is None
    # all at once: neither of these two is right alone
    assert override(recipe("tiny"), ["objectives.refinement=1", "objectives.mlm=0"]).objectives.refinement == 1
    assert recipe("tiny").model["hidden_size"] == 128  # the recipe itself is untouched


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optimizer.lrr=1", "did you mean optimizer.lr"),
        ("optimzer.lr=1", "did you mean optimizer"),
        ("model.hiden_size=3", "did you mean model.hidden_size"),
        ("optimizer.lr=fast", "optimizer.lr='fast': expected float"),
        ("steps=2.5", "steps='2.5': expected int"),
        ("data.mode=pages", "documents"),
        ("optimizer=3", "set one of its fields, optimizer.FIELD"),
        ("steps.more=3", "steps has no fields"),
        ("steps", "field=value"),
        ("masking.rate=2", "between 0 and 1"),
        ("minutes=-1", "must be > 0"),
        ("data.micro_tokens=0", "data.micro_tokens=0: must be >= 1"),
        ("data.validation=-1", "must be >= 0"),
        ("data.mixture=0.7,0", "every weight must be > 0"),
        ("data.mixture=nan", "every weight must be > 0"),
        ("data.mixture=0.7;0.3", "expected one number per source"),
        ("family=brt", "family='brt': choose from deberta,"),
        ("objectives.refinement_rounds=0", "refinement_rounds=0: must be >= 1"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        override(recipe("tiny"), [change])


def test_an_unknown_family_is_named_before_its_fields_are_read():
    with pytest.raises(ValueError, match="family='brt': choose from"):
        override(recipe("tiny"), ["family=brt", "model.hidden_size=3"])


def test_unknown_recipes_and_broken_files(tmp_path):
    with pytest.raises(ValueError, match="did you mean deberta-base"):
        recipe("deberta-bse")
    with pytest.raises(ValueError, match=r"no run\.json at nowhere"):
        recipe("nowhere/run.json")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="not a run config"):
        load(tmp_path / "run.json")


def test_parts_of_a_step():
    data = Data(step_tokens=4096, micro_tokens=1024)
    assert [data.parts(ranks) for ranks in (1, 2, 4, 8)] == [4, 4, 4, 8]
    assert Data(step_tokens=4096, micro_tokens=1000).parts(2) == 6


def test_the_command_goes_from_text_to_a_model_that_fills_masks(material, tmp_path):
    out, corpus = tmp_path / "out", material / "text.txt"

    def deberta(*arguments):
        run = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if run.exception and not isinstance(run.exception, SystemExit):
            raise run.exception
        return run.stdout

    sets = ["steps=4", "data.tokenizer=wordpiece", "data.vocab_size=120", "data.max_length=32", "evaluate_tokens=256"]
    sets += ["model.num_hidden_layers=2", "model.hidden_size=32", "data.step_tokens=256", "checkpoint_every=2"]
    options = [argument for change in sets for argument in ("--set", change)]
    assert "perplexity" in deberta("pretrain", "tiny", "--corpus", corpus, "--out", out, *options)
    with pytest.raises(ValueError, match="--resume"):
        deberta("pretrain", "tiny", "--corpus", corpus, "--out", out)
    with pytest.raises(ValueError, match="a run of tiny, not of bert-tiny"):
        deberta("pretrain", "bert-tiny", "--corpus", corpus, "--out", out, "--resume")
    deberta("pretrain", "tiny", "--corpus", corpus, "--out", out, "--resume", "--set", "steps=6")
    assert load(out / "run.json").steps == 6
    assert len(deberta("fill", "the cat [MASK] the house", "--model", out).splitlines()) == 5
    # a prepared corpus is taken as it is, with the tokenizer that made it
    with pytest.raises(ValueError, match="--tokenizer"):
        deberta("pretrain", "tiny", "--corpus", out / "corpus", "--out", tmp_path / "again", *options)
    foreign = ["--tokenizer", material / "tokenizer", "--out", tmp_path / "again"]
    with pytest.raises(ValueError, match="with another tokenizer"):
        deberta("pretrain", "tiny", "--corpus", out / "corpus", *foreign, *options)
    again = ["--tokenizer", out / "tokenizer", "--out", tmp_path / "again"]
    deberta("pretrain", out / "run.json", "--corpus", out / "corpus", *again, "--set", "steps=1")


def test_recipes_are_listed_and_shown():
    listed = CliRunner().invoke(app, ["recipes"]).stdout
    assert all(name in listed for name in RECIPES)
    assert from_json(CliRunner().invoke(app, ["recipes", "show", "small"]).stdout) == recipe("small")
