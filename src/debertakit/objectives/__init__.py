"""Pretraining objectives, one file each. ``Objectives`` holds their weights.

joint = Objectives(mlm=1.0, arlm=1.0)     # DeBERTa-MT
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from debertakit.objectives.base import Backbone, Objective

__all__ = ["Objectives", "build"]


@dataclass(frozen=True)
class Objectives:
    """Weight of each objective; 0 disables it."""

    mlm: float = 1.0
    """Masked language modelling, with the Enhanced Mask Decoder if model.emd_steps > 0."""
    arlm: float = 0.0
    """Autoregressive language modelling with a triangular mask; together with mlm: DeBERTa-MT."""
    nsp: float = 0.0
    """Next-sentence prediction on pairs (BERT)."""
    sop: float = 0.0
    """Sentence-order prediction on pairs (ALBERT)."""
    sbo: float = 0.0
    """Span-boundary objective: predict a masked span from the tokens around it (SpanBERT)."""
    plm: float = 0.0
    """Permutation language modelling (XLNet); masking.rate is the share of predicted tokens."""
    infilling: float = 0.0
    """Span infilling: a decoder restores the corrupted text (family deberta-d)."""
    position: float = 0.0
    """Predict the position of each masked token, with a separate head."""
    refinement: float = 0.0
    """Masked language modelling in several rounds; replaces mlm."""
    refinement_rounds: int = 2

    def __post_init__(self) -> None:
        weights = self.weights
        if not weights or min(weights.values()) < 0:
            raise ValueError(f"objectives need weights of 0 or more, one of them above 0; got {self}")
        if self.refinement > 0 and self.mlm > 0:
            raise ValueError("the first round of refinement is mlm: set objectives.mlm=0 or objectives.refinement=0")
        if self.nsp > 0 and self.sop > 0:
            raise ValueError("a pair has one label: set objectives.nsp=0 or objectives.sop=0")

    @property
    def weights(self) -> dict[str, float]:
        names = [field.name for field in fields(self) if field.name != "refinement_rounds"]
        return {name: getattr(self, name) for name in names if getattr(self, name) != 0}


def build(objectives: Objectives, backbone: "Backbone") -> "dict[str, Objective]":
    """Create the objectives with non-zero weight."""
    from debertakit.config import DebertaConfig
    from debertakit.objectives.arlm import AutoregressiveLanguageModelling
    from debertakit.objectives.infilling import Infilling
    from debertakit.objectives.mlm import MaskedLanguageModelling
    from debertakit.objectives.nsp import NextSentencePrediction
    from debertakit.objectives.plm import PermutationLanguageModelling
    from debertakit.objectives.position import PositionPrediction
    from debertakit.objectives.refinement import MaskRefinement
    from debertakit.objectives.sbo import SpanBoundary
    from debertakit.objectives.sop import SentenceOrderPrediction

    config = backbone.config
    makers: dict[str, Callable[[], Objective]] = {
        "mlm": MaskedLanguageModelling,
        "arlm": lambda: AutoregressiveLanguageModelling(isinstance(config, DebertaConfig) and config.causal_emd),
        "nsp": lambda: NextSentencePrediction(backbone),
        "sop": lambda: SentenceOrderPrediction(backbone),
        "sbo": lambda: SpanBoundary(backbone),
        "plm": PermutationLanguageModelling,
        "infilling": Infilling,
        "position": lambda: PositionPrediction(backbone),
        "refinement": lambda: MaskRefinement(objectives.refinement_rounds),
    }
    return {name: makers[name]() for name in objectives.weights}
