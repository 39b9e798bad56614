"""What a model is trained on: one file an objective, weighed against one another by ``Objectives``.

joint = Objectives(mlm=1.0, arlm=1.0)     # DeBERTa-MT
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from debertakit.config import DebertaConfig
    from debertakit.objectives.base import Objective

__all__ = ["Objectives", "build"]


@dataclass(frozen=True)
class Objectives:
    """The weight of each objective; 0: not trained."""

    mlm: float = 1.0
    """Masked language modelling, with the Enhanced Mask Decoder where model.emd_steps > 0."""
    arlm: float = 0.0
    """Autoregressive, triangular mask; with mlm: DeBERTa-MT."""
    nsp: float = 0.0
    """Next-sentence prediction over pairs."""
    position: float = 0.0
    """The position of each masked token, by a head of its own."""
    refinement: float = 0.0
    """Masked language modelling in rounds; in place of mlm."""
    refinement_rounds: int = 2

    def __post_init__(self) -> None:
        weights = self.weights
        if not weights or min(weights.values()) < 0:
            raise ValueError(f"objectives need weights of 0 or more, one of them above 0; got {self}")
        if self.refinement > 0 and self.mlm > 0:
            raise ValueError("the first round of refinement is mlm: set objectives.mlm=0 or objectives.refinement=0")

    @property
    def weights(self) -> dict[str, float]:
        names = [field.name for field in fields(self) if field.name != "refinement_rounds"]
        return {name: getattr(self, name) for name in names if getattr(self, name) != 0}


def build(objectives: Objectives, config: "DebertaConfig") -> "dict[str, Objective]":
    """The objectives that carry weight."""
    from debertakit.objectives.arlm import AutoregressiveLanguageModelling
    from debertakit.objectives.mlm import MaskedLanguageModelling
    from debertakit.objectives.nsp import NextSentencePrediction
    from debertakit.objectives.position import PositionPrediction
    from debertakit.objectives.refinement import MaskRefinement

    makers: dict[str, Callable[[], Objective]] = {
        "mlm": MaskedLanguageModelling,
        "arlm": AutoregressiveLanguageModelling,
        "nsp": lambda: NextSentencePrediction(config),
        "position": lambda: PositionPrediction(config),
        "refinement": lambda: MaskRefinement(objectives.refinement_rounds),
    }
    return {name: makers[name]() for name in objectives.weights}
