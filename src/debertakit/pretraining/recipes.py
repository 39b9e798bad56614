"""Recipes: functions that return the complete config of a run, often derived from another recipe with ``replace``.

``deberta-*`` follow the paper (2006.03654, table 8): batch 2,048 x 512, 1 M steps, warm-up 10 k, Adam (0.9, 0.999),
eps 1e-6, decay 0.01, clip 1, linear, n-grams of up to 3 words. ``deberta-v3-*`` follow 2111.09543: batch 8,192 x 512,
500 k steps, Adam (0.9, 0.98); sources disagree on the learning rate of base and small (6e-4 or 5e-4), and none gives
the rate of xsmall. ``tiny`` and ``small`` were sized by measurements on two CPU cores: within minutes, narrow models
beat wide models, because they take more steps.
"""

import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from debertakit.config import PRESETS
from debertakit.lab.family import FAMILY, tiny_absolute
from debertakit.objectives import Objectives
from debertakit.pretraining import settings
from debertakit.pretraining.optim import Optimizer
from debertakit.pretraining.settings import Data, PretrainConfig, Rtd
from debertakit.text.masking import Masking


def deberta_base() -> PretrainConfig:
    """DeBERTa base as published: 12 x 768, MLM + EMD, 78 GB of text, 10 days on 64 V100s."""
    return PretrainConfig(
        name="deberta-base",
        model={**_without_vocabulary("deberta-base"), "emd_steps": 2},
        masking=Masking("ngram", rate=0.15, max_ngram=3),
        optimizer=Optimizer(lr=2e-4, warmup_steps=10_000),
        data=Data(tokenizer="bpe", vocab_size=50265, max_length=512, step_tokens=2048 * 512),
        steps=1_000_000,
    )


def deberta_large() -> PretrainConfig:
    """DeBERTa large as published: 24 x 1024, 20 days on 96 V100s."""
    model = {**_without_vocabulary("deberta-large"), "emd_steps": 2}
    return replace(deberta_base(), name="deberta-large", model=model, gradient_checkpointing=True)


def deberta_15b() -> PretrainConfig:
    """DeBERTa 1.5B as published: 48 x 1536, convolution, vocabulary of 128 k, 160 GB, 30 days on 256 V100s."""
    base = deberta_large()
    return replace(
        base,
        name="deberta-1.5b",
        model={**_without_vocabulary("deberta-v2-xxlarge"), "emd_steps": 2},
        optimizer=replace(base.optimizer, lr=1.5e-4),
        data=replace(base.data, tokenizer="unigram", vocab_size=128_000, micro_tokens=8192),
        parallel="fsdp2",
    )


def deberta_base_no_emd() -> PretrainConfig:
    """deberta-base without the mask decoder."""
    return _no_emd(deberta_base())


def deberta_mt() -> PretrainConfig:
    """DeBERTa-MT (appendix A.4): MLM and autoregressive LM jointly, base size, 200 k steps."""
    return replace(deberta_base(), name="deberta-mt", objectives=Objectives(mlm=1.0, arlm=1.0), steps=200_000)


def tiny() -> PretrainConfig:
    """Trains in minutes on two CPU cores: 4 x 128, heads of 32, sequences of 64."""
    shape = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return PretrainConfig(
        name="tiny",
        model={**shape, **dropout, "position_buckets": 32, "max_position_embeddings": 128, "emd_steps": 2},
        masking=Masking("ngram", rate=0.15, max_ngram=3),
        optimizer=Optimizer(lr=3e-3, beta2=0.98, warmup_steps=100),
        data=Data(vocab_size=8192, max_length=64, step_tokens=2048, micro_tokens=2048, validation=0.05),
        steps=1500,
        log_every=50,
        evaluate_every=250,
        evaluate_tokens=1 << 15,
        checkpoint_every=250,
    )


def small() -> PretrainConfig:
    """Trains in an hour or more on two CPU cores: 4 x 256, heads of 32, sequences of 128."""
    base = tiny()
    shape = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 1024}
    return replace(
        base,
        name="small",
        model={**base.model, **shape, "position_buckets": 64, "max_position_embeddings": 256},
        optimizer=replace(base.optimizer, lr=2e-3, warmup_steps=300),
        data=replace(base.data, max_length=128),
        steps=10_000,
        evaluate_every=500,
        evaluate_tokens=1 << 16,
        checkpoint_every=500,
    )


def tiny_no_emd() -> PretrainConfig:
    """tiny without the mask decoder."""
    return _no_emd(tiny())


def small_no_emd() -> PretrainConfig:
    """small without the mask decoder."""
    return _no_emd(small())


def tiny_mt() -> PretrainConfig:
    """tiny trained on MLM and autoregressive LM jointly."""
    slower = tiny_ar_ap().optimizer
    return replace(tiny(), name="tiny-mt", objectives=Objectives(mlm=1.0, arlm=1.0), optimizer=slower)


def tiny_ar() -> PretrainConfig:
    """tiny as a purely autoregressive model, with only relative positions (appendix A.4)."""
    base = _no_emd(tiny())
    return replace(base, name="tiny-ar", objectives=Objectives(mlm=0.0, arlm=1.0))


def tiny_ar_ap() -> PretrainConfig:
    """tiny-ar with absolute positions in the decoding layer."""
    base = tiny_ar()
    slower = replace(base.optimizer, lr=1e-3)  # at tiny's 3e-3 a causal mask decoder learns nothing (docs/log.md)
    decoder = {"emd_steps": 2, "causal_emd": True}
    return replace(base, name="tiny-ar-ap", model={**base.model, **decoder}, optimizer=slower)


def tiny_ar_absolute() -> PretrainConfig:
    """tiny-ar with only absolute positions, in the input."""
    causal = tiny_ar()
    return replace(tiny_absolute(), name="tiny-ar-absolute", objectives=causal.objectives, optimizer=causal.optimizer)


ALL_MASKED = Masking("token", rate=0.15, mask=1.0, random=0.0)


def deberta_v3_base() -> PretrainConfig:
    """DeBERTaV3 base as published: 12 x 768, RTD + GDES, 6-layer generator, 160 GB, 500 k steps of 8,192 x 512."""
    return PretrainConfig(
        name="deberta-v3-base",
        model={**_without_vocabulary("deberta-v3-base"), "emd_steps": 2},
        masking=ALL_MASKED,
        rtd=Rtd(),
        optimizer=Optimizer(lr=6e-4, beta2=0.98, warmup_steps=10_000),
        data=Data(tokenizer="unigram", vocab_size=128_000, max_length=512, step_tokens=8192 * 512),
        steps=500_000,
    )


def deberta_v3_xsmall() -> PretrainConfig:
    """DeBERTaV3 xsmall: 12 x 384, 6-layer generator."""
    return _v3("deberta-v3-xsmall")


def deberta_v3_small() -> PretrainConfig:
    """DeBERTaV3 small: 6 x 768, 3-layer generator."""
    return _v3("deberta-v3-small")


def deberta_v3_large() -> PretrainConfig:
    """DeBERTaV3 large: 24 x 1024, 12-layer generator."""
    base = _v3("deberta-v3-large")
    return replace(base, optimizer=replace(base.optimizer, lr=3e-4), gradient_checkpointing=True)


def rtd() -> PretrainConfig:
    """Continue from a v3 checkpoint (--init): RTD + GDES as in Microsoft's scripts, 100 k steps of 256 x 512."""
    base = deberta_v3_base()
    return replace(
        base,
        name="rtd",
        model={},
        rtd=Rtd(weight=10.0),
        optimizer=replace(base.optimizer, lr=5e-5, beta2=0.999),
        data=replace(base.data, step_tokens=256 * 512),
        steps=100_000,
    )


def v3_tiny() -> PretrainConfig:
    """DeBERTaV3 in minutes on two CPU cores: tiny with RTD + GDES and a 2-layer generator."""
    base = tiny()
    slower = replace(base.optimizer, lr=1e-3)  # at tiny's 3e-3 the discriminator learns nothing (docs/log.md)
    return replace(base, name="v3-tiny", masking=ALL_MASKED, rtd=Rtd(), optimizer=slower)


def electra_small() -> PretrainConfig:
    """ELECTRA small as published: 12 x 256, generator a quarter as wide, shared embeddings, joint steps, 128 tokens."""
    return PretrainConfig(
        name="electra-small",
        family="electra",
        model={"embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4}
        | {"intermediate_size": 1024},
        masking=replace(ALL_MASKED, mask=0.85),
        rtd=Rtd(sharing="es", steps="joint", generator_layers=12, generator_width=0.25),
        optimizer=Optimizer(lr=5e-4, warmup_steps=10_000),
        data=Data(tokenizer="wordpiece", vocab_size=30_522, max_length=128, step_tokens=128 * 128),
        steps=1_000_000,
    )


def electra_tiny() -> PretrainConfig:
    """ELECTRA in minutes on two CPU cores: 4 x 128, 2-layer generator of the same width."""
    base = tiny()
    only_deberta = ("position_buckets", "emd_steps")
    return replace(
        base,
        name="electra-tiny",
        family="electra",
        model={name: value for name, value in base.model.items() if name not in only_deberta},
        masking=replace(ALL_MASKED, mask=0.85),
        rtd=Rtd(sharing="es", steps="joint"),
        optimizer=v3_tiny().optimizer,
    )


def tiny_d() -> PretrainConfig:
    """DeBERTa-D, 4 + 4 x 128, trained by span infilling: 30 % masked, one [MASK] per span."""
    base = tiny()
    return replace(
        base,
        name="tiny-d",
        family="deberta-d",
        model={**base.model, "emd_steps": 0, "decoder_layers": 4},
        objectives=Objectives(mlm=0.0, infilling=1.0),
        masking=Masking("span", rate=0.3, mask=1.0, random=0.0, one_mask_per_span=True),
    )


RECIPES: dict[str, Callable[[], PretrainConfig]] = {
    "deberta-base": deberta_base,
    "deberta-large": deberta_large,
    "deberta-1.5b": deberta_15b,
    "deberta-base-no-emd": deberta_base_no_emd,
    "deberta-mt": deberta_mt,
    "tiny": tiny,
    "tiny-no-emd": tiny_no_emd,
    "tiny-mt": tiny_mt,
    "tiny-ar": tiny_ar,
    "tiny-ar-ap": tiny_ar_ap,
    "tiny-ar-absolute": tiny_ar_absolute,
    "tiny-d": tiny_d,
    "small": small,
    "small-no-emd": small_no_emd,
    **FAMILY,
    "deberta-v3-xsmall": deberta_v3_xsmall,
    "deberta-v3-small": deberta_v3_small,
    "deberta-v3-base": deberta_v3_base,
    "deberta-v3-large": deberta_v3_large,
    "v3-tiny": v3_tiny,
    "rtd": rtd,
    "electra-small": electra_small,
    "electra-tiny": electra_tiny,
}


def recipe(name: str) -> PretrainConfig:
    """Look up a recipe by name, or load the run.json of an earlier run."""
    if name.endswith(".json"):
        if not Path(name).is_file():
            raise ValueError(f"no config of a run at {name}")
        return settings.load(Path(name))
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(RECIPES)}, or give a run.json"
        raise ValueError(f"unknown recipe {name!r}; {hint}")
    return RECIPES[name]()


def _no_emd(config: PretrainConfig) -> PretrainConfig:
    return replace(config, name=f"{config.name}-no-emd", model={**config.model, "emd_steps": 0})


def _v3(name: str) -> PretrainConfig:
    return replace(deberta_v3_base(), name=name, model={**_without_vocabulary(name), "emd_steps": 2})


def _without_vocabulary(preset: str) -> dict:
    """A preset without vocab_size, which comes from the tokenizer."""
    return {key: value for key, value in PRESETS[preset].items() if key != "vocab_size"}
