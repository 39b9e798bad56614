import math
from itertools import combinations

import numpy as np
import pytest
import torch

from debertakit.attention import cpu, flex
from debertakit.attention.layout import Layout
from debertakit.attention.positions import FUSED_TERMS, TERMS, PositionTables, RelativePositions
from debertakit.attention.reference import attend, keep_mask, probabilities, score_parts, seen

RELATIVE = RelativePositions(8, 8, 20)
HEADS, D = 2, 8
SCALE = 1 / math.sqrt(3 * D)
SUBSETS = [terms for size in range(len(TERMS) + 1) for terms in combinations(TERMS, size)]


def tensors(queries, keys, rows=16):
    shapes = [(queries, HEADS, D), (keys, HEADS, D), (keys, HEADS, D), (rows, HEADS, D), (rows, HEADS, D)]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def positions(pos_k, pos_q, *terms):
    return PositionTables(terms or ("c2p", "p2c"), pos_k, pos_q, RELATIVE)


def by_loops(q, k, v, pos_k, pos_q, layout, terms=("c2p", "p2c"), scale=SCALE):
    """Compute attention from its definition, pair by pair."""
    lookup = RELATIVE.lookup().tolist()
    rows = []
    for s in range(layout.sequences):
        keys = range(int(layout.k_offsets[s]), int(layout.k_offsets[s + 1]))
        for i in range(int(layout.q_offsets[s]), int(layout.q_offsets[s + 1])):
            sees = len(keys) if layout.visible is None else int(layout.visible[i])
            for h in range(HEADS):
                scores = []
                for j in keys[:sees]:
                    x = int(layout.q_positions[i] - layout.k_positions[j])
                    r = lookup[min(max(x, -RELATIVE.reach), RELATIVE.reach) + RELATIVE.reach]
                    parts = {
                        "c2c": q[i, h] @ k[j, h],
                        "c2p": q[i, h] @ pos_k[r, h],
                        "p2c": pos_q[r, h] @ k[j, h],
                        "p2p": pos_q[r, h] @ pos_k[r, h],
                    }
                    scores.append(sum(parts[term] for term in ("c2c", *terms)) * scale)
                weights = torch.stack(scores).exp()
                rows.append((weights / weights.sum()) @ v[keys[0] : keys[0] + sees, h])
    return torch.stack(rows).view(q.shape)


@pytest.mark.parametrize("backend", ["reference", "cpu", "flex"])
@pytest.mark.parametrize("terms", SUBSETS, ids="+".join)
def test_each_set_of_terms_computes_exactly_its_terms(terms, backend):
    """Both tables are always passed, even if unused. Flex has no backward on a CPU."""
    if backend != "reference" and not FUSED_TERMS.issuperset(terms):
        pytest.skip("left to the reference")
    if backend == "cpu" and not cpu.available():
        pytest.skip(cpu.reason())
    layout = Layout.from_lengths(torch.tensor([4, 1, 11]))
    given = [x if backend == "reference" else x.float() for x in tensors(16, 16)]
    scale = 1 / math.sqrt((1 + len(terms)) * D)
    results = []
    for run in ("loops", backend):
        inputs = [x.clone().requires_grad_(backend != "flex") for x in given]
        if run == "loops":
            out = by_loops(*inputs, layout, terms, scale)
        else:
            tables = PositionTables(terms, *inputs[3:], RELATIVE)
            run_with = {"reference": lambda *x: attend(*x)[0], "cpu": cpu.attend, "flex": flex.attend}[backend]
            out = run_with(*inputs[:3], tables, layout, scale)
        grads = []
        if backend != "flex":
            out.square().sum().backward()
            grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]
        results.append([out.detach(), *grads])
    tolerance = 1e-9 if backend == "reference" else 2e-5
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_without_its_table_is_refused(term):
    with pytest.raises(ValueError, match=f"{term} needs its position table"):
        PositionTables((term,), None, None, RELATIVE)
    with pytest.raises(ValueError, match="unknown position term"):
        PositionTables(("p2x",), None, None, RELATIVE)


def test_queries_of_another_length_causal_and_with_gaps():
    layout, _ = Layout.from_mask(torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0, 0, 0]]))
    layout = layout.causal().at_rows(torch.tensor([1, 4, 5, 7, 9]))
    given = tensors(5, 10)
    out, _ = attend(*given[:3], positions(*given[3:]), layout, SCALE)
    torch.testing.assert_close(out, by_loops(*given, layout))


@pytest.mark.parametrize("terms", [("p2p",), ("c2p", "p2c")])
def test_product_of_content_and_position_attention_is_attention_of_the_sum(terms):
    """The renormalised product of a content attention and a position attention equals attention with summed scores."""
    layout = Layout.from_lengths(torch.tensor([7]))
    q, k, _, pos_k, pos_q = tensors(7, 7)
    parts = score_parts(q, k, positions(pos_k, pos_q, *terms), layout, SCALE)
    position = sum(part for name, part in parts.named().items() if name != "c2c")
    product = parts.c2c.softmax(-1) * position.softmax(-1)
    product = product / product.sum(-1, keepdim=True)
    torch.testing.assert_close(product, probabilities(parts.total(), seen(layout)))


@pytest.mark.parametrize("terms", SUBSETS, ids="+".join)
def test_parts_come_only_for_the_terms_in_use(terms):
    layout = Layout.from_lengths(torch.tensor([4]))
    q, k, _, pos_k, pos_q = tensors(4, 4)
    parts = score_parts(q, k, PositionTables(terms, pos_k, pos_q, RELATIVE), layout, SCALE)
    assert set(parts.named()) == {"c2c", *terms}
    assert set(score_parts(q, k, None, layout, SCALE).named()) == {"c2c"}


def test_a_query_that_sees_nothing_gives_zeros():
    layout, _ = Layout.from_mask(torch.ones(1, 3))
    layout = layout.causal()
    layout.visible[0] = 0
    q, k, v, *tables = tensors(3, 3)
    out, probs = attend(q, k, v, positions(*tables), layout, SCALE)
    assert out[0].abs().max() == 0
    assert probs[0, :, 0].abs().max() == 0


def test_dropout_drops_its_share_and_keeps_the_mean():
    layout = Layout.from_lengths(torch.tensor([200, 100]))
    kept = keep_mask(layout, 3, 0.3, torch.tensor(7))
    assert abs(kept[0].float().mean() - 0.7) < 0.01
    assert not torch.equal(kept[0, 0], kept[0, 1])  # heads differ
    assert not torch.equal(kept, keep_mask(layout, 3, 0.3, torch.tensor(8)))  # seeds differ
    rows = kept[0, 0].float()
    assert np.corrcoef(rows[0], rows[1])[0, 1] < 0.25  # neighbouring rows are uncorrelated
    v = torch.ones(300, 3, 8)
    zero = torch.zeros(300, 3, 8)
    out, _ = attend(zero, zero, v, None, layout, 1.0, dropout=0.3, seed=torch.tensor(7))
    assert abs(out.mean() - 1) < 0.02
