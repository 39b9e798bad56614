"""The Enhanced Mask Decoder: absolute positions, given to the masked tokens at the end.

With H the output of the last layer but one, the last layer is run n times over K = V = H with queries of its own:

    q_0 = H + I,    q_t = layer(query = residual = q_{t-1}, keys and values = H)

I is "any decoding information"; the released models take the raw absolute position embeddings. With I = 0 and
n = 1 this is the ordinary last layer. Rows do not see each other's queries, so only the rows that are asked for
(the masked ones) need computing: the few per cent that the paper counts, where Microsoft's code runs every row.
"""

from torch import Tensor

from debertakit.attention.layout import Layout
from debertakit.config import DebertaConfig
from debertakit.model import (
    DebertaEncoder,
    DebertaModel,
    PackedInput,
    Remember,
    layer_memory,
    relative_table,
    run_decoder_layer,
)


def decode_masks(
    backbone: DebertaModel, hidden: Tensor, rows: Tensor | None, packed: PackedInput, remember: Remember | None = None
) -> Tensor:
    """The decoder of the released models: raw absolute positions are the information. ``rows`` None: every row."""
    information = backbone.embeddings.absolute(packed.positions if rows is None else packed.positions[rows])
    return enhanced_mask_decoder(backbone.encoder, hidden, information, rows, packed.layout, backbone.config, remember)


def enhanced_mask_decoder(
    encoder: DebertaEncoder,
    hidden: Tensor,  # H [T, hidden]
    information: Tensor,  # I [rows, hidden]
    rows: Tensor | None,  # which rows of H to decode, ascending; None: all
    layout: Layout,
    config: DebertaConfig,
    remember: Remember | None = None,  # cached decoding: the rows before these are keys and values too
) -> Tensor:
    """Decoded rows [rows, hidden]."""
    layer = encoder.layer[-1]
    queries = (hidden if rows is None else hidden[rows]) + information
    table = relative_table(encoder, config, layout)
    memory = layer_memory(layer, hidden)
    if remember is not None:
        memory = remember(*memory)
    at_rows = layout if rows is None else layout.at_rows(rows)
    for _ in range(config.emd_steps):
        queries = run_decoder_layer(layer, memory, queries, config=config, layout=at_rows, table=table)
    return queries
