"""Export to ONNX, in fp32 or int8: a folder that stock ONNX Runtime runs without this package.

    model.onnx        inputs: input_ids, attention_mask (and token_type_ids if the model has segments), int64
                      [batch, length] with dynamic axes; multiple choice: [batch, choices, length]. Outputs have
                      transformers' names: logits, or start_logits and end_logits, or last_hidden_state
    config.json, tokenizer files

int8 is ONNX Runtime's dynamic quantisation of the linear layers: weights per output channel, activations at run time.
Word embeddings are stored in 8 bits with a scale per row, and the position tables Kr and Qr in fp16. CPUs without VNNI
add pairs of products in 16 bits, which 8-bit weights can overflow, so weights are always quantised to 7 bits
(reduce_range).
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from debertakit import heads
from debertakit.decoding import encoder_depth
from debertakit.files import replacing
from debertakit.inference.backends import record_export
from debertakit.inference.onnx_graph import FLOAT, EncoderGraph, Graph
from debertakit.inference.options import OLDEST_OPSET, ExportOptions
from debertakit.installation import install
from debertakit.loading import SavedModel, copy_settings, describe
from debertakit.model import DebertaModel, DebertaPreTrainedModel
from debertakit.protocols import Tokenizer

if TYPE_CHECKING:
    import onnx

IR_VERSION = 10
INT64 = 7  # ONNX element type
LINEAR = ("query", "key", "value", "attention_output", "intermediate", "output")
"""Linear layers of each encoder layer."""
ONE_FILE = 2**31 - 2**20  # bytes: the limit of one protobuf message, with a margin

logger = logging.getLogger(__name__)
GraphOutputs = dict[str, tuple[str, list[str | int]]]  # name -> value, shape


def _hidden(encoder: EncoderGraph, segments: str | None) -> str:
    """Return [batch, length, hidden] with zeros at padding, as the torch models do."""
    return encoder.without_padding(encoder.rectangle(encoder.encode(segments)))


def _bare(model: DebertaModel, encoder: EncoderGraph, segments: str | None) -> GraphOutputs:
    return {"last_hidden_state": (_hidden(encoder, segments), ["batch", "length", model.config.hidden_size])}


def _masked_lm(model: heads.DebertaForMaskedLM, encoder: EncoderGraph, segments: str | None) -> GraphOutputs:
    graph, config, head = encoder.graph, model.config, model.lm_predictions.lm_head
    hidden = encoder.encode(segments, depth=encoder_depth(config))
    if config.emd_steps > 0:
        hidden = encoder.decode(hidden, segments)
    hidden = graph.activation(graph.dense(hidden, "head.dense", head.dense), config.hidden_act)
    hidden = graph.norm(hidden, "head.norm", head.LayerNorm)
    words = graph.constant("embeddings.words", model.deberta.embeddings.word_embeddings.weight)
    logits = graph.op("Gemm", hidden, words, graph.constant("head.bias", head.bias), transB=1)
    logits = encoder.without_padding(encoder.rectangle(logits))
    return {"logits": (logits, ["batch", "length", config.vocab_size])}


def _replaced_tokens(
    model: heads.DebertaForReplacedTokenDetection, encoder: EncoderGraph, segments: str | None
) -> GraphOutputs:
    graph, head = encoder.graph, model.mask_predictions
    hidden = encoder.rectangle(encoder.encode(segments))
    first = graph.op("Gather", hidden, graph.integers(0), axis=1)  # [batch, 1, hidden]
    x = graph.norm(graph.op("Add", hidden, first), "head.norm", head.LayerNorm)
    x = graph.activation(graph.dense(encoder.rows_of(x), "head.dense", head.dense), model.config.hidden_act)
    logits = encoder.without_padding(encoder.rectangle(graph.dense(x, "head.classifier", head.classifier)))
    return {"logits": (graph.op("Squeeze", logits, graph.integers(2)), ["batch", "length"])}


def _pooled(
    model: heads.DebertaForSequenceClassification | heads.DebertaForMultipleChoice,
    encoder: EncoderGraph,
    segments: str | None,
) -> str:
    """Classify the pooled first token: [sequences, classes]. The last layer computes only that row."""
    graph = encoder.graph
    first = encoder.encode(segments, first_token=True)
    pooled = graph.activation(graph.dense(first, "pooler", model.pooler.dense), model.config.pooler_hidden_act)
    return graph.dense(pooled, "classifier", model.classifier)


def _sequence(
    model: heads.DebertaForSequenceClassification, encoder: EncoderGraph, segments: str | None
) -> GraphOutputs:
    return {"logits": (_pooled(model, encoder, segments), ["batch", model.num_labels])}


def _multiple_choice(
    model: heads.DebertaForMultipleChoice, encoder: EncoderGraph, segments: str | None
) -> GraphOutputs:
    shape = encoder.graph.op("Shape", "input_ids", start=0, end=2)
    logits = encoder.graph.op("Reshape", _pooled(model, encoder, segments), shape)
    return {"logits": (logits, ["batch", "choices"])}


def _per_token(encoder: EncoderGraph, segments: str | None, name: str, classifier: nn.Linear) -> str:
    rows = encoder.rows_of(_hidden(encoder, segments))
    return encoder.rectangle(encoder.graph.dense(rows, name, classifier))


def _tokens(model: heads.DebertaForTokenClassification, encoder: EncoderGraph, segments: str | None) -> GraphOutputs:
    logits = _per_token(encoder, segments, "classifier", model.classifier)
    return {"logits": (logits, ["batch", "length", model.num_labels])}


def _answers(model: heads.DebertaForQuestionAnswering, encoder: EncoderGraph, segments: str | None) -> GraphOutputs:
    logits = _per_token(encoder, segments, "qa_outputs", model.qa_outputs)
    start, end = (encoder.graph.op("Gather", logits, encoder.graph.number(i), axis=2) for i in (0, 1))
    return {"start_logits": (start, ["batch", "length"]), "end_logits": (end, ["batch", "length"])}


HEAD_GRAPHS: dict[type[DebertaPreTrainedModel], Callable[..., GraphOutputs]] = {
    DebertaModel: _bare,
    heads.DebertaForMaskedLM: _masked_lm,
    heads.DebertaForReplacedTokenDetection: _replaced_tokens,
    heads.DebertaForSequenceClassification: _sequence,
    heads.DebertaForTokenClassification: _tokens,
    heads.DebertaForQuestionAnswering: _answers,
    heads.DebertaForMultipleChoice: _multiple_choice,
}


@torch.no_grad()
def onnx_model(
    model: DebertaPreTrainedModel, opset: int = ExportOptions.opset, compact: bool = False
) -> onnx.ModelProto:
    """Build the ONNX graph of a model, with fp32 linear layers. ``compact``: smaller tables (``Graph``)."""
    from onnx import helper

    if type(model) not in HEAD_GRAPHS:
        known = ", ".join(cls.__name__ for cls in HEAD_GRAPHS)
        raise ValueError(f"{type(model).__name__} cannot be exported to ONNX; choose from {known}")
    if model.dtype != torch.float32:
        raise ValueError(f"export needs fp32 weights, and these are {model.dtype}; convert them with model.float()")
    model.eval()
    graph, backbone = Graph(compact), model.base_model
    many = isinstance(model, heads.DebertaForMultipleChoice)
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (backbone.config.type_vocab_size > 0)
    values = names
    if many:
        length = graph.op("Shape", "input_ids", start=2, end=3)
        shape = graph.op("Concat", graph.integers(-1), length, axis=0)
        values = [graph.op("Reshape", name, shape) for name in names]
    encoder = EncoderGraph(graph, backbone, *values[:2])
    outputs = HEAD_GRAPHS[type(model)](model, encoder, values[2] if len(values) > 2 else None)
    for name, (value, _) in outputs.items():
        graph.nodes.append(helper.make_node("Identity", [value], [name]))
    axes = ["batch", "choices", "length"] if many else ["batch", "length"]
    return helper.make_model(
        helper.make_graph(
            graph.nodes,
            type(model).__name__,
            [helper.make_tensor_value_info(name, INT64, axes) for name in names],
            [helper.make_tensor_value_info(name, FLOAT, shape) for name, (_, shape) in outputs.items()],
            list(graph.constants.values()),
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=IR_VERSION,
        producer_name="debertakit",
    )


def export_onnx(
    model: DebertaPreTrainedModel | str | Path,
    out: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    int8: bool = ExportOptions.int8,
    opset: int = ExportOptions.opset,
    keep: Collection[str] = (),
) -> Path:
    """Export a model, a checkpoint folder or a hub name to the folder ``out``. Returns the path of model.onnx.

    ``keep``: names in LINEAR that stay in fp32 in an int8 export (``int8_within_tolerance`` chooses them). The default
    tokenizer is the checkpoint's. Its task settings and pooling are copied.
    """
    _require()
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise ValueError(
            f"opset {opset} is not supported; choose {OLDEST_OPSET} to {newest} (the newest of onnx {onnx.__version__})"
        )
    if isinstance(model, DebertaPreTrainedModel):
        saved, network = None, model
    else:
        saved = describe(model)
        if not saved.ours:
            raise ValueError(f"{saved} is a {saved.config.model_type} model; only DeBERTa models can be exported")
        tokenizer = tokenizer or _tokenizer_of(saved)
        network = saved.network()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:  # a failed export leaves no partial files in out
        written, full = Path(folder) / "out", Path(folder) / "full"
        written.mkdir()
        full.mkdir()
        target = (full if int8 else written) / "model.onnx"
        proto = onnx_model(network, opset, compact=int8)
        big = sum(len(constant.raw_data) for constant in proto.graph.initializer) > ONE_FILE
        onnx.save(proto, target, save_as_external_data=big, location="model.onnx.data")
        del proto
        if int8:
            quantise(target, written / "model.onnx", big, keep)
        config = type(network.config)(**{**network.config.to_dict(), "architectures": [type(network).__name__]})
        config.save_pretrained(written)
        if tokenizer is not None:
            tokenizer.save_pretrained(written)
        for file in written.iterdir():
            with replacing(out / file.name) as temporary:
                shutil.move(file, temporary)
    if saved is not None:
        copy_settings(saved, out)
        if Path(str(saved)).is_dir():
            record_export(Path(str(saved)), out, "int8" if int8 else "fp32")
    return out / "model.onnx"


class OnnxModel:
    """Run an exported folder in ONNX Runtime, with the call signature of the torch model: tensors in, tensors out."""

    device = torch.device("cpu")

    def __init__(self, folder: str | Path):
        _require()
        import onnxruntime

        file = Path(folder) / "model.onnx"
        if not file.is_file():
            raise ValueError(f"no model.onnx in {folder}; create it with deberta export onnx MODEL --out {folder}")
        self.config = describe(folder).config
        self.files = sorted(Path(folder).glob("model.onnx*"))  # with weights above 2 GB in model.onnx.data
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._inputs = [given.name for given in self.session.get_inputs()]
        self.outputs = [output.name for output in self.session.get_outputs()]

    def eval(self) -> OnnxModel:
        return self

    def __call__(self, **inputs: Tensor) -> ModelOutput:
        inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        for name in self._inputs:
            inputs.setdefault(name, torch.zeros_like(inputs["input_ids"]))  # segments
        outputs = self.session.run(self.outputs, {name: inputs[name].numpy() for name in self._inputs})
        return ModelOutput(zip(self.outputs, map(torch.from_numpy, outputs), strict=True))


def quantise(source: Path, target: Path, big: bool = False, keep: Collection[str] = ()) -> None:
    """Quantise the encoder's linear layers, except ``keep``, and the MLM output matrix. Small heads stay in fp32."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    nodes = onnx.load(source, load_external_data=False).graph.node
    # onnxruntime first replaces each Gemm by an Add and a MatMul with this name, and then matches names.
    large = ("layer.", "decoder.", "embeddings.words")
    kept = tuple(f".{name}.weight" for name in keep)
    linear = [
        f"{node.name}_MatMul"
        for node in nodes
        if node.op_type == "Gemm" and node.input[1].startswith(large) and not node.input[1].endswith(kept)
    ]
    if not linear:  # to quantize_dynamic, an empty list means all nodes
        onnx.save(onnx.load(source), target, save_as_external_data=big, location="model.onnx.data")
        return
    logging.disable(logging.WARNING)  # silences the advice to run shape inference, which this graph does not need
    try:
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_quantize=linear,
            per_channel=True,
            reduce_range=True,
            use_external_data_format=big,
        )
    finally:
        logging.disable(logging.NOTSET)


def _require() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ImportError(f"export to ONNX needs {error.name}: {install('onnx')}") from None


def _tokenizer_of(saved: SavedModel) -> Tokenizer | None:
    try:
        return saved.tokenizer()
    except ValueError as error:
        logger.warning("exporting without a tokenizer: %s", error)
        return None
