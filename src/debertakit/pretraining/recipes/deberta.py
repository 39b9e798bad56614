"""DeBERTa as published, and in sizes for a CPU.

``deberta-*`` follow the paper (2006.03654, table 8): batch 2,048 x 512, 1 M steps, warm-up 10 k, Adam (0.9, 0.999),
eps 1e-6, decay 0.01, clip 1, linear, n-grams of up to 3 words. ``tiny`` and ``small`` were sized by measurements on two
CPU cores: within minutes, narrow models beat wide models, because they take more steps. Small models start with token
masks, a constant masking rate of 40 %, and the output bias at the unigram frequencies: with n-gram masks they stay on
the unigram plateau for most of their budget (docs/results/hour.md).
"""

from dataclasses import replace

from debertakit.config import PRESETS
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


def deberta_900m() -> PretrainConfig:
    """DeBERTa 900M (appendix A.6, released as v2-xlarge): 24 x 1536, convolution, vocabulary of 128 k, 78 GB."""
    base = deberta_large()
    return replace(
        base,
        name="deberta-900m",
        model={**without_vocabulary("deberta-v2-xlarge"), "emd_steps": 2},
        data=replace(base.data, tokenizer="unigram", vocab_size=128_000),
    )


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


def tiny() -> PretrainConfig:
    """Trains in minutes on two CPU cores: 4 x 128, heads of 32, sequences of 64."""
    shape = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return PretrainConfig(
        name="tiny",
        model={**shape, **dropout, "position_buckets": 32, "max_position_embeddings": 128, "emd_steps": 2},
        masking=Masking("token", rate=0.4),
        unigram_bias=True,
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


def hour() -> PretrainConfig:
    """The encoder of an hour on two CPU cores with bf16: small, byte BPE, 26 M tokens."""
    base = small()
    return replace(
        base,
        name="hour",
        data=replace(base.data, tokenizer="bpe", validation=500),
        steps=12_500,
        evaluate_every=1000,
        checkpoint_every=1000,
    )


def hour_zh() -> PretrainConfig:
    """hour for Chinese: single characters (WordPiece) and token masks."""
    base = hour()
    return replace(base, name="hour-zh", data=replace(base.data, tokenizer="wordpiece", language="zh"))


DEBERTA_RECIPES = {
    "deberta-base": deberta_base,
    "deberta-large": deberta_large,
    "deberta-900m": deberta_900m,
    "deberta-1.5b": deberta_15b,
    "tiny": tiny,
    "small": small,
    "hour": hour,
    "hour-zh": hour_zh,
}


def with_model(config: PretrainConfig, name: str, **fields: object) -> PretrainConfig:
    """Rename a recipe and replace fields of its model."""
    return replace(config, name=name, model={**config.model, **fields})


def without_vocabulary(preset: str) -> dict[str, object]:
    """A preset without vocab_size, which comes from the tokenizer."""
    return {key: value for key, value in PRESETS[preset].items() if key != "vocab_size"}
