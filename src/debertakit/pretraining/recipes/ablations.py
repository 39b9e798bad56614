"""DeBERTa with one part changed: the ablations of table 4, older layouts, other mask decoders, objectives and masks.

``deberta-base-*`` follow the paper's ablations: base size, batch 256 x 512, learning rate 1e-4, 1 M steps (table 8).
``tiny-*`` have the size, text and budget of ``tiny``.
"""

from dataclasses import replace

from debertakit.objectives import Objectives
from debertakit.pretraining.recipes.deberta import deberta_base, small, tiny, with_model
from debertakit.pretraining.settings import PretrainConfig

NO_C2P: dict[str, object] = {"pos_att_type": ["p2c"]}
NO_P2C: dict[str, object] = {"pos_att_type": ["c2p"]}
NO_EMD: dict[str, object] = {"emd_steps": 0}
INPUT_POSITIONS: dict[str, object] = {**NO_EMD, "position_biased_input": True}
"""Absolute positions in the input instead of the mask decoder, together with relative attention."""
ABSOLUTE: dict[str, object] = {
    **INPUT_POSITIONS,
    "relative_attention": False,
    "pos_att_type": [],
    "norm_rel_ebd": "none",
}
"""Only absolute positions: the paper's RoBERTa-ReImp."""


def deberta_base_ablation() -> PretrainConfig:
    """The full model of the paper's ablations (table 4): base size, 16 GB of text, 1 M steps of 256 x 512 at 1e-4."""
    base = deberta_base()
    return replace(
        base,
        name="deberta-base-ablation",
        optimizer=replace(base.optimizer, lr=1e-4),
        data=replace(base.data, step_tokens=256 * 512),
    )


def deberta_base_no_emd() -> PretrainConfig:
    """deberta-base-ablation without the mask decoder."""
    return with_model(deberta_base_ablation(), "deberta-base-no-emd", **NO_EMD)


def deberta_base_no_c2p() -> PretrainConfig:
    """deberta-base-ablation without content-to-position scores."""
    return with_model(deberta_base_ablation(), "deberta-base-no-c2p", **NO_C2P)


def deberta_base_no_p2c() -> PretrainConfig:
    """deberta-base-ablation without position-to-content scores."""
    return with_model(deberta_base_ablation(), "deberta-base-no-p2c", **NO_P2C)


def deberta_base_no_emd_c2p() -> PretrainConfig:
    """deberta-base-ablation without the mask decoder and without content-to-position scores."""
    return with_model(deberta_base_ablation(), "deberta-base-no-emd-c2p", **NO_EMD, **NO_C2P)


def deberta_base_no_emd_p2c() -> PretrainConfig:
    """deberta-base-ablation without the mask decoder and without position-to-content scores."""
    return with_model(deberta_base_ablation(), "deberta-base-no-emd-p2c", **NO_EMD, **NO_P2C)


def deberta_base_input_positions() -> PretrainConfig:
    """deberta-base-ablation with absolute positions in the input instead of the mask decoder (section 3.2)."""
    return with_model(deberta_base_ablation(), "deberta-base-input-positions", **INPUT_POSITIONS)


def deberta_base_absolute() -> PretrainConfig:
    """deberta-base-ablation with only absolute positions, in the input: the paper's RoBERTa-ReImp."""
    return with_model(deberta_base_ablation(), "deberta-base-absolute", **ABSOLUTE)


def tiny_no_emd() -> PretrainConfig:
    """tiny without the mask decoder."""
    return with_model(tiny(), "tiny-no-emd", **NO_EMD)


def small_no_emd() -> PretrainConfig:
    """small without the mask decoder."""
    return with_model(small(), "small-no-emd", **NO_EMD)


def tiny_no_c2p() -> PretrainConfig:
    """tiny without content-to-position scores."""
    return with_model(tiny(), "tiny-no-c2p", **NO_C2P)


def tiny_no_p2c() -> PretrainConfig:
    """tiny without position-to-content scores."""
    return with_model(tiny(), "tiny-no-p2c", **NO_P2C)


def tiny_no_emd_c2p() -> PretrainConfig:
    """tiny without the mask decoder and without content-to-position scores."""
    return with_model(tiny(), "tiny-no-emd-c2p", **NO_EMD, **NO_C2P)


def tiny_no_emd_p2c() -> PretrainConfig:
    """tiny without the mask decoder and without position-to-content scores."""
    return with_model(tiny(), "tiny-no-emd-p2c", **NO_EMD, **NO_P2C)


def tiny_input_positions() -> PretrainConfig:
    """tiny with absolute positions in the input instead of the mask decoder, together with relative attention."""
    return with_model(tiny(), "tiny-input-positions", **INPUT_POSITIONS)


def tiny_product() -> PretrainConfig:
    """tiny whose attention is content attention times position attention: the scores are c2c + p2p."""
    return with_model(tiny(), "tiny-product", pos_att_type=["p2p"])


def tiny_absolute() -> PretrainConfig:
    """tiny with only absolute positions, in the input, and no mask decoder: the paper's RoBERTa-ReImp."""
    plain = with_model(tiny(), "tiny-absolute", **ABSOLUTE)
    return replace(plain, optimizer=replace(plain.optimizer, lr=1e-3))


def v1_tiny() -> PretrainConfig:
    """tiny in DeBERTa v1's layout: one embedding per distance, separate position projections."""
    v1 = {"model_type": "deberta", "position_buckets": -1, "share_att_key": False, "norm_rel_ebd": "none"}
    return with_model(tiny(), "v1-tiny", **v1)


def v2_tiny() -> PretrainConfig:
    """tiny in DeBERTa v2's layout: with a convolution parallel to the first layer."""
    return with_model(tiny(), "v2-tiny", conv_kernel_size=3, conv_act="gelu")


def tiny_emd_none() -> PretrainConfig:
    """tiny whose mask decoder adds no positions: two passes of the last layer, and nothing else."""
    return with_model(tiny(), "tiny-emd-none", emd_information="none")


def tiny_emd_embeddings() -> PretrainConfig:
    """tiny whose mask decoder adds the embedded input instead of positions."""
    return with_model(tiny(), "tiny-emd-embeddings", emd_information="embeddings")


def tiny_emd_unshared() -> PretrainConfig:
    """tiny whose mask decoder has its own weights in the second pass (appendix A.8)."""
    return with_model(tiny(), "tiny-emd-unshared", share_emd_layers=False)


def tiny_plm() -> PretrainConfig:
    """tiny trained on XLNet's objective: two streams, the tokens that tiny masks are predicted in a random order."""
    return replace(with_model(tiny(), "tiny-plm", **NO_EMD), objectives=Objectives(mlm=0.0, plm=1.0))


def tiny_position() -> PretrainConfig:
    """tiny that also predicts the position of each masked token."""
    return replace(tiny(), name="tiny-position", objectives=Objectives(mlm=1.0, position=1.0))


def tiny_refinement() -> PretrainConfig:
    """tiny that replaces half of its masks by its own predictions and is scored on what it predicts then."""
    refined = Objectives(mlm=0.0, refinement=1.0, refinement_replaced=0.5, refinement_scored="last")
    return replace(tiny(), name="tiny-refinement", objectives=refined)


def tiny_density() -> PretrainConfig:
    """tiny that masks more of a text with rare words, and less of one with frequent words."""
    return replace(tiny(), name="tiny-density", masking=replace(tiny().masking, density=0.5))


def tiny_entities() -> PretrainConfig:
    """tiny that masks single tokens and whole entities (of --tagger or data.entities; in Chinese, jieba's words)."""
    return replace(tiny(), name="tiny-entities", masking=replace(tiny().masking, strategy="entity-or-token"))


ABLATIONS = {
    "deberta-base-ablation": deberta_base_ablation,
    "deberta-base-no-emd": deberta_base_no_emd,
    "deberta-base-no-c2p": deberta_base_no_c2p,
    "deberta-base-no-p2c": deberta_base_no_p2c,
    "deberta-base-no-emd-c2p": deberta_base_no_emd_c2p,
    "deberta-base-no-emd-p2c": deberta_base_no_emd_p2c,
    "deberta-base-input-positions": deberta_base_input_positions,
    "deberta-base-absolute": deberta_base_absolute,
    "tiny-no-emd": tiny_no_emd,
    "small-no-emd": small_no_emd,
    "tiny-no-c2p": tiny_no_c2p,
    "tiny-no-p2c": tiny_no_p2c,
    "tiny-no-emd-c2p": tiny_no_emd_c2p,
    "tiny-no-emd-p2c": tiny_no_emd_p2c,
    "tiny-input-positions": tiny_input_positions,
    "tiny-product": tiny_product,
    "tiny-absolute": tiny_absolute,
    "v1-tiny": v1_tiny,
    "v2-tiny": v2_tiny,
    "tiny-emd-none": tiny_emd_none,
    "tiny-emd-embeddings": tiny_emd_embeddings,
    "tiny-emd-unshared": tiny_emd_unshared,
    "tiny-plm": tiny_plm,
    "tiny-position": tiny_position,
    "tiny-refinement": tiny_refinement,
    "tiny-density": tiny_density,
    "tiny-entities": tiny_entities,
}
