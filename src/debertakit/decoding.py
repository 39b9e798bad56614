"""The Enhanced Mask Decoder, which adds absolute positions to the masked tokens after the encoder.

Let H be the output of the second-to-last layer. The last layer runs n times with keys and values H and separate
queries:

    q_0 = H + I,    q_t = layer(query = residual = q_{t-1}, keys and values = H)

I is "any decoding information"; the released models use the raw absolute position embeddings. With I = 0 and
n = 1 this is the ordinary last layer. Queries do not attend to each other, so we compute only the requested (masked)
rows. This gives the cost of a few per cent stated in the paper; Microsoft's code computes every row.
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
    """Decode ``rows`` (None: all) with raw absolute positions, as in the released models."""
    information = backbone.embeddings.absolute(packed.positions if rows is None else packed.positions[rows])
    return enhanced_mask_decoder(backbone.encoder, hidden, information, rows, packed.layout, backbone.config, remember)


def enhanced_mask_decoder(
    encoder: DebertaEncoder,
    hidden: Tensor,  # H [T, hidden]
    information: Tensor,  # I [rows, hidden]
    rows: Tensor | None,  # rows of H to decode, ascending; None: all
    layout: Layout,
    config: DebertaConfig,
    remember: Remember | None = None,  # cached decoding: adds the keys and values of earlier rows
) -> Tensor:
    """Return the decoded rows [rows, hidden]."""
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
