"""Pretraining objectives, one file each. ``Objectives`` lists their weights.

joint = Objectives(mlm=1.0, arlm=1.0)     # DeBERTa-MT
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from debertakit.objectives.base import Backbone, Objective
    from debertakit.objectives.teacher import Teacher

__all__ = ["DISTILLATION", "Objectives", "Rtd", "build", "classes"]

DISTILLATION = ("relations", "hidden", "vectors")
"""Objectives that need a teacher."""
ScoredRounds = Literal["all", "last"]
Sharing = Literal["gdes", "es", "nes"]
Steps = Literal["decoupled", "joint"]


@dataclass(frozen=True)
class Objectives:
    """Weight of each objective; 0 disables it."""

    mlm: float = 1.0
    """Masked language modelling, with the Enhanced Mask Decoder if model.emd_steps > 0."""
    arlm: float = 0.0
    """Autoregressive language modelling with a triangular mask; together with mlm: DeBERTa-MT."""
    prefix: float = 0.0
    """Prefix language modelling: a bidirectional prefix, then autoregressive; with mlm and arlm: UniLM."""
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
    refinement_replaced: float = 1.0
    """Share of the masked tokens that each round replaces by its predictions, the most certain ones."""
    refinement_scored: ScoredRounds = "all"
    """Rounds whose loss is used: all or last."""
    relations: float = 0.0
    """Distillation: query, key and value relations of a teacher with the same vocabulary (MiniLMv2)."""
    hidden: float = 0.0
    """Distillation: hidden states of a teacher with the same vocabulary."""
    vectors: float = 0.0
    """Distillation: sentence vectors of a teacher with any tokenizer."""

    def __post_init__(self) -> None:
        weights = self.weights
        if not weights or min(weights.values()) < 0:
            raise ValueError(f"objective weights must be >= 0, and at least one must be > 0; got {self}")
        if self.refinement > 0 and self.mlm > 0:
            raise ValueError("the first round of refinement is mlm: set objectives.mlm=0 or objectives.refinement=0")
        if self.nsp > 0 and self.sop > 0:
            raise ValueError("a pair has one label: set objectives.nsp=0 or objectives.sop=0")
        if self.refinement_rounds < 1:
            raise ValueError(f"objectives.refinement_rounds={self.refinement_rounds}: must be >= 1")
        if not 0 < self.refinement_replaced <= 1:
            raise ValueError(f"objectives.refinement_replaced={self.refinement_replaced}: must be > 0 and <= 1")
        if self.refinement_scored not in get_args(ScoredRounds):
            raise ValueError(f"objectives.refinement_scored={self.refinement_scored!r}: choose all or last")

    @property
    def weights(self) -> dict[str, float]:
        names = [field.name for field in fields(self) if not field.name.startswith("refinement_")]
        return {name: getattr(self, name) for name in names if getattr(self, name) != 0}


@dataclass(frozen=True)
class Rtd:
    """Replaced-token detection (objectives/rtd.py): a generator trained with MLM, and the model as discriminator."""

    weight: float = 50.0
    """Weight of the discriminator's loss: 50 in the paper, 10 in Microsoft's scripts."""
    temperature: float = 1.0
    sharing: Sharing = "gdes"
    """Embedding tables: gradient-disentangled (gdes), one shared table (es), or separate tables (nes)."""
    steps: Steps = "decoupled"
    """decoupled: update the generator, then the discriminator; joint: one update with the sum of both losses."""
    generator_layers: int = 0
    """0: half of the discriminator's layers."""
    generator_width: float = 1.0
    """Hidden size, heads and feed-forward size relative to the discriminator. ELECTRA uses a quarter to a third."""
    warmup_steps: int | None = None
    """Steps that train only the generator, with shared tables frozen, when a run starts from a checkpoint. None: a
    tenth of the run if the checkpoint has no generator, otherwise 0."""

    def __post_init__(self) -> None:
        if self.weight <= 0 or self.temperature <= 0:
            raise ValueError(f"rtd.weight={self.weight}, rtd.temperature={self.temperature}: both must be > 0")
        if not 0 < self.generator_width <= 1:
            raise ValueError(f"rtd.generator_width={self.generator_width}: must be > 0 and <= 1")
        if self.generator_layers < 0 or (self.warmup_steps or 0) < 0:
            raise ValueError("rtd.generator_layers and rtd.warmup_steps must be >= 0")
        for name, value, choices in (("sharing", self.sharing, Sharing), ("steps", self.steps, Steps)):
            if value not in get_args(choices):
                raise ValueError(f"rtd.{name}={value!r}: choose from {', '.join(get_args(choices))}")


def classes() -> "dict[str, type[Objective]]":
    """The class of each weight in ``Objectives``. Imported on call: recipes need the weights only."""
    from debertakit.objectives.arlm import AutoregressiveLanguageModelling
    from debertakit.objectives.distillation import HiddenDistillation, RelationDistillation, VectorDistillation
    from debertakit.objectives.infilling import Infilling
    from debertakit.objectives.mlm import MaskedLanguageModelling
    from debertakit.objectives.nsp import NextSentencePrediction
    from debertakit.objectives.plm import PermutationLanguageModelling
    from debertakit.objectives.position import PositionPrediction
    from debertakit.objectives.prefix import PrefixLanguageModelling
    from debertakit.objectives.refinement import MaskRefinement
    from debertakit.objectives.sbo import SpanBoundary
    from debertakit.objectives.sop import SentenceOrderPrediction

    return {
        "mlm": MaskedLanguageModelling,
        "arlm": AutoregressiveLanguageModelling,
        "prefix": PrefixLanguageModelling,
        "nsp": NextSentencePrediction,
        "sop": SentenceOrderPrediction,
        "sbo": SpanBoundary,
        "plm": PermutationLanguageModelling,
        "infilling": Infilling,
        "position": PositionPrediction,
        "refinement": MaskRefinement,
        "relations": RelationDistillation,
        "hidden": HiddenDistillation,
        "vectors": VectorDistillation,
    }


def build(objectives: Objectives, backbone: "Backbone", teacher: "Teacher | None" = None) -> "dict[str, Objective]":
    """Create the objectives with non-zero weight."""
    refinement = {"rounds": objectives.refinement_rounds, "replaced": objectives.refinement_replaced}
    options: dict[str, dict[str, object]] = {"refinement": {**refinement, "scored": objectives.refinement_scored}}
    options |= {name: {"teacher": teacher} for name in DISTILLATION}
    available = classes()
    return {name: available[name](backbone, **options.get(name, {})) for name in objectives.weights}
