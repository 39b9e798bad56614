"""DeBERTa that generates text: autoregressive (appendix A.4), prefix LM (UniLM), and DeBERTa-D.

``deberta-*`` have base size and the 200 k steps of appendix A.4. For DeBERTa-D nothing was published: its size, masks
and budget are our choice.
"""

from dataclasses import replace

from debertakit.objectives import Objectives
from debertakit.pretraining.recipes.ablations import ABSOLUTE, INPUT_POSITIONS, NO_EMD
from debertakit.pretraining.recipes.deberta import deberta_base, tiny, with_model
from debertakit.pretraining.settings import PretrainConfig
from debertakit.text.masking import Masking

CAUSAL = Objectives(mlm=0.0, arlm=1.0)
INFILLING = Objectives(mlm=0.0, infilling=1.0)
WHOLE_SPANS = Masking("span", rate=0.3, mask=1.0, random=0.0, one_mask_per_span=True)


def deberta_ar() -> PretrainConfig:
    """Autoregressive DeBERTa of base size, with only relative positions (appendix A.4), 200 k steps."""
    return replace(with_model(deberta_base(), "deberta-ar", **NO_EMD), objectives=CAUSAL, steps=200_000)


def deberta_ar_ap() -> PretrainConfig:
    """DeBERTa-AP (appendix A.4): deberta-ar with absolute positions in the input."""
    return with_model(deberta_ar(), "deberta-ar-ap", **INPUT_POSITIONS)


def deberta_ar_absolute() -> PretrainConfig:
    """deberta-ar with only absolute positions, in the input: the RoBERTa of appendix A.4."""
    return with_model(deberta_ar(), "deberta-ar-absolute", **ABSOLUTE)


def deberta_mt() -> PretrainConfig:
    """DeBERTa-MT (appendix A.4): MLM and autoregressive LM jointly, base size, 200 k steps."""
    return replace(deberta_base(), name="deberta-mt", objectives=Objectives(mlm=1.0, arlm=1.0), steps=200_000)


def deberta_d() -> PretrainConfig:
    """DeBERTa-D of base size, 12 + 6 x 768, trained by span infilling: 30 % masked, one [MASK] per span."""
    shaped = with_model(deberta_base(), "deberta-d", **NO_EMD, decoder_layers=6)
    return replace(shaped, family="deberta-d", objectives=INFILLING, masking=WHOLE_SPANS)


def tiny_ar() -> PretrainConfig:
    """tiny as a purely autoregressive model, with only relative positions (appendix A.4)."""
    return replace(with_model(tiny(), "tiny-ar", **NO_EMD), objectives=CAUSAL)


def tiny_ar_ap() -> PretrainConfig:
    """DeBERTa-AP (appendix A.4): tiny-ar with absolute positions in the input."""
    return with_model(tiny_ar(), "tiny-ar-ap", **INPUT_POSITIONS)


def tiny_ar_emd() -> PretrainConfig:
    """tiny-ar with absolute positions in the decoding layer."""
    base = with_model(tiny_ar(), "tiny-ar-emd", emd_steps=2, causal_emd=True)
    return replace(base, optimizer=replace(base.optimizer, lr=1e-3))  # at tiny's 3e-3 it learns nothing (docs/log.md)


def tiny_ar_absolute() -> PretrainConfig:
    """tiny-ar with only absolute positions, in the input."""
    return with_model(tiny_ar(), "tiny-ar-absolute", **ABSOLUTE)


def tiny_mt() -> PretrainConfig:
    """tiny trained on MLM and autoregressive LM jointly."""
    slower = tiny_ar_emd().optimizer
    return replace(tiny(), name="tiny-mt", objectives=Objectives(mlm=1.0, arlm=1.0), optimizer=slower)


def tiny_prefix() -> PretrainConfig:
    """tiny as a prefix LM: a prefix of random length attends in both directions, the rest is generated."""
    return replace(tiny_ar(), name="tiny-prefix", objectives=Objectives(mlm=0.0, prefix=1.0))


def tiny_unilm() -> PretrainConfig:
    """tiny trained as in UniLM, on masked, autoregressive and prefix LM jointly."""
    return replace(tiny_ar(), name="tiny-unilm", objectives=Objectives(mlm=1.0, arlm=1.0, prefix=1.0))


def tiny_d() -> PretrainConfig:
    """DeBERTa-D, 4 + 4 x 128, trained by span infilling: 30 % masked, one [MASK] per span."""
    shaped = with_model(tiny(), "tiny-d", **NO_EMD, decoder_layers=4)
    return replace(shaped, family="deberta-d", objectives=INFILLING, masking=WHOLE_SPANS)


GENERATIVE = {
    "deberta-ar": deberta_ar,
    "deberta-ar-ap": deberta_ar_ap,
    "deberta-ar-absolute": deberta_ar_absolute,
    "deberta-mt": deberta_mt,
    "deberta-d": deberta_d,
    "tiny-ar": tiny_ar,
    "tiny-ar-ap": tiny_ar_ap,
    "tiny-ar-emd": tiny_ar_emd,
    "tiny-ar-absolute": tiny_ar_absolute,
    "tiny-mt": tiny_mt,
    "tiny-prefix": tiny_prefix,
    "tiny-unilm": tiny_unilm,
    "tiny-d": tiny_d,
}
