"""DeBERTa as published, in sizes for a CPU, with parts disabled, and as an autoregressive model.

``deberta-*`` follow the paper (2006.03654, table 8): batch 2,048 x 512, 1 M steps, warm-up 10 k, Adam (0.9, 0.999),
eps 1e-6, decay 0.01, clip 1, linear, n-grams of up to 3 words. ``tiny`` and ``small`` were sized by measurements on two
CPU cores: within minutes, narrow models beat wide models, because they take more steps.
"""

from dataclasses import replace

from debertakit.config import PRESETS
from debertakit.objectives import Objectives
from debertakit.pretraining.settings import Data, PretrainConfig
from debertakit.text.masking import Masking
from debertakit.training.optim import Optimizer


def deberta_base() -> PretrainConfig:
    """DeBERTa base as published: 12 x 768, MLM + EMD, 78 GB of text, 10 days on 64 V100s."""
    return PretrainConfig(
        name="deberta-base",
        model={**without_vocabulary("deberta-base"), "emd_steps": 2},
        masking=Masking("ngram", rate=0.15, max_ngram=3),
        optimizer=Optimizer(lr=2e-4, warmup_steps=10_000),
        data=Data(tokenizer="bpe", vocab_size=50265, max_length=512, step_tokens=2048 * 512),
        steps=1_000_000,
    )


def deberta_large() -> PretrainConfig:
    """DeBERTa large as published: 24 x 1024, 20 days on 96 V100s."""
    model = {**without_vocabulary("deberta-large"), "emd_steps": 2}
    return replace(deberta_base(), name="deberta-large", model=model, gradient_checkpointing=True)


def deberta_15b() -> PretrainConfig:
    """DeBERTa 1.5B as published: 48 x 1536, convolution, vocabulary of 128 k, 160 GB, 30 days on 256 V100s."""
    base = deberta_large()
    return replace(
        base,
        name="deberta-1.5b",
        model={**without_vocabulary("deberta-v2-xxlarge"), "emd_steps": 2},
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


def v1_tiny() -> PretrainConfig:
    """tiny in DeBERTa v1's layout: one embedding per distance, separate position projections."""
    v1 = {"model_type": "deberta", "position_buckets": -1, "share_att_key": False, "norm_rel_ebd": "none"}
    return with_model(tiny(), "v1-tiny", **v1)


def v2_tiny() -> PretrainConfig:
    """tiny in DeBERTa v2's layout: with a convolution parallel to the first layer."""
    return with_model(tiny(), "v2-tiny", conv_kernel_size=3, conv_act="gelu")


def tiny_no_c2p() -> PretrainConfig:
    """tiny without content-to-position scores."""
    return with_model(tiny(), "tiny-no-c2p", pos_att_type=["p2c"])


def tiny_no_p2c() -> PretrainConfig:
    """tiny without position-to-content scores."""
    return with_model(tiny(), "tiny-no-p2c", pos_att_type=["c2p"])


def tiny_no_emd_c2p() -> PretrainConfig:
    """tiny without the mask decoder and without content-to-position scores."""
    return with_model(tiny_no_c2p(), "tiny-no-emd-c2p", emd_steps=0)


def tiny_no_emd_p2c() -> PretrainConfig:
    """tiny without the mask decoder and without position-to-content scores."""
    return with_model(tiny_no_p2c(), "tiny-no-emd-p2c", emd_steps=0)


def tiny_absolute() -> PretrainConfig:
    """tiny with only absolute positions, in the input, and no mask decoder: the paper's RoBERTa-ReImp."""
    base = tiny()
    off = {"relative_attention": False, "pos_att_type": [], "norm_rel_ebd": "none", "emd_steps": 0}
    plain = with_model(base, "tiny-absolute", **off, position_biased_input=True)
    return replace(plain, optimizer=replace(base.optimizer, lr=1e-3))


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


DEBERTA_RECIPES = {
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
    "v1-tiny": v1_tiny,
    "v2-tiny": v2_tiny,
    "tiny-no-c2p": tiny_no_c2p,
    "tiny-no-p2c": tiny_no_p2c,
    "tiny-no-emd-c2p": tiny_no_emd_c2p,
    "tiny-no-emd-p2c": tiny_no_emd_p2c,
    "tiny-absolute": tiny_absolute,
}


def _no_emd(config: PretrainConfig) -> PretrainConfig:
    return replace(config, name=f"{config.name}-no-emd", model={**config.model, "emd_steps": 0})


def with_model(config: PretrainConfig, name: str, **fields: object) -> PretrainConfig:
    """Rename a recipe and replace fields of its model."""
    return replace(config, name=name, model={**config.model, **fields})


def without_vocabulary(preset: str) -> dict[str, object]:
    """A preset without vocab_size, which comes from the tokenizer."""
    return {key: value for key, value in PRESETS[preset].items() if key != "vocab_size"}
