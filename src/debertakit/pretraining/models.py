"""Build the models of a recipe, and the module that trains them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from debertakit.config import DebertaConfig
from debertakit.objectives import classes
from debertakit.objectives.joint import JointObjectives
from debertakit.objectives.rtd import ReplacedTokenDetection
from debertakit.objectives.teacher import Teacher
from debertakit.objectives.training_module import TrainingModule
from debertakit.pretraining.families import FAMILIES, make_backbone, make_family_config
from debertakit.pretraining.settings import PretrainConfig, check_names
from debertakit.protocols import Tokenizer
from debertakit.text.masking import log_frequencies
from debertakit.text.shards import Shards


def make_models(config: PretrainConfig, tokenizer: Tokenizer) -> list[PreTrainedModel]:
    """Build the model, or the discriminator and its generator, randomly initialised."""
    try:
        return [make_model(config, tokenizer)] if config.rtd is None else _make_detector(config, tokenizer)
    except (KeyError, ZeroDivisionError) as error:  # raised inside a transformers model
        raise ValueError(f"cannot build a model of family {config.family} from these model.* fields: {error}") from None


def make_module(
    config: PretrainConfig,
    models: Sequence[PreTrainedModel],
    shards: Shards,
    *,
    new: bool,
    teacher: Teacher | None = None,
) -> TrainingModule:
    """Put the models and the recipe's objectives together. ``new``: the weights are random, not from a checkpoint."""
    backbones = [make_backbone(model) for model in models]
    if config.rtd is None:
        return JointObjectives(backbones[0], config.objectives, teacher)
    discriminator, generator = backbones
    size, special = shards.vocabulary["size"], shards.vocabulary["special"]
    return ReplacedTokenDetection(discriminator, generator, config.rtd, size, special, new=new)


def unigram_bias(config: PretrainConfig, models: Sequence[PreTrainedModel], shards: Shards) -> None:
    """Set the output bias of the language model to the log frequency of the tokens, with one added to each count.

    A model with random weights then predicts the unigram distribution, which it otherwise learns in its first hundreds
    of steps. Special tokens are never predicted; they get the frequency of an unseen token.
    """
    bias = FAMILIES[config.family].output_bias(models[-1])  # with rtd, the generator is the last model
    if bias is None:
        raise ValueError(f"unigram_bias: the output layer of {config.family} has no bias; set unigram_bias=false")
    counts = np.zeros(len(bias), np.int64)  # the model's table can be larger than the vocabulary
    found = shards.token_counts()
    found[shards.vocabulary["special"]] = 0
    counts[: len(found)] = found
    with torch.no_grad():
        bias.copy_(torch.from_numpy(log_frequencies(counts)))


def make_model(config: PretrainConfig, tokenizer: Tokenizer) -> PreTrainedModel:
    """Build the language model. If an objective predicts pairs, use the stock class with a pair head."""
    family = FAMILIES[config.family]
    built = make_config(config, tokenizer)
    pairs = any(classes()[name].uses_pair_head for name in config.objectives.weights)
    model = (family.pair_class if pairs and family.pair_class else family.model_class)(built)
    if family.finish_model is not None:
        family.finish_model(model, config.model)
    return model


def make_config(config: PretrainConfig, tokenizer: Tokenizer) -> PreTrainedConfig:
    """Build the model's config, with the tokenizer's vocabulary size and special ids."""
    family = FAMILIES[config.family]
    check_names(config.model, family.fields, "model.")
    fields = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **config.model}
    if fields["vocab_size"] < len(tokenizer):
        raise ValueError(
            f"model.vocab_size={fields['vocab_size']} is less than the tokenizer's {len(tokenizer)} tokens"
        )
    built = make_family_config(family, fields, tokenizer)
    if isinstance(built, DebertaConfig) and "clamp_distances" not in config.model and _passes_limit(config, built):
        built.clamp_distances = False  # longer.py explains why
    positions = family.count_positions(built)
    if positions is not None and config.data.max_length > positions:
        raise ValueError(
            f"data.max_length={config.data.max_length} is more than the model's {positions} positions "
            "(model.max_position_embeddings)"
        )
    return built


def _passes_limit(config: PretrainConfig, built: DebertaConfig) -> bool:
    """Whether the texts are longer than the limit of the log buckets."""
    buckets = built.relative_attention and built.position_buckets > 0
    return buckets and config.data.max_length > built.relative_positions.max_position


def _make_detector(config: PretrainConfig, tokenizer: Tokenizer) -> list[PreTrainedModel]:
    """Build a discriminator, and a generator of the shape in ``config.rtd``."""
    family = FAMILIES[config.family]
    assert config.rtd is not None
    assert family.make_detector is not None
    full, width = make_config(config, tokenizer), config.rtd.generator_width
    shape = {
        "num_hidden_layers": config.rtd.generator_layers or max(full.num_hidden_layers // 2, 1),
        "hidden_size": round(full.hidden_size * width),
        "num_attention_heads": max(round(full.num_attention_heads * width), 1),
        "intermediate_size": round(full.intermediate_size * width),
        "embedding_size": full.embedding_size,
    }
    generator = make_model(replace(config, model={**config.model, **shape}), tokenizer)
    return [family.make_detector(full), generator]
