import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from debertakit.attention.positions import RelativePositions, log_bucket


def bucket_by_definition(x: int, buckets: int, top: int) -> int:
    mid = buckets // 2
    size = min(abs(x), top - 1)
    if size > mid:
        size = mid + math.ceil(math.log(size / mid) / math.log((top - 1) / mid) * (mid - 1))
    return size if x > 0 else -size


@given(st.integers(-5000, 5000), st.sampled_from([(256, 512), (32, 512), (16, 64), (8, 100)]))
def test_log_bucket_follows_its_definition(x, shape):
    assert log_bucket(np.array([x]), *shape)[0] == bucket_by_definition(x, *shape)


def test_released_models_use_rows_1_to_511_and_never_row_0():
    rows = RelativePositions(256, 256, 512).rows(torch.arange(-3000, 3000))
    assert rows.min() == 1
    assert rows.max() == 511
    assert len(rows.unique()) == 511


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (32, 512), (15, 64), (8, 30)])
def test_without_the_clamp_rows_are_those_of_stock_transformers(buckets, longest):
    distances = torch.arange(-3000, 3000)
    bucket = make_log_bucket_position(distances, buckets, longest).long()
    expected = (bucket + buckets).clamp(0, 2 * buckets - 1)
    assert torch.equal(RelativePositions(buckets, buckets, longest, clamp=False).rows(distances).long(), expected)


def test_exact_distances_are_clamped_at_the_table():
    relative = RelativePositions(4)
    assert relative.rows(torch.tensor([-9, -4, -3, 0, 3, 4, 9])).tolist() == [0, 0, 1, 4, 7, 7, 7]


STOCK = RelativePositions(256, 256, 512, clamp=False)


@given(st.integers(0, 900), st.sampled_from([RelativePositions(256, 256, 512), RelativePositions(20), STOCK]))
def test_a_cut_table_holds_the_rows_within_reach(longest, relative):
    cut = relative.cut(longest)
    distances = torch.arange(-longest, longest + 1)
    assert torch.equal(cut.rows(distances) + cut.first, relative.rows(distances))
    used = relative.rows(distances)
    assert (cut.first, cut.count) == (int(used.min()), int(used.max() - used.min()) + 1)


@pytest.mark.parametrize("bad", [{"span": 0}, {"span": 4, "buckets": 2}, {"span": 8, "buckets": 8, "max_position": 5}])
def test_a_table_that_no_distance_could_use_is_refused(bad):
    with pytest.raises(ValueError, match=r"span|position_buckets"):
        RelativePositions(**bad)
