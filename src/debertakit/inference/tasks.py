"""All predictors. ``load`` chooses one by the model's head.

predict = load("my-model")                       # classify, tag, answer, ..., depending on the head
predict("a text"); predict(["many", "texts"])
load("my-nli-model", "zero-shot", labels=["sport", "politics"])("the match ended in a draw")
"""

import difflib
from pathlib import Path
from typing import Any

import torch

from debertakit.attention.projections import freeze
from debertakit.inference.answer import QuestionAnswerer
from debertakit.inference.backends import fastest, usable_exports
from debertakit.inference.certificates import certified
from debertakit.inference.choose import OptionChooser
from debertakit.inference.classify import PairScorer, TextClassifier, ZeroShotClassifier
from debertakit.inference.embed import Embedder
from debertakit.inference.fill import MaskFiller
from debertakit.inference.options import Backend, LoadOptions
from debertakit.inference.predictor import Network, Predictor, Result
from debertakit.inference.tag import EntityTagger
from debertakit.loading import SavedModel, describe
from debertakit.precision import Resolved, best_device
from debertakit.protocols import Precision

PREDICTORS: dict[str, type[Predictor[Result]]] = {
    predictor.task: predictor
    for predictor in (
        TextClassifier,
        ZeroShotClassifier,
        EntityTagger,
        QuestionAnswerer,
        OptionChooser,
        MaskFiller,
        PairScorer,
        Embedder,
    )
}
"""Predictor of each task. For a head that several predictors use, the first is the default."""


def load(
    model: str | Path,
    task: str | None = None,
    *,
    backend: Backend = LoadOptions.backend,
    precision: Precision = LoadOptions.precision,
    **options: Any,
) -> Predictor[Any]:
    """Load a predictor from a folder or hub name. ``task``: a name in PREDICTORS; default: the task of the head.

    ``backend``: torch, onnx (``model`` is an export), or auto: the fastest of torch and the exports in the folder; the
    predictor's ``backend`` says which (backends.py).
    ``precision``: fp32, bf16, or auto (bf16 if ``deberta certify`` has certified it for this model). The folder's own
    settings (maximum length, no-answer threshold, pooling) apply unless ``options`` change them.
    """
    LoadOptions(backend, precision)  # raises if there is no such backend or precision
    saved = describe(model)
    if task is None:
        cls = next((cls for cls in PREDICTORS.values() if cls.head == saved.head), Embedder)
    elif task in PREDICTORS:
        cls = PREDICTORS[task]
    else:
        close = difflib.get_close_matches(task, PREDICTORS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(PREDICTORS)}"
        raise ValueError(f"unknown task {task!r}; {hint}")
    if cls.head not in ("", saved.head):
        raise ValueError(
            f"{model} has {saved.head_name}, but {cls.task} needs a {cls.head} head (see deberta finetune)"
        )
    given = {name: value for name, value in options.items() if value is not None}
    complete = cls.options_from(saved, given)
    network, chosen = _network(saved, cls.head, backend, certified(saved, precision))
    predictor = cls(network, saved.tokenizer(), **complete)
    predictor.backend = chosen
    return predictor


def _network(saved: SavedModel, head: str, backend: Backend, precision: Resolved) -> tuple[Network, str]:
    """Return the network, and the line about the choice of ``auto``."""
    if backend == "onnx":
        return _onnx(str(saved), head), ""
    network = saved.network(head).to(best_device(), torch.bfloat16 if precision == "bf16" else torch.float32)
    freeze(network)  # nobody else can change this model
    if backend == "torch":
        return network, ""
    networks: dict[str, Network] = {f"torch {precision}": network.eval()}
    if head == saved.head:  # embed reads the encoder of a model with another head
        networks |= {name: _onnx(str(folder), head) for name, folder in usable_exports(saved).items()}
    if len(networks) == 1:
        hint = f"deberta export onnx {saved} --out {saved}/onnx"
        return network, f"torch {precision}: the folder has no export of these weights ({hint})"
    best, line = fastest(networks, choices=2 if head == "MultipleChoice" else 0)
    return networks[best], line


def _onnx(folder: str, head: str) -> Network:
    from debertakit.inference.onnx import OnnxModel

    graph = OnnxModel(folder)
    if not head and "last_hidden_state" not in graph.outputs:
        found = ", ".join(graph.outputs)
        raise ValueError(f"{folder}: embed needs the graph of a bare encoder; this graph outputs {found}")
    return graph
