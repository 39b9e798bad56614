"""accelerate(model): our attention and packed encoder inside a stock transformers model, in place.

The model keeps its class, its parameters and its state dict. Only the ``forward`` of each DeBERTa encoder found in
it (a GLiNER or a CrossEncoder may hold one anywhere) is replaced on the instance, by a function that takes the
padding out, runs ``debertakit.model.encode`` over the stock layers, and puts the padding back.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.deberta.modeling_deberta import DebertaEncoder as StockV1Encoder
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Encoder as StockV2Encoder

from debertakit.config import DebertaConfig
from debertakit.model import PackedInput, encode, pack_input


def accelerate(model: nn.Module) -> nn.Module:
    """Run every stock DeBERTa encoder inside ``model`` with our code; outputs stay equal. Returns the model."""
    encoders = _stock_encoders(model)
    if not encoders:
        raise ValueError(f"{type(model).__name__} holds no transformers DeBERTa encoder to accelerate")
    for encoder in encoders:
        config = DebertaConfig.from_dict(encoder.layer[0].output.config.to_dict())
        encoder.forward = partial(_forward, encoder, config)
    return model


def undo(model: nn.Module) -> nn.Module:
    """Give the model its own encoder back."""
    for encoder in _stock_encoders(model):
        encoder.__dict__.pop("forward", None)
    return model


def _stock_encoders(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, StockV1Encoder | StockV2Encoder)]


def _forward(
    encoder: Any,
    config: DebertaConfig,
    hidden_states: Tensor,  # [batch, length, hidden]
    attention_mask: Tensor,
    output_hidden_states: bool = True,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    return_dict: bool = True,
) -> Any:
    if query_states is not None or relative_pos is not None or attention_mask.dim() != 2:
        forward = type(encoder).forward  # nothing in transformers calls it so; stay out of the way of who does
        return forward(
            encoder,
            hidden_states,
            attention_mask,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            query_states=query_states,
            relative_pos=relative_pos,
            return_dict=return_dict,
        )
    packed: PackedInput = pack_input(config, None, attention_mask, inputs_embeds=hidden_states)
    encoded = encode(
        encoder,
        packed.words,
        packed.layout,
        config,
        keep_hidden=output_hidden_states,
        keep_attentions=output_attentions,
    )
    last = packed.pad(encoded.last)
    hidden = tuple(map(packed.pad, encoded.hidden_states)) if output_hidden_states else None
    attentions = tuple(map(packed.pad_attention, encoded.attentions)) if output_attentions else None
    if not return_dict:
        return tuple(x for x in (last, hidden, attentions) if x is not None)
    return BaseModelOutput(last_hidden_state=last, hidden_states=hidden, attentions=attentions)
