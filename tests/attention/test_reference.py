import math

import numpy as np
import pytest
import torch

from debertakit.attention.layout import Layout
from debertakit.attention.positions import RelativePositions
from debertakit.attention.reference import attend, keep_mask, probabilities, score_parts, seen

RELATIVE = RelativePositions(8, 8, 20)
HEADS, D = 2, 4
SCALE = 1 / math.sqrt(3 * D)


def tensors(queries, keys, rows=16):
    shapes = [(queries, HEADS, D), (keys, HEADS, D), (keys, HEADS, D), (rows, HEADS, D), (rows, HEADS, D)]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def by_loops(q, k, v, pos_k, pos_q, layout, p2p=False, scale=SCALE):
    """The definition, pair by pair."""
    lookup = RELATIVE.lookup().tolist()
    out = torch.zeros_like(q)
    for s in range(layout.sequences):
        keys = range(int(layout.k_offsets[s]), int(layout.k_offsets[s + 1]))
        for i in range(int(layout.q_offsets[s]), int(layout.q_offsets[s + 1])):
            sees = len(keys) if layout.visible is None else int(layout.visible[i])
            for h in range(HEADS):
                scores = []
                for j in keys[:sees]:
                    x = int(layout.q_positions[i] - layout.k_positions[j])
                    r = lookup[min(max(x, -RELATIVE.reach), RELATIVE.reach) + RELATIVE.reach]
                    score = q[i, h] @ k[j, h] + q[i, h] @ pos_k[r, h] + pos_q[r, h] @ k[j, h]
                    if p2p:
                        score = score + pos_q[r, h] @ pos_k[r, h]
                    scores.append(float(score) * scale)
                weights = np.exp(np.array(scores) - max(scores))
                weights /= weights.sum()
                for j, weight in zip(keys, weights, strict=False):
                    out[i, h] += weight * v[j, h]
    return out


@pytest.mark.parametrize("p2p", [False, True])
def test_scores_are_the_sum_of_their_parts_over_the_scale(p2p):
    layout = Layout.from_lengths(torch.tensor([5, 1, 30]))
    given = tensors(36, 36)
    out, _ = attend(*given, layout, RELATIVE, SCALE, p2p)
    torch.testing.assert_close(out, by_loops(*given, layout, p2p))


def test_queries_of_another_length_causal_and_with_gaps():
    layout, _ = Layout.from_mask(torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0, 0, 0]]))
    layout = layout.causal().at_rows(torch.tensor([1, 4, 5, 7, 9]))
    given = tensors(5, 10)
    out, _ = attend(*given, layout, RELATIVE, SCALE)
    torch.testing.assert_close(out, by_loops(*given, layout))


def test_product_of_content_and_position_attention_is_attention_of_the_sum():
    """Two descriptions multiply a content attention with a position attention; renormalised, it is this one."""
    layout = Layout.from_lengths(torch.tensor([7]))
    q, k, _, pos_k, pos_q = tensors(7, 7)
    parts = score_parts(q, k, pos_k, pos_q, layout, RELATIVE, SCALE)
    product = parts.c2c.softmax(-1) * (parts.c2p + parts.p2c).softmax(-1)
    product = product / product.sum(-1, keepdim=True)
    torch.testing.assert_close(product, probabilities(parts.total(), seen(layout)))


def test_parts_come_only_for_the_terms_in_use():
    layout = Layout.from_lengths(torch.tensor([4]))
    q, k, _, pos_k, pos_q = tensors(4, 4)
    assert set(score_parts(q, k, None, pos_q, layout, RELATIVE, SCALE).named()) == {"c2c", "p2c"}
    assert set(score_parts(q, k, pos_k, None, layout, RELATIVE, SCALE).named()) == {"c2c", "c2p"}
    assert set(score_parts(q, k, None, None, layout, None, SCALE).named()) == {"c2c"}
    assert set(score_parts(q, k, pos_k, pos_q, layout, RELATIVE, SCALE, p2p=True).named()) == {
        "c2c",
        "c2p",
        "p2c",
        "p2p",
    }


def test_a_query_that_sees_nothing_gives_zeros():
    layout, _ = Layout.from_mask(torch.ones(1, 3))
    layout = layout.causal()
    layout.visible[0] = 0
    out, probs = attend(*tensors(3, 3), layout, RELATIVE, SCALE)
    assert out[0].abs().max() == 0
    assert probs[0, :, 0].abs().max() == 0


def test_dropout_drops_its_share_and_keeps_the_mean():
    layout = Layout.from_lengths(torch.tensor([200, 100]))
    kept = keep_mask(layout, 3, 0.3, torch.tensor(7))
    assert abs(kept[0].float().mean() - 0.7) < 0.01
    assert not torch.equal(kept[0, 0], kept[0, 1])  # heads differ
    assert not torch.equal(kept, keep_mask(layout, 3, 0.3, torch.tensor(8)))  # seeds differ
    rows = kept[0, 0].float()
    assert np.corrcoef(rows[0], rows[1])[0, 1] < 0.25  # neighbouring rows are unrelated
    v = torch.ones(300, 3, 8)
    zero = torch.zeros(300, 3, 8)
    out, _ = attend(zero, zero, v, None, None, layout, None, 1.0, dropout=0.3, seed=torch.tensor(7))
    assert abs(out.mean() - 1) < 0.02
