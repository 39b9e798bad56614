"""Each family's record fits its classes, and everything that is needed after training is known before it."""

import pytest

from debertakit.objectives.joint import JointObjectives
from debertakit.pretraining.families import FAMILIES, family_of, fit_tokenizer, make_backbone
from debertakit.pretraining.models import make_model
from debertakit.pretraining.recipes import RECIPES, recipe


@pytest.mark.parametrize("name", [name for name in RECIPES if "tiny" in name])
def test_a_model_leads_back_to_its_record_and_has_a_usage_example(name, tokenizer):
    config = recipe(name)
    family, model = FAMILIES[config.family], make_model(config, tokenizer)
    assert family_of(model) is family
    if config.rtd is None:
        assert JointObjectives(make_backbone(model), config.objectives).pipeline_tag in family.examples
    else:
        assert {"feature-extraction", "fill-mask"} <= family.examples.keys()


def test_every_family_has_a_recipe():
    assert {recipe(name).family for name in RECIPES} == FAMILIES.keys()


@pytest.mark.parametrize(("name", "expected"), [("roberta-tiny", False), ("gpt2-tiny", False), ("bert-tiny", True)])
def test_token_types_are_saved_only_if_the_model_reads_them(name, expected, tokenizer):
    fitted = fit_tokenizer(tokenizer, make_model(recipe(name), tokenizer))
    assert ("token_type_ids" in fitted("a", "b")) is expected
    assert "token_type_ids" in tokenizer("a", "b")  # the original is unchanged
