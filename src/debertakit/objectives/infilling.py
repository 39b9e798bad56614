"""Span infilling (BART): the encoder reads a text with holes, the decoder writes the text.

    loss = - sum over rows t but the last of each text of  log softmax(E head(d_t) + b)[token_{t+1}]

d_t, the decoder's row, sees the text up to t and the corrupted text whole. What is hidden is the masking strategy's
business; infilling is ``Masking("span", rate=0.3, mask=1, random=0, one_mask_per_span=True)``: a span of any length
leaves one [MASK], so that the decoder must find out how much is missing.
"""

from dataclasses import replace

from debertakit.objectives.arlm import AutoregressiveLanguageModelling
from debertakit.objectives.base import Asked, Context, View, causal_view, masked_view
from debertakit.text.packing import PackedBatch


class Infilling(AutoregressiveLanguageModelling):
    view = "infilled"

    def ask(self, view: View) -> Asked:
        assert view.written is not None
        return super().ask(view.written)


def infilled_view(batch: PackedBatch, context: Context, progress: float) -> View:
    return replace(masked_view(batch, context, progress), written=causal_view(batch))
