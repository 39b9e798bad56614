"""debertakit: exact and fast DeBERTa models.

Public names are imported on first use, so that ``import debertakit`` and ``deberta --help`` stay fast.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "debertakit.config": ("DebertaConfig", "preset"),
    "debertakit.model": ("DebertaModel",),
    "debertakit.heads": (
        "DebertaForMaskedLM",
        "DebertaForMultipleChoice",
        "DebertaForQuestionAnswering",
        "DebertaForReplacedTokenDetection",
        "DebertaForSequenceClassification",
        "DebertaForTokenClassification",
    ),
    "debertakit.generation.causal": ("DebertaForCausalLM",),
    "debertakit.generation.perplexity": ("perplexity",),
    "debertakit.generation.seq2seq": ("DebertaForSeq2SeqLM", "DebertaSeq2SeqConfig"),
    "debertakit.finetuning.train": ("finetune",),
    "debertakit.finetuning.evaluation": ("compare_runs", "evaluate"),
    "debertakit.acceleration": ("accelerate", "undo"),
    "debertakit.attention": ("Layout", "use_backend"),
    "debertakit.inference.fill": ("fill_mask",),
    "debertakit.inference.onnx": ("export_onnx",),
    "debertakit.inference.tasks": ("load",),
    "debertakit.text.tokenizers": ("load_tokenizer",),
    "debertakit.text.tokenizer_training": ("train_tokenizer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'debertakit' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
