"""Two-stream attention (XLNet) with DeBERTa's encoder, for permutation language modelling.

Layer l has two streams with the same weights; i and t are tokens, j <= i means that j is i or comes before i:

    content   h_i^l = layer(query and residual = h_i^{l-1}, keys and values = h_j^{l-1} of all j <= i)
    query     g_t^l = layer(query and residual = g_t^{l-1}, keys and values = h_j^{l-1} of all j < t)
    h^0 = embeddings(text),  g^0 = embeddings([MASK])

The encoder needs no change for this. The tokens of each sequence are sorted by their order, and the queries g follow
them. Then the keys of every row are the first ones of its sequence, which ``Layout.visible`` expresses, and nobody sees
the rows of g. Distances depend on the positions in the text, and those are kept.
"""

from dataclasses import replace

import torch
from torch import Tensor

from debertakit.attention.layout import Layout
from debertakit.objectives.base import View, as_tensor
from debertakit.padding import PackedInput


def two_streams(view: View, targets: Tensor) -> tuple[PackedInput, Tensor]:
    """Return the encoder's input for a permuted view, and the row of each target's query in it.

    ``targets``: rows of the view. The input also contains the content stream, of all tokens.
    """
    assert view.order is not None
    assert view.masked is not None
    text, order = Layout.from_lengths(view.lengths), view.order
    rows = torch.arange(len(view.ids), device=view.ids.device)
    sequence = view.sequence_of(rows)
    context = torch.bincount(sequence, weights=(order == 0).double(), minlength=len(view.lengths)).long()
    seen = context[sequence] + order  # a target sees the context and the targets up to itself
    queries = as_tensor(view.masked.input_ids).to(rows.device)[targets]  # [MASK]
    last = int(view.lengths.max()) + 1
    key = torch.cat([sequence * (2 * last) + order, sequence[targets] * (2 * last) + last + order[targets]])
    sort = key.argsort(stable=True)
    positions = torch.cat([text.q_positions, text.q_positions[targets]])[sort]
    layout = Layout.from_lengths(view.lengths + torch.bincount(sequence[targets], minlength=len(view.lengths)).int())
    layout = replace(
        layout,
        q_positions=positions,
        k_positions=positions,
        max_distance=text.max_distance,
        visible=torch.cat([seen, seen[targets] - 1])[sort].int(),
    )
    words = torch.cat([view.ids, queries])[sort]
    place = torch.empty_like(sort)
    place[sort] = torch.arange(len(sort), device=sort.device)
    return PackedInput(words, layout, positions, None, None, (1, len(words))), place[len(rows) :]
