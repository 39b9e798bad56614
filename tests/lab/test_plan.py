from dataclasses import replace

import pytest

from debertakit.lab.ablations import ABLATIONS, OF_FINETUNING
from debertakit.lab.options import Budget, CompareOptions, parse_budget
from debertakit.lab.plan import Entry, common_configs, equal_sizes, rates_to_try, share_models, with_budget
from debertakit.pretraining.models import make_models
from debertakit.pretraining.recipes import recipe
from tests.models import word_tokenizer

FAMILY = ["tiny", "bert-tiny", "roberta-tiny", "albert-tiny", "spanbert-tiny", "xlnet-tiny", "gpt2-tiny", "v3-tiny"]


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer([f"w{number}" for number in range(8187)])


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("20M-tokens", Budget(tokens=20_000_000)),
        ("1.5m-tokens", Budget(tokens=1_500_000)),
        ("3,000-steps", Budget(steps=3000)),
        ("30m", Budget(minutes=30)),
        ("1.5h", Budget(minutes=90)),
    ],
)
def test_budgets(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["20", "0-steps", "20M", "M-tokens", "1.2.3-steps", "30 days"])
def test_a_wrong_budget_is_one_line(text):
    with pytest.raises(ValueError, match="--budget"):
        CompareOptions(budget=text)


def test_everything_but_the_method_is_equal():
    configs = common_configs([Entry(name, name) for name in FAMILY], CompareOptions(budget="2M-tokens", vocab_size=500))
    first = configs["tiny"]
    for name, config in configs.items():
        assert config.steps == -(-2_000_000 // 2048)
        assert config.data.vocab_size == 500
        assert config.masking == recipe(name).masking
        same = replace(first.data, tokenizer=config.data.tokenizer, mode=config.data.mode)
        assert config.data == same


def test_parameters_are_equal_within_five_per_cent(tokenizer):
    configs = common_configs([Entry(name, name) for name in FAMILY], CompareOptions(budget="100-steps"))
    found = equal_sizes(configs, dict.fromkeys(configs, tokenizer))
    for each in found:
        assert abs(each.parameters / found[0].parameters - 1) <= 0.05
        counted = sum(p.numel() for p in make_models(each.config, tokenizer)[0].parameters())
        assert each.parameters == counted
    widened = {each.recipe: each.widened for each in found if each.widened}
    assert list(widened) == ["albert-tiny"]  # its layers share their weights
    far = [Entry("tiny", "tiny"), Entry("x", "tiny", ("model.num_hidden_layers=12", "model.num_attention_heads=1"))]
    configs = common_configs(far, CompareOptions())
    with pytest.raises(ValueError, match="compare recipes of one size"):
        equal_sizes(configs, dict.fromkeys(configs, tokenizer))


def test_short_runs_get_a_short_warm_up():
    config = with_budget(recipe("tiny"), Budget(steps=50))
    assert (config.optimizer.warmup_steps, config.steps, config.checkpoint_every) == (5, 50, 6)
    assert with_budget(recipe("tiny"), Budget(steps=5000)).optimizer.warmup_steps == 100


def test_rates_are_around_the_recipes_own():
    assert rates_to_try(recipe("tiny"), 3) == [0.0015, 0.003, 0.006]
    assert rates_to_try(recipe("tiny"), 1) == [0.003]


def test_mistakes_are_one_line():
    with pytest.raises(ValueError, match="named twice"):
        common_configs([Entry("tiny", "tiny"), Entry("tiny", "tiny")], CompareOptions())
    with pytest.raises(ValueError, match="tiny-d has a decoder"):
        common_configs([Entry("tiny-d", "tiny-d")], CompareOptions())
    with pytest.raises(ValueError, match="--tasks and --data go together"):
        CompareOptions(tasks="cola")


@pytest.mark.parametrize("part", ABLATIONS)
def test_every_ablation_can_be_built(part, tokenizer):
    entries = [Entry(name, name_of, changes) for name, (name_of, changes) in ABLATIONS[part].items()]
    configs = common_configs(entries, CompareOptions())
    found = equal_sizes(configs, dict.fromkeys(configs, tokenizer), match=False)
    found = share_models(found, entries)
    different = {str((each.config.model, each.config.rtd, each.config.masking, each.finetuning)) for each in found}
    assert len(different) == len(found)
    assert len({each.trained_as or each.recipe for each in found}) == (1 if part in OF_FINETUNING else len(found))
