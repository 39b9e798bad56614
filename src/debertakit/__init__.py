"""debertakit: exact and fast DeBERTa models.

``__all__`` is the public API, described in docs/api.md. Names are imported on first use, so that ``import debertakit``
and ``deberta --help`` stay fast.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "DebertaConfig",
    "DebertaForCausalLM",
    "DebertaForMaskedLM",
    "DebertaForMultipleChoice",
    "DebertaForQuestionAnswering",
    "DebertaForReplacedTokenDetection",
    "DebertaForSeq2SeqLM",
    "DebertaForSequenceClassification",
    "DebertaForTokenClassification",
    "DebertaModel",
    "DebertaSeq2SeqConfig",
    "accelerate",
    "compare_runs",
    "evaluate",
    "export_onnx",
    "fill_mask",
    "finetune",
    "load",
    "load_tokenizer",
    "pretrain",
    "recipes",
    "undo",
]

_HEADS = "MaskedLM MultipleChoice QuestionAnswering ReplacedTokenDetection SequenceClassification TokenClassification"
_HOMES = {
    "DebertaConfig": "debertakit.config",
    "DebertaModel": "debertakit.model",
    **{f"DebertaFor{head}": "debertakit.heads" for head in _HEADS.split()},
    "DebertaForCausalLM": "debertakit.generation.causal",
    "DebertaForSeq2SeqLM": "debertakit.generation.seq2seq",
    "DebertaSeq2SeqConfig": "debertakit.generation.seq2seq",
    "accelerate": "debertakit.acceleration",
    "undo": "debertakit.acceleration",
    "compare_runs": "debertakit.finetuning.evaluation",
    "evaluate": "debertakit.finetuning.evaluation",
    "finetune": "debertakit.finetuning.train",
    "export_onnx": "debertakit.inference.onnx",
    "fill_mask": "debertakit.inference.fill",
    "load": "debertakit.inference.tasks",
    "load_tokenizer": "debertakit.text.tokenizers",
    "pretrain": "debertakit.pretraining.from_text",
    "recipes": "debertakit.pretraining.recipes",
}
_OTHER_NAMES = {"pretrain": "pretrain_from_text"}
"""Public name -> name in its module, where they differ."""

if TYPE_CHECKING:  # what a type checker sees
    from debertakit.acceleration import accelerate, undo
    from debertakit.config import DebertaConfig
    from debertakit.finetuning.evaluation import compare_runs, evaluate
    from debertakit.finetuning.train import finetune
    from debertakit.generation.causal import DebertaForCausalLM
    from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
    from debertakit.heads import (
        DebertaForMaskedLM,
        DebertaForMultipleChoice,
        DebertaForQuestionAnswering,
        DebertaForReplacedTokenDetection,
        DebertaForSequenceClassification,
        DebertaForTokenClassification,
    )
    from debertakit.inference.fill import fill_mask
    from debertakit.inference.onnx import export_onnx
    from debertakit.inference.tasks import load
    from debertakit.model import DebertaModel
    from debertakit.pretraining.from_text import pretrain_from_text as pretrain
    from debertakit.pretraining.recipes import recipes
    from debertakit.text.tokenizers import load_tokenizer
else:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module 'debertakit' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), _OTHER_NAMES.get(name, name))


def __dir__() -> list[str]:
    return ["__version__", *__all__]
