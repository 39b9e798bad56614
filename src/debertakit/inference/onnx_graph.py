"""Build the encoder as an ONNX graph, operator by operator.

Tracing would keep torch's sequence of operators. This graph uses standard operators only, chosen for speed in ONNX
Runtime on a CPU. Rows are [batch * length, hidden]: every linear layer is one Gemm with its bias, and ONNX Runtime
does not fuse residual and LayerNormalization into SkipLayerNormalization, which is slower on a CPU. A layer computes

    c2p = Qc Kr^T                                        [length, rows]
    p2c = Qr Kc^T                                        [rows, length]: gathered as it is, never transposed
    score(i, j) = Qc_i . Kc_j + c2p[i, row(i - j)] + p2c[row(i - j), j] + padding(j)

Kr and Qr, the projections of the relative table, are constants, sliced to the rows that the input length can reach.
The index row(i - j) is shared by all layers. Scales are folded into the weights. Padding rows are computed like other
rows, but no query attends to them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from debertakit.attention.layout import Layout
from debertakit.attention.positions import FUSED_TERMS
from debertakit.attention.projections import project
from debertakit.decoding import decoder_passes
from debertakit.model import DebertaConv, DebertaLayer, DebertaModel, DisentangledSelfAttention, relative_table

if TYPE_CHECKING:
    import onnx

MASKED_SCORE = -1e9  # finite, so that a sequence with only padding gives no NaN
FLOAT, INT32 = 1, 6  # ONNX element types

ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "gelu": ("Gelu", {}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
    "linear": ("Identity", {}),
}


class Graph:
    """Operators and constants, in the order they were added. A value is identified by its name.

    ``compact``: word embeddings are stored in 8 bits with a scale per row, position tables in fp16.
    """

    def __init__(self, compact: bool = False) -> None:
        self.compact = compact
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        output = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: Tensor | np.ndarray) -> str:
        from onnx import numpy_helper

        if name not in self.constants:
            array = value.detach().float().cpu().numpy() if isinstance(value, Tensor) else value
            self.constants[name] = numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def rows_of_table(self, name: str, table: Tensor, index: str) -> str:
        """Look up rows, [index, width]."""
        if not self.compact:
            return self.op("Gather", self.constant(name, table), index)
        scale = table.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        rows = self.constant(f"{name}_int8", (table / scale).round().to(torch.int8).cpu().numpy())
        found = self.op("Cast", self.op("Gather", rows, index), to=FLOAT)
        return self.op("Mul", found, self.op("Gather", self.constant(f"{name}_scale", scale), index))

    def position_table(self, name: str, table: Tensor) -> str:
        if not self.compact:
            return self.constant(name, table)
        return self.op("Cast", self.constant(f"{name}_fp16", table.half().cpu().numpy()), to=FLOAT)

    def integers(self, *values: int) -> str:
        """An int64 vector: a shape, an axis, a bound."""
        return self.constant(f"integers{list(values)}", np.array(values, dtype=np.int64))

    def number(self, value: int | float) -> str:
        """A scalar, int64 or fp32."""
        return self.constant(f"number {value}", np.array(value, np.int64 if isinstance(value, int) else np.float32))

    def linear(self, x: str, name: str, weight: Tensor, bias: Tensor | None = None) -> str:
        """x W + b, with W [in, out]."""
        inputs = [x, self.constant(f"{name}.weight", weight)]
        return (
            self.op("MatMul", *inputs)
            if bias is None
            else self.op("Gemm", *inputs, self.constant(f"{name}.bias", bias))
        )

    def dense(self, x: str, name: str, module: nn.Linear) -> str:
        return self.linear(x, name, module.weight.T, module.bias)

    def norm(self, x: str, name: str, module: nn.LayerNorm) -> str:
        weights = (self.constant(f"{name}.{key}", value) for key, value in module.named_parameters())
        return self.op("LayerNormalization", x, *weights, axis=-1, epsilon=module.eps)

    def activation(self, x: str, name: str) -> str:
        if name not in ACTIVATIONS:
            raise ValueError(
                f"the activation {name!r} cannot be exported to ONNX; choose from {', '.join(ACTIVATIONS)}"
            )
        kind, attributes = ACTIVATIONS[name]
        return self.op(kind, x, **attributes)


@dataclass(frozen=True)
class Memory:
    """Keys, values and p2c scores that the queries of one layer attend to."""

    keys: str  # Kc^T [batch, heads, d, length]
    values: str  # [batch, heads, length, d]
    positions: str | None  # p2c [batch, heads, rows, length]


class EncoderGraph:
    """The encoder of one model over ``ids`` and ``mask``, both int64 [batch, length]."""

    def __init__(self, graph: Graph, model: DebertaModel, ids: str, mask: str):
        self.graph, self.model, self.config, self.ids = graph, model, model.config, ids
        self._projected: tuple[nn.Module | None, list[tuple[Tensor, Tensor]]] = (None, [])
        op = graph.op
        self.batch, self.length = op("Shape", ids, start=0, end=1), op("Shape", ids, start=1, end=2)
        self.columns = op("Range", graph.number(0), op("Squeeze", self.length), graph.number(1))
        self.mask = op("Cast", mask, to=FLOAT)
        padding = op("Mul", op("Sub", graph.number(1.0), self.mask), graph.number(MASKED_SCORE))
        self.padding = op("Unsqueeze", padding, graph.integers(1, 2))  # [batch, 1, 1, length]
        unsupported = [term for term in self.config.pos_att_type if term not in FUSED_TERMS]
        if unsupported:
            raise ValueError(f"pos_att_type {unsupported[0]} cannot be exported to ONNX; no released model uses it")
        self.table: Any = relative_table(model.encoder, self.config, Layout.rectangular(1, 1, "cpu"))
        if self.table is not None:
            relative = self.table.relative
            self.reach = graph.integers(relative.reach)
            self.lookup = graph.constant("row of distance", relative.lookup().numpy().astype(np.int64))
            farthest = op("Min", op("Sub", self.length, graph.integers(1)), self.reach)
            self.first_row = op("Gather", self.lookup, op("Sub", self.reach, farthest))
            last_row = op("Gather", self.lookup, op("Add", self.reach, farthest))
            self.end_row = op("Add", last_row, graph.integers(1))

    def index(self, columns: str) -> str:
        """Return row(i - j) for queries at ``columns``, relative to first_row: [batch, heads, queries, length]."""
        if self.table is None:
            return ""  # an absent input in ONNX
        op = self.graph.op
        distance = op("Sub", op("Unsqueeze", columns, self.graph.integers(1)), self.columns)
        reach = self.table.relative.reach
        distance = op("Clip", distance, self.graph.number(-reach), self.graph.number(reach))
        row = op("Sub", op("Gather", self.lookup, op("Add", distance, self.reach)), self.first_row)
        heads = self.graph.integers(self.config.num_attention_heads)
        shape = op("Concat", self.batch, heads, op("Shape", columns), self.length, axis=0)
        return op("Expand", op("Cast", row, to=INT32), shape)

    def embed(self, segments: str | None) -> str:
        """Return the embeddings, [batch * length, hidden]."""
        graph, embeddings = self.graph, self.model.embeddings
        flat = graph.integers(-1)

        def look_up(name: str, table: nn.Embedding, index: str) -> str:
            return graph.rows_of_table(f"embeddings.{name}", table.weight, index)

        x = look_up("words", embeddings.word_embeddings, graph.op("Reshape", self.ids, flat))
        if embeddings.token_type_embeddings is not None:
            assert segments is not None
            rows = look_up("segments", embeddings.token_type_embeddings, graph.op("Reshape", segments, flat))
            x = graph.op("Add", x, rows)
        if embeddings.position_biased_input:
            assert embeddings.position_embeddings is not None
            x = self.add_columns(x, look_up("positions", embeddings.position_embeddings, self.columns))
        if embeddings.embed_proj is not None:
            x = graph.dense(x, "embeddings.projection", embeddings.embed_proj)
        return graph.norm(x, "embeddings.norm", embeddings.LayerNorm)

    def add_columns(self, x: str, per_column: str) -> str:
        """x [batch * length, width] + per_column [length, width]."""
        return self.rows_of(self.graph.op("Add", self.rectangle(x), per_column))

    def rectangle(self, x: str) -> str:
        """[batch * length, width] -> [batch, length, width]."""
        shape = self.graph.op("Concat", self.batch, self.length, self.graph.integers(-1), axis=0)
        return self.graph.op("Reshape", x, shape)

    def rows_of(self, x: str) -> str:
        """[batch, length, width] -> [batch * length, width]."""
        width = self.graph.op("Shape", x, start=2, end=3)
        return self.graph.op("Reshape", x, self.graph.op("Concat", self.graph.integers(-1), width, axis=0))

    def encode(self, segments: str | None = None, *, depth: int | None = None, first_token: bool = False) -> str:
        """Run the first ``depth`` layers. ``first_token``: return only the first token of each sequence."""
        x = embedded = self.embed(segments)
        index = self.index(self.columns)
        layers = range(self.config.num_hidden_layers)[:depth]
        for i in layers:
            name, layer = f"layer.{i}", self.model.encoder.layer[i]
            memory = self.memory(name, layer, x)
            if first_token and i == layers[-1] and not (i == 0 and self.model.encoder.conv is not None):
                x = self.graph.op("Gather", self.rectangle(x), self.graph.number(0), axis=1)  # [batch, hidden]
                return self.layer(name, layer, x, memory, self.index(self.graph.integers(0)))
            x = self.layer(name, layer, x, memory, index)
            if i == 0 and self.model.encoder.conv is not None:
                x = self.convolve(self.model.encoder.conv, embedded, x)
        return self.graph.op("Gather", self.rectangle(x), self.graph.number(0), axis=1) if first_token else x

    def memory(self, name: str, layer: DebertaLayer, x: str) -> Memory:
        graph, scale = self.graph, self.config.attention_scale
        _, key, value = self.projections(layer.attention.self)
        keys = self.heads(graph.linear(x, f"{name}.key", *key), [0, 2, 3, 1])
        values = self.heads(graph.linear(x, f"{name}.value", *value), [0, 2, 1, 3])
        if "p2c" not in self.config.pos_att_type:
            return Memory(keys, values, None)
        table = self.table.project(layer.attention.self).pos_q * scale  # Qr
        reached = self.in_reach(graph.position_table(f"{name}.position_query", table.transpose(0, 1)), axis=1)
        return Memory(keys, values, graph.op("MatMul", reached, keys))

    def projections(self, att: DisentangledSelfAttention) -> list[tuple[Tensor, Tensor]]:
        """Query, key and value projections. Each layer needs them twice; caching only one layer saves memory."""
        if self._projected[0] is not att:
            self._projected = (att, effective_projections(att, self.config.hidden_size))
        return self._projected[1]

    def in_reach(self, table: str, axis: int) -> str:
        return self.graph.op("Slice", table, self.first_row, self.end_row, self.graph.integers(axis))

    def layer(self, name: str, layer: DebertaLayer, x: str, memory: Memory, index: str) -> str:
        """Run one layer. ``x`` [rows, hidden] is both the query input and the residual."""
        graph, op, scale = self.graph, self.graph.op, self.config.attention_scale
        weight, bias = self.projections(layer.attention.self)[0]
        queries = self.heads(graph.linear(x, f"{name}.query", weight * scale, bias * scale), [0, 2, 1, 3])
        scores = op("MatMul", queries, memory.keys)
        if "c2p" in self.config.pos_att_type:
            table = self.table.project(layer.attention.self).pos_k.permute(1, 2, 0)  # Kr^T [heads, d, rows]
            by_row = op("MatMul", queries, self.in_reach(graph.position_table(f"{name}.position_key", table), axis=2))
            scores = op("Add", scores, op("GatherElements", by_row, index, axis=3))
        if memory.positions is not None:
            scores = op("Add", scores, op("GatherElements", memory.positions, index, axis=2))
        scores = op("Add", scores, self.padding)
        mixed = op("MatMul", op("Softmax", scores, axis=-1), memory.values)  # [batch, heads, queries, d]
        mixed = op("Reshape", op("Transpose", mixed, perm=[0, 2, 1, 3]), graph.integers(-1, weight.shape[1]))
        output = layer.attention.output
        x = op("Add", x, graph.dense(mixed, f"{name}.attention_output", output.dense))
        x = graph.norm(x, f"{name}.attention_norm", output.LayerNorm)
        wide = graph.dense(x, f"{name}.intermediate", layer.intermediate.dense)
        wide = graph.activation(wide, self.config.hidden_act)
        y = op("Add", x, graph.dense(wide, f"{name}.output", layer.output.dense))
        return graph.norm(y, f"{name}.norm", layer.output.LayerNorm)

    def decode(self, below: str, segments: str | None) -> str:
        """Run the Enhanced Mask Decoder on all rows (decoding.py). ``below``: output of the second-to-last layer."""
        x, index = self.add_information(below, segments), self.index(self.columns)
        for number, (layer, times) in enumerate(decoder_passes(self.model)):
            name = f"decoder.{number}"
            memory = self.memory(name, layer, below)
            for _ in range(times):
                x = self.layer(name, layer, x, memory, index)
        return x

    def add_information(self, below: str, segments: str | None) -> str:
        """Return the mask decoder's first queries."""
        graph, embeddings = self.graph, self.model.embeddings
        if self.config.emd_information == "embeddings":
            return graph.op("Add", below, self.embed(segments))
        if self.config.emd_information == "none":
            return below
        assert embeddings.position_embeddings is not None
        count = embeddings.position_embeddings.num_embeddings
        absolute = graph.constant("absolute positions", embeddings.absolute(torch.arange(count)))
        columns = graph.op("Min", self.columns, graph.number(count - 1))
        return self.add_columns(below, graph.op("Gather", absolute, columns))

    def convolve(self, conv: DebertaConv, embedded: str, x: str) -> str:
        """LayerNorm(x + act(conv(embedded))), with the convolution's input zeroed at padding."""
        op, graph = self.graph.op, self.graph
        block = op("Transpose", self.without_padding(self.rectangle(embedded)), perm=[0, 2, 1])
        weights = (graph.constant(f"conv.{key}", value) for key, value in conv.conv.named_parameters())
        pads = [self.config.conv_kernel_size // 2] * 2
        mixed = op("Conv", block, *weights, pads=pads, group=self.config.conv_groups)
        mixed = graph.activation(op("Transpose", mixed, perm=[0, 2, 1]), self.config.conv_act)
        return graph.norm(op("Add", x, self.rows_of(mixed)), "conv.norm", conv.LayerNorm)

    def without_padding(self, x: str) -> str:
        """Zero the padding positions of x [batch, length, width]."""
        return self.graph.op("Mul", x, self.graph.op("Unsqueeze", self.mask, self.graph.integers(2)))

    def heads(self, x: str, order: list[int]) -> str:
        """Reshape [rows, width] to [batch, queries, heads, d] and permute the axes to ``order``."""
        split = self.graph.integers(-1, self.config.num_attention_heads, self.config.attention_head_size)
        shape = self.graph.op("Concat", self.batch, split, axis=0)
        return self.graph.op("Transpose", self.graph.op("Reshape", x, shape), perm=order)


def effective_projections(att: DisentangledSelfAttention, width: int) -> list[tuple[Tensor, Tensor]]:
    """Recover weight [in, out] and bias of queries, keys and values, fused or separate, by projecting I and 0."""
    att = copy.deepcopy(att).double()  # so that subtracting the bias loses no precision
    probe = torch.cat([torch.eye(width, dtype=torch.double), torch.zeros(1, width, dtype=torch.double)])
    with torch.no_grad():
        return [(x[:-1].flatten(1) - x[-1].flatten(), x[-1].flatten()) for x in project(att, probe)]
