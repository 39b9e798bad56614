"""Replaced-token detection: DeBERTaV3 and ELECTRA.

``deberta-v3-*`` follow 2111.09543: batch 8,192 x 512, 500 k steps, Adam (0.9, 0.98); sources disagree on the learning
rate of base and small (6e-4 or 5e-4), and none gives the rate of xsmall.
"""

from dataclasses import replace

from debertakit.objectives import Rtd
from debertakit.pretraining.recipes.deberta import tiny, with_model, without_vocabulary
from debertakit.pretraining.settings import Data, PretrainConfig
from debertakit.text.masking import Masking
from debertakit.training.optim import Optimizer

ALL_MASKED = Masking("token", rate=0.15, mask=1.0, random=0.0)


def deberta_v3_base() -> PretrainConfig:
    """DeBERTaV3 base as published: 12 x 768, RTD + GDES, 6-layer generator, 160 GB, 500 k steps of 8,192 x 512."""
    return PretrainConfig(
        name="deberta-v3-base",
        model={**without_vocabulary("deberta-v3-base"), "emd_steps": 2},
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
    # not tiny's rate of 40 %: the rate is also the share of tokens that the discriminator sees replaced (not measured)
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


def electra_base() -> PretrainConfig:
    """ELECTRA base as published: 12 x 768, generator a third as wide, 766 k steps of 256 x 512."""
    base = electra_small()
    shape = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    return replace(
        with_model(base, "electra-base", **shape),
        rtd=Rtd(sharing="es", steps="joint", generator_layers=12, generator_width=1 / 3),
        optimizer=replace(base.optimizer, lr=2e-4),
        data=replace(base.data, max_length=512, step_tokens=256 * 512),
        steps=766_000,
    )


def electra_large() -> PretrainConfig:
    """ELECTRA large as published: 24 x 1024, generator a quarter as wide, 25 % masks, 1.75 M steps of 2,048 x 512."""
    base = electra_base()
    shape = {"embedding_size": 1024, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    return replace(
        with_model(base, "electra-large", **shape, num_hidden_layers=24),
        masking=replace(base.masking, rate=0.25),
        rtd=Rtd(sharing="es", steps="joint", generator_layers=24, generator_width=0.25),
        data=replace(base.data, step_tokens=2048 * 512),
        steps=1_750_000,
        gradient_checkpointing=True,
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


REPLACED_TOKEN_DETECTION = {
    "deberta-v3-xsmall": deberta_v3_xsmall,
    "deberta-v3-small": deberta_v3_small,
    "deberta-v3-base": deberta_v3_base,
    "deberta-v3-large": deberta_v3_large,
    "v3-tiny": v3_tiny,
    "rtd": rtd,
    "electra-small": electra_small,
    "electra-base": electra_base,
    "electra-large": electra_large,
    "electra-tiny": electra_tiny,
}


def _v3(name: str) -> PretrainConfig:
    return replace(deberta_v3_base(), name=name, model={**without_vocabulary(name), "emd_steps": 2})
