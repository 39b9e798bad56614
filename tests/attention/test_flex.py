"""FlexAttention's score and mask functions on CPU, where torch runs them unfused and without backward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from debertakit.attention import flex, reference
from debertakit.attention.layout import Layout
from debertakit.attention.positions import RelativePositions
from tests.attention.tables import with_tables

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.slow
@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    view=st.sampled_from(["all", "causal", "prefix", "rows"]),
    tables=st.sampled_from(["both", "c2p", "p2c", "none"]),
    dropout=st.sampled_from([0.0, 0.4]),
    relative=st.sampled_from([RelativePositions(8, 8, 20), RelativePositions(6)]),
)
def test_it_equals_the_reference(lengths, view, tables, dropout, relative):
    layout = Layout.from_lengths(torch.tensor(lengths))
    rows = torch.arange(sum(lengths))
    if view == "causal":
        layout = layout.causal()
    elif view == "prefix":
        layout = layout.prefix(torch.tensor(lengths) // 2)
    elif view == "rows":
        rows = rows[::3]
        layout = layout.at_rows(rows)
    total, heads, d = sum(lengths), 2, 16
    q, k, v = (torch.randn(total, heads, d) for _ in range(3))
    pos_k, pos_q = (torch.randn(2 * relative.span, heads, d) for _ in range(2))
    pos_k = pos_k if tables in ("both", "c2p") else None
    pos_q = pos_q if tables in ("both", "p2c") else None
    arguments = (q[rows], k, v, pos_k, pos_q, layout, relative, 0.2)
    seed = torch.tensor(5)
    expected, _ = with_tables(reference.attend)(*arguments, dropout=dropout, seed=seed)
    torch.testing.assert_close(with_tables(flex.attend)(*arguments, dropout, seed), expected, atol=2e-5, rtol=1e-4)
