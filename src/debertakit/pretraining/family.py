"""The model families that a recipe can name, and the fields of their configs."""

from typing import Any, Literal

from debertakit.config import DebertaConfig

Sharing = Literal["all", "attention", "ffn", "none"]


def model_fields(family: str) -> dict[str, Any]:
    """Map each field allowed in ``PretrainConfig.model`` to its type."""
    if family == "deberta":
        return DebertaConfig.__annotations__  # without the fields inherited from transformers
    if family == "deberta-d":
        return {**DebertaConfig.__annotations__, "decoder_layers": int}
    from transformers.models.auto import CONFIG_MAPPING

    fields = dict(CONFIG_MAPPING[family].__annotations__)
    if family == "albert":
        fields = {**fields, "share": Sharing}
        del fields["num_hidden_groups"], fields["inner_group_num"]  # derived from share
    return fields
