"""Span infilling (BART): the encoder reads a text with masked spans, the decoder writes the original text.

    loss = - sum over rows t, except the last of each text, of  log softmax(E head(d_t) + b)[token_{t+1}]

The decoder row d_t sees the text up to t and the whole corrupted text. The masking strategy selects the spans;
infilling uses ``Masking("span", rate=0.3, mask=1, random=0, one_mask_per_span=True)``. A span of any length becomes
one [MASK], so the decoder must find out how many tokens are missing.
"""

from dataclasses import replace

from debertakit.objectives.arlm import AutoregressiveLanguageModelling
from debertakit.objectives.base import Context, Targets, View, causal_view, masked_view
from debertakit.text.packing import PackedBatch


class Infilling(AutoregressiveLanguageModelling):
    view = "infilled"
    attention = "encoder-decoder"

    def build_view(self, batch: PackedBatch, context: Context, progress: float) -> View:
        return replace(masked_view(batch, context, progress), written=causal_view(batch))

    def targets(self, view: View) -> Targets:
        assert view.written is not None
        return super().targets(view.written)
