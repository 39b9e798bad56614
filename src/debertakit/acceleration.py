"""accelerate(model): use our attention and packed encoder inside a stock transformers model, in place.

The model keeps its class, its parameters and its state dict. We only replace the ``forward`` of each DeBERTa encoder
instance found in the model (also inside a GLiNER or a CrossEncoder). The new ``forward`` removes the padding, runs
``debertakit.model.encode`` on the stock layers, and restores the padding.

Outputs stay equal to those of stock transformers, also past 512 tokens and at padding. In stock transformers, a padding
token attends equally to all positions of its sequence, and all padding tokens start from the same zero vector. So all
padding tokens of a sequence stay equal, and we compute one row p per sequence for all of them. With m the mean hidden
state over the sequence, padding included, and V the layer's value projection:

    p' = layer(context = V m, residual = p)
"""

import copy
import functools
from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.deberta.modeling_deberta import DebertaEncoder as StockV1Encoder
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Encoder as StockV2Encoder

from debertakit.attention.graphs import fixed_shapes
from debertakit.attention.projections import project_memory
from debertakit.config import DebertaConfig
from debertakit.model import encode, finish_layer
from debertakit.padding import PackedInput, Recorder, pack_input

Model = TypeVar("Model")
StockEncoder: TypeAlias = StockV1Encoder | StockV2Encoder


def accelerate(model: Model, *, clamp_distances: bool = False) -> Model:
    """Run every stock DeBERTa encoder inside ``model`` with our code. Outputs stay equal. Returns the model.

    ``model`` is a module, or an object that holds modules in its attributes (a pipeline, a SetFitModel).
    ``clamp_distances`` uses Microsoft's distance rule past 512 tokens instead of the one of transformers.
    """
    encoders = list(_stock_encoders(model))
    if not encoders:
        raise ValueError(f"{type(model).__name__} holds no transformers DeBERTa encoder to accelerate")
    for encoder in encoders:
        config = DebertaConfig.from_dict(encoder.layer[0].output.config.to_dict(), clamp_distances=clamp_distances)
        encoder.forward = AcceleratedForward(encoder, config)
    return model


def undo(model: Model) -> Model:
    """Restore the original ``forward`` of every encoder. Returns the model."""
    for encoder in _stock_encoders(model):
        encoder.__dict__.pop("forward", None)
    return model


def _stock_encoders(holder: object) -> Iterator[StockEncoder]:
    parts = [holder] if isinstance(holder, nn.Module) else getattr(holder, "__dict__", {}).values()
    for module in (part for part in parts if isinstance(part, nn.Module)):
        yield from (x for x in module.modules() if isinstance(x, StockEncoder))


class AcceleratedForward:
    """Replacement for the ``forward`` of one stock encoder.

    Falls back to the stock ``forward`` for arguments that transformers itself never passes, for padding rows that are
    not zero, for hooks inside the layers (they would see packed tensors), and while torch traces a graph.
    """

    def __init__(self, encoder: StockEncoder, config: DebertaConfig):
        self.encoder = encoder
        self.config = config

    def __call__(
        self,
        hidden_states: Tensor,  # [batch, length, hidden]
        attention_mask: Tensor,
        output_hidden_states: bool = True,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        return_dict: bool = True,
    ) -> BaseModelOutput | tuple[Tensor, ...]:
        unusual = query_states is not None or relative_pos is not None or attention_mask.dim() != 2
        if unusual or fixed_shapes() or self._hooked() or not _padding_is_zero(hidden_states, attention_mask):
            return type(self.encoder).forward(
                self.encoder,
                hidden_states,
                attention_mask,
                output_hidden_states,
                output_attentions,
                query_states,
                relative_pos,
                return_dict,
            )
        packed = pack_input(self.config, None, attention_mask, inputs_embeds=hidden_states)
        recorder: Recorder
        if packed.kept is None:
            recorder = Recorder(packed, output_hidden_states, output_attentions)
        else:
            recorder = StockRecorder(packed, output_attentions, attention_mask, self.encoder)
        encoded = encode(self.encoder, packed.words, packed.layout, self.config, recorder=recorder)
        last, outputs = recorder.last_hidden_state(encoded.last), recorder.outputs()
        if not output_hidden_states:
            outputs["hidden_states"] = None
        if not return_dict:
            return tuple(x for x in (last, *outputs.values()) if x is not None)
        return BaseModelOutput(last_hidden_state=last, **outputs)

    def _hooked(self) -> bool:
        modules = self.encoder.layer.modules()
        return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in modules)

    def __deepcopy__(self, memo: dict[int, object]) -> "AcceleratedForward":
        return AcceleratedForward(copy.deepcopy(self.encoder, memo), self.config)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the stock ``forward``, so that the file loads without debertakit."""
        return functools.partial, (type(self.encoder).forward, self.encoder)


def _padding_is_zero(hidden_states: Tensor, attention_mask: Tensor) -> bool:
    """Return whether all padding rows are zero, as after stock embeddings. True if there is no padding."""
    padding = attention_mask == 0
    return not bool(padding.any()) or not bool(hidden_states[padding].any())


class StockRecorder(Recorder):
    """Recorder that fills padding with the values of stock transformers."""

    def __init__(self, packed: PackedInput, attentions: bool, attention_mask: Tensor, encoder: StockEncoder):
        super().__init__(packed, hidden_states=True, attentions=attentions)
        self.real = attention_mask.bool()
        self.encoder = encoder

    def hidden(self, rows: Tensor) -> Tensor:
        assert self.hidden_states is not None
        padded = torch.where(self.real[..., None], self.packed.pad(rows), self._padding()[:, None].to(rows.dtype))
        self.hidden_states.append(padded)
        return self.packed.pack(padded) if torch.is_grad_enabled() else rows

    def _padding(self) -> Tensor:
        """Return p [batch, hidden], the hidden state of each sequence's padding after the layer that just ran."""
        depth = len(self.hidden_states or ())
        if depth == 0 or (depth == 1 and getattr(self.encoder, "conv", None) is not None):
            return self.packed.words.new_zeros(len(self.real), self.packed.words.shape[1])
        below = self.hidden_states[-1]  # type: ignore[index]
        # The first padding row holds p. A sequence without padding gives a result that is not used.
        place = self.real.int().argmin(-1)
        residual = below[torch.arange(len(below), device=below.device), place]
        layer = self.encoder.layer[depth - 1]
        context = project_memory(layer.attention.self, below.mean(1))[1].flatten(1)
        return finish_layer(layer, context, residual)

    def blank_attention(self, probs: Tensor) -> Tensor:
        """Padding attends to every position equally."""
        blank = super().blank_attention(probs)
        return blank.masked_fill(~self.real[:, None, :, None], 1.0 / blank.shape[-1])
