import torch
from hypothesis import given
from hypothesis import strategies as st

from debertakit.attention.layout import Layout

masks = st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4)


@given(masks)
def test_a_mask_becomes_offsets_and_columns(rows):
    mask = torch.tensor(rows)
    layout, kept = Layout.from_mask(mask)
    assert layout.q_offsets.tolist() == [0, *mask.sum(1).cumsum(0).tolist()]
    assert layout.q_positions.tolist() == [c for row in rows for c, real in enumerate(row) if real]
    assert kept.tolist() == mask.flatten().nonzero().squeeze(1).tolist()
    assert layout.max_q == max(map(sum, rows))


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5))
def test_padding_and_unpadding_are_inverse(lengths):
    layout = Layout.from_lengths(torch.tensor(lengths, dtype=torch.int32))
    x = torch.randn(sum(lengths), 3)
    padded = layout.pad_queries(x)
    assert padded.shape == (len(lengths), max(lengths), 3)
    assert torch.equal(layout.unpad_queries(padded), x)
    assert torch.isclose(padded.sum(), x.sum(), atol=1e-5)


def test_rows_asked_for_keep_their_sequence_and_position():
    layout = Layout.from_lengths(torch.tensor([3, 0, 4, 1])).at_rows(torch.tensor([2, 3, 6]))
    assert layout.q_offsets.tolist() == [0, 1, 1, 3, 3]
    assert layout.q_positions.tolist() == [2, 0, 3]
    assert layout.k_offsets.tolist() == [0, 3, 3, 7, 8]
    assert (layout.max_q, layout.max_k) == (2, 4)


def test_causal_and_prefix_count_the_keys_in_sight():
    layout = Layout.from_lengths(torch.tensor([3, 4]))
    assert layout.causal().visible.tolist() == [1, 2, 3, 1, 2, 3, 4]
    assert layout.prefix(torch.tensor([2, 3])).visible.tolist() == [2, 2, 3, 3, 3, 3, 4]


def test_causal_with_gaps_goes_by_position():
    layout, _ = Layout.from_mask(torch.tensor([[1, 0, 1, 1]]))
    assert layout.causal().visible.tolist() == [1, 2, 3]
