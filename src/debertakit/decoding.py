"""The Enhanced Mask Decoder, which adds absolute positions to the masked tokens after the encoder.

Let H be the output of the second-to-last layer. The last layer runs n times with keys and values H and separate
queries:

    q_0 = H + I,    q_t = layer(query = residual = q_{t-1}, keys and values = H)

I is "any decoding information": the raw absolute position embeddings in the released models, the embedded input, or
nothing (``config.emd_information``). With I = 0 and n = 1 this is the ordinary last layer. The passes share the weights
of the last layer, or the passes after the first have layers of their own (``config.share_emd_layers``, appendix A.8).
Queries do not attend to each other, so we compute only the requested (masked)
rows. This gives the cost of a few per cent stated in the paper; Microsoft's code computes every row.
"""

from collections.abc import Sequence
from typing import Final

from torch import Tensor

from debertakit.attention.layout import Layout
from debertakit.attention.projections import project_memory, project_queries
from debertakit.config import DebertaConfig
from debertakit.model import (
    DebertaLayer,
    DebertaModel,
    UpdateCache,
    attention_context,
    finish_layer,
    relative_table,
)
from debertakit.padding import PackedInput, Recorder

ALL: Final = slice(None)
Rows = Tensor | slice
"""Packed rows to read: ascending indices, or ALL."""


def read_rows(
    model: DebertaModel,
    packed: PackedInput,
    *,
    decoded: Rows | None = None,
    plain: Rows | None = None,
    recorder: Recorder | None = None,
    cache_updates: Sequence[UpdateCache] | None = None,  # with a cache, read either decoded or plain rows
) -> tuple[Tensor | None, Tensor | None]:
    """Run the encoder and return hidden states [rows, hidden] of ``decoded`` and ``plain`` rows, in this order.

    The mask decoder computes the decoded rows from the layer below the last, so the last layer itself runs only if
    plain rows are requested. Without a mask decoder (emd_steps is 0), decoded rows are rows of the last layer.
    """
    config = model.config
    if decoded is None or config.emd_steps <= 0:
        last = model.encode(packed, recorder=recorder, cache_updates=cache_updates).last
        return None if decoded is None else _at(last, decoded), None if plain is None else _at(last, plain)
    depth = encoder_depth(config) if plain is None else None
    encoded = model.encode(packed, depth=depth, recorder=recorder, cache_updates=cache_updates)
    below, read = (encoded.last, None) if plain is None else (encoded.below, _at(encoded.last, plain))
    information = decoding_information(model, packed, decoded)
    update_cache = None if cache_updates is None else cache_updates[-1]
    return enhanced_mask_decoder(model, below, information, decoded, packed.layout, update_cache), read


def encoder_depth(config: DebertaConfig) -> int:
    """Return how many layers run before the mask decoder: all but the last, or all if there is no mask decoder."""
    return config.num_hidden_layers - (1 if config.emd_steps > 0 else 0)


def decoder_passes(model: DebertaModel) -> list[tuple[DebertaLayer, int]]:
    """Return the layers of the mask decoder in order, and how many times each runs."""
    last, own = model.encoder.layer[-1], model.mask_decoder
    return [(last, model.config.emd_steps - len(own)), *((layer, 1) for layer in own)]


def decoding_information(model: DebertaModel, packed: PackedInput, rows: Rows) -> Tensor | None:
    """Return I of these rows [rows, hidden], or None if nothing is added."""
    positions = _at(packed.positions, rows)
    if model.config.emd_information == "positions":
        return model.embeddings.absolute(positions)
    if model.config.emd_information == "embeddings":
        segments = None if packed.segments is None else _at(packed.segments, rows)
        return model.embeddings(_at(packed.words, rows), positions, segments)
    return None


def enhanced_mask_decoder(
    model: DebertaModel,
    hidden: Tensor,  # H [T, hidden]
    information: Tensor | None,  # I [rows, hidden]; None: 0
    rows: Rows,
    layout: Layout,
    update_cache: UpdateCache | None = None,
) -> Tensor:
    """Return the decoded rows [rows, hidden]."""
    config = model.config
    queries = _at(hidden, rows)
    if information is not None:
        queries = queries + information
    table = relative_table(model.encoder, config, layout)
    at_rows = layout if isinstance(rows, slice) else layout.at_rows(rows)
    for layer, times in decoder_passes(model):
        att = layer.attention.self
        memory = project_memory(att, hidden)  # keys and values, the same in all passes of a layer
        if update_cache is not None:
            memory = update_cache(*memory)
        for _ in range(times):
            context = attention_context(att, (project_queries(att, queries), *memory), config, at_rows, table)
            queries = finish_layer(layer, context, queries)
    return queries


def _at(hidden: Tensor, rows: Rows) -> Tensor:
    return hidden if isinstance(rows, slice) else hidden[rows]
