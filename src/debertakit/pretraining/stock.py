"""Continued pretraining of BERT, RoBERTa, ALBERT and ELECTRA: transformers reads the checkpoint, we grow its positions.

The model is the class that the recipe would build anew (a language model, with a head for pairs if an objective needs
one), so heads load under transformers' own names. A part of the head that the checkpoint lacks is newly initialised.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from debertakit.loading import load_config
from debertakit.pretraining.families import FAMILIES
from debertakit.pretraining.longer import lengthen
from debertakit.pretraining.settings import PretrainConfig

TASK_HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


def adopt(config: PretrainConfig, family: str, init: str, init_generator: str | None) -> PretrainConfig:
    """Replace the recipe's model with the checkpoint's, and set the generator's shape."""
    theirs = load_config(init)
    tuned = [name for name in theirs.architectures or () if name.endswith(TASK_HEADS)]
    if tuned:
        raise ValueError(f"{init} was fine-tuned (it is a {tuned[0]}); use the checkpoint it was made from")
    known = theirs.to_dict()
    model = {name: known[name] for name in FAMILIES[family].fields if name in known}
    if family == "albert":
        model["share"] = _sharing(theirs, init)
    positions = FAMILIES[family].count_positions(theirs)
    if positions is not None and config.data.max_length > positions:
        model["max_position_embeddings"] = theirs.max_position_embeddings + config.data.max_length - positions
    rtd = config.rtd
    if rtd is not None:
        small = load_config(_generator(init, init_generator))
        rtd = replace(
            rtd,
            generator_layers=small.num_hidden_layers,
            generator_width=small.hidden_size / theirs.hidden_size,
            warmup_steps=rtd.warmup_steps or 0,
        )
    return replace(config, family=family, model=model, rtd=rtd)


def _sharing(config: PreTrainedConfig, init: str) -> str:
    if config.inner_group_num == 1 and config.num_hidden_groups in (1, config.num_hidden_layers):
        return "all" if config.num_hidden_groups == 1 else "none"
    raise ValueError(
        f"{init}: its {config.num_hidden_layers} layers are {config.num_hidden_groups} groups of "
        f"{config.inner_group_num}; --init continues an ALBERT with one group, or one group for each layer"
    )


def _generator(init: str, given: str | None) -> str:
    """Folder or hub name of the generator."""
    subfolder = Path(init) / "generator"
    if given is None and not subfolder.is_dir():
        raise ValueError(f"{init} has no generator: pass --init-generator MODEL")
    return given or str(subfolder)


def load(models: Sequence[PreTrainedModel], init: str, init_generator: str | None, max_length: int) -> list[str]:
    """Load a model, or a discriminator and its generator, from the checkpoint. Returns the lines to print."""
    sources = [init] if len(models) == 1 else [init, _generator(init, init_generator)]
    new: list[str] = []
    changes: list[str] = []
    for model, source in zip(models, sources, strict=True):
        theirs, report = type(model).from_pretrained(source, output_loading_info=True, dtype=torch.float32)
        body = f"{model.base_model_prefix}."
        lost = [key for key in report["missing_keys"] if key.startswith(body) and "pooler" not in key]
        if lost:
            raise ValueError(f"{source} lacks {len(lost)} tensors of the encoder, for example {lost[0]}")
        new += sorted(set(report["missing_keys"]))
        state = theirs.state_dict()
        changes += lengthen(model, state, init, max_length)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"{source} does not fit the model: {str(error).splitlines()[1].strip()}") from None
    line = f"starting from {' and '.join(sources)}"
    line += f"; not in the checkpoint, so newly initialised: {', '.join(new)}" if new else ""
    return [line, *dict.fromkeys(changes)]
