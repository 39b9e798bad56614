"""Continued pretraining: start a run from a checkpoint's config, weights and tokenizer.

The recipe sets objectives, optimiser and data; the checkpoint decides the family of the model. DeBERTa v1 and v2, BERT,
RoBERTa and ALBERT continue with the recipe's language-model objectives. v3 and ELECTRA continue with replaced-token
detection; the generator is searched in this order:

    --init-generator                    a folder, a file or a hub name
    MODEL/generator/                    as our runs write it
    MODEL/pytorch_model.generator.bin   as Microsoft publishes it (not for v3-base)

If a v3 has no generator, one is initialised from the discriminator's checkpoint: embeddings, relative table, lower
layers, absolute positions and language-model head. It predicts nothing useful at first, so it is trained alone for
``rtd.warmup_steps`` before the discriminator trains on its samples.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from debertakit.checkpoints import State, complete_config, merge_gdes, read_state, rename, to_ours, weights_file
from debertakit.config import MODEL_TYPES, DebertaConfig
from debertakit.loading import describe
from debertakit.pretraining import stock
from debertakit.pretraining.families import FAMILIES
from debertakit.pretraining.longer import lengthen
from debertakit.pretraining.settings import PretrainConfig
from debertakit.protocols import Tokenizer
from debertakit.text.tokenizers import load_tokenizer

FINE_TUNED = ("classifier.", "qa_outputs.")
NEW = {
    "lm_predictions": "language-model head",
    "mask_predictions": "replaced-token head",
    "position_embeddings": "absolute positions",
    "mask_decoder": "the mask decoder's own layers",
}
"""Parts that a checkpoint may lack, and their display names."""


def adopt(config: PretrainConfig, init: str, init_generator: str | None = None) -> PretrainConfig:
    """Replace the recipe's model with the checkpoint's, and set the generator's shape."""
    family = family_of_checkpoint(init)
    if family == "deberta":
        adopted = _adopt_deberta(config, init, init_generator)
    else:
        adopted = stock.adopt(config, family, init, init_generator)
    return replace(adopted, init=absolute(init), init_generator=absolute(init_generator))


def family_of_checkpoint(init: str) -> str:
    """Return the name of the checkpoint's family. Raise if this family cannot continue."""
    try:
        content, _ = PreTrainedConfig.get_config_dict(Path(init).parent if Path(init).is_file() else init)
    except (OSError, AttributeError, TypeError):  # no usable config.json: ``read`` says what is wrong
        content = {}
    kind = content.get("model_type", DebertaConfig.model_type)  # Microsoft's files have no model_type
    family = "deberta" if kind in MODEL_TYPES else kind
    if family not in FAMILIES or not FAMILIES[family].continues:
        titles = [each.title for each in FAMILIES.values() if each.continues]
        raise ValueError(f"{init} is a checkpoint of {kind}; --init continues {', '.join(titles)}")
    return family


def _adopt_deberta(config: PretrainConfig, init: str, init_generator: str | None) -> PretrainConfig:
    theirs, _ = read(init)
    model = {name: getattr(theirs, name) for name in DebertaConfig.__annotations__}
    model |= {"model_type": theirs.model_type, "pos_att_type": list(theirs.pos_att_type)}
    if theirs.max_relative_positions <= 0:  # pin the default, because max_position_embeddings may grow
        model["max_relative_positions"] = theirs.max_position_embeddings
    if theirs.clamp_distances:
        del model["clamp_distances"]  # make_config decides by the length (longer.py)
    model["max_position_embeddings"] = max(theirs.max_position_embeddings, config.data.max_length)
    rtd = config.rtd
    if rtd is not None:
        file = find_generator(init, init_generator)
        if file is None:
            if config.minutes is not None and rtd.warmup_steps is None:
                raise ValueError(
                    f"{init} has no generator, so a new one is trained alone first. With --minutes, set the number of "
                    "these steps: --set rtd.warmup_steps=N"
                )
            warmup = config.steps // 10 if rtd.warmup_steps is None else rtd.warmup_steps
            rtd = replace(rtd, warmup_steps=warmup)
        else:
            small, _ = read(file)
            model["emd_steps"] = small.emd_steps
            rtd = replace(
                rtd,
                generator_layers=small.num_hidden_layers,
                generator_width=small.hidden_size / theirs.hidden_size,
                warmup_steps=rtd.warmup_steps or 0,
            )
    return replace(config, family="deberta", model=model, rtd=rtd)


def tokenizer_of(init: str) -> Tokenizer:
    """Load the tokenizer that the checkpoint was trained with."""
    try:
        if family_of_checkpoint(init) != "deberta":
            return describe(init).tokenizer()
        return load_tokenizer(Path(init).parent if Path(init).is_file() else init)
    except ValueError as error:
        raise ValueError(f"{error}; pass the tokenizer of the checkpoint with --tokenizer") from None


def load(models: Sequence[PreTrainedModel], init: str, init_generator: str | None, max_length: int) -> list[str]:
    """Load a model, or a discriminator and its generator, from the checkpoint. Returns the lines to print."""
    if not isinstance(models[0].config, DebertaConfig):
        return stock.load(models, init, init_generator, max_length)
    config, state = read(init)
    line = f"starting from {init}"
    states = [state]
    if len(models) == 2:
        file = find_generator(init, init_generator)
        if file is None:
            states.append(dict(state))  # same names: the generator loads those that it has
            layers = models[1].config.num_hidden_layers
            line += f"; it has no generator, so one was made from its lower {layers} layers"
        else:
            _, generator = read(file)
            states = [merge_gdes(state, generator), generator]
            line += f"; generator from {file}"
    new: list[str] = []
    changes: list[str] = []
    for model, theirs in zip(models, states, strict=True):
        ours = to_ours(theirs)
        changes += lengthen(model, ours, init, max_length, config)
        new += _fill(model, ours, init)
    line += f"; not in the checkpoint, so newly initialised: {', '.join(new)}" if new else ""
    return [line, *dict.fromkeys(changes)]


def read(name: str | Path) -> tuple[DebertaConfig, State]:
    """Read a pretrained checkpoint: config, and fp32 weights under our names."""
    file = weights_file(name)
    config = DebertaConfig.from_pretrained(file.parent if Path(name).exists() else name)
    state = {key: value.float() for key, value in rename(read_state(file)).items()}
    for key in state:
        if key.startswith(FINE_TUNED):
            raise ValueError(f"{name} was fine-tuned (it contains {key}); use the checkpoint it was made from")
    return complete_config(config, state), state


def find_generator(init: str, given: str | None) -> Path | None:
    """Find the generator's weights file in the layouts above. Returns None if the checkpoint has no generator."""
    name = init if given is None else given
    subfolder = Path(name) / "generator"
    if subfolder.is_dir():
        return weights_file(subfolder)
    try:
        return weights_file(Path(name).parent if Path(name).is_file() and given is None else name, generator=True)
    except ValueError:
        return None if given is None else weights_file(given)


def _fill(model: PreTrainedModel, state: State, init: str) -> list[str]:
    """Load the weights. Returns the names of missing parts; a missing encoder weight raises."""
    try:
        missing, _ = nn.Module.load_state_dict(model, state, strict=False)
    except RuntimeError as error:
        raise ValueError(f"{init} does not fit the model: {str(error).splitlines()[1].strip()}") from None
    lost = [key for key in missing if not any(name in key for name in NEW)]
    if lost:
        raise ValueError(f"{init} lacks {len(lost)} tensors of the encoder, for example {lost[0]}")
    return [what for name, what in NEW.items() if any(name in key for key in missing)]


def absolute(name: str | None) -> str | None:
    """Make a local path absolute, so that the run can resume from another directory. Keep hub names."""
    return str(Path(name).resolve()) if name is not None and Path(name).exists() else name
