"""Call the operators with malformed arguments: each call raises, and none crashes the process."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from debertakit.attention import Layout, RelativePositions, cpu

pytestmark = pytest.mark.skipif(not cpu.available(), reason=cpu.reason() or "built")

NAMES = "q k v pos_k pos_q q_offsets k_offsets q_positions k_positions visible lookup scale dropout seed".split()
FLOATS, INDICES = NAMES[:5], NAMES[5:11]
MATRICES = [*FLOATS, "d_out", "out"]
BACKWARD = (
    "d_out q k v pos_k pos_q out lse q_offsets k_offsets q_positions k_positions visible lookup scale dropout seed"
)


def valid() -> dict:
    """Arguments of both operators: 11 rows in two sequences, 2 heads of size 8."""
    layout = Layout.from_lengths(torch.tensor([4, 7], dtype=torch.int32)).causal()
    rows = (layout.q_offsets, layout.k_offsets, layout.q_positions, layout.k_positions, layout.visible)
    content, tables = torch.randn(5, 11, 2, 8).unbind(0), torch.randn(2, 10, 2, 8).unbind(0)
    found = dict(zip(NAMES, (*content[:3], *tables, *rows, RelativePositions(span=5).lookup()), strict=False))
    return {**found, "scale": 0.2, "dropout": 0.0, "seed": None, "d_out": content[3], "out": content[4]} | {
        "lse": torch.zeros(2, 11)
    }


def call(arguments: dict) -> None:
    """Call backward, then forward. Both get all arguments that they share."""
    cpu.attention_backward(*[arguments[name] for name in BACKWARD.split()], True)
    cpu.attention_forward(*[arguments[name] for name in NAMES])


def other_shape(t: torch.Tensor, kind: str) -> torch.Tensor:
    return {
        "empty": t[:0],
        "shorter": t[:-1],
        "longer": torch.cat([t, t[-1:]]),
        "scalar": t.flatten()[0],
        "deeper": t[None],
        "flat": t.flatten() if t.dim() > 1 else t[:, None],
    }[kind]


SHAPES = ["empty", "shorter", "longer", "scalar", "deeper", "flat"]
WRONG_SHAPE = st.tuples(st.sampled_from([*MATRICES, "lse", *INDICES]), st.sampled_from(SHAPES))


def test_valid_arguments_raise_nothing():
    call(valid())


@settings(max_examples=150)
@given(WRONG_SHAPE)
def test_wrong_shapes(wrong):
    name, kind = wrong
    arguments = valid()
    arguments[name] = other_shape(arguments[name], kind)
    with pytest.raises((ValueError, RuntimeError)):
        call(arguments)


@settings(max_examples=100)
@given(
    st.tuples(st.sampled_from(MATRICES), st.sampled_from([torch.float64, torch.int32, torch.bool, torch.complex64]))
    | st.tuples(st.sampled_from(INDICES), st.sampled_from([torch.float32, torch.bool, torch.int8, torch.complex64]))
    | st.tuples(st.just("lse"), st.sampled_from([torch.float64, torch.bfloat16, torch.int64]))
)
def test_wrong_types(wrong):
    name, dtype = wrong
    arguments = valid()
    arguments[name] = arguments[name].to(dtype)
    with pytest.raises((ValueError, TypeError)):
        call(arguments)


@pytest.mark.parametrize("name", [*FLOATS[1:], *INDICES, "lse"])
def test_another_device(name):
    """The operator itself refuses it, even if the dispatcher does not."""
    arguments = valid()
    arguments[name] = arguments[name].to("meta")
    with pytest.raises((ValueError, RuntimeError, NotImplementedError)):
        cpu._backward(*[arguments[n] for n in BACKWARD.split()], True)


@settings(max_examples=200)
@given(
    st.sampled_from(["q_offsets", "k_offsets"]),
    st.lists(st.integers(-(2**40), 2**40) | st.integers(-2, 13), min_size=3, max_size=3),
)
def test_wrong_offsets(name, offsets):
    """Offsets out of range, decreasing, or not covering all rows."""
    sound = offsets[0] == 0 and 0 <= offsets[1] <= 11 and offsets[2] == 11
    arguments = valid() | {name: torch.tensor(offsets)}
    if sound:
        return call(arguments)
    with pytest.raises(ValueError, match=r"offsets|32 bits"):
        call(arguments)


EXTREMES = st.sampled_from([-(2**31), 2**31 - 1, 2**31 - 4, -1, 0, 5, 100])


@settings(max_examples=100)
@given(
    st.sampled_from(["q_positions", "k_positions", "visible", "lookup"]), st.lists(EXTREMES, min_size=11, max_size=11)
)
def test_extreme_values_neither_crash_nor_read_outside(name, values):
    arguments = valid()
    arguments[name] = torch.tensor(values, dtype=torch.int32)
    if name == "lookup" and any(not 0 <= value < 10 for value in values):
        arguments["q_positions"] = torch.arange(-20, 35, 5, dtype=torch.int32)  # reach every distance
        with pytest.raises(ValueError, match="row outside"):
            call(arguments)
    else:
        call(arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lookup": None}, "need a lookup"),
        ({"pos_k": torch.randn(9, 2, 8)}, "position tables"),
        ({"k": torch.randn(11, 3, 8)}, "do not fit together"),
        ({"pos_k": torch.randn(10, 3, 8), "pos_q": None}, "2 heads of size 8"),
        ({"dropout": 0.5}, "needs a seed"),
        ({"dropout": 1.0, "seed": torch.tensor(1)}, "< 1"),
        ({"dropout": float("nan"), "seed": torch.tensor(1)}, "< 1"),
        ({"dropout": 0.5, "seed": torch.tensor([1, 2])}, "one integer"),
        ({"dropout": 0.5, "seed": torch.tensor(0.5)}, "one integer"),
        ({name: torch.zeros(11, 0, 8) for name in ("q", "k", "v")}, "0 heads"),
        ({name: torch.zeros(11, 2, 0) for name in ("q", "k", "v")}, "size 0"),
    ],
)
def test_the_error_names_the_argument(changes, message):
    with pytest.raises(ValueError, match=message):
        call(valid() | changes)


def test_freed_memory_is_refused():
    arguments = valid()
    arguments["k"] = torch.randn(11, 2, 8)
    arguments["k"].untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="freed"):
        cpu._forward(*[arguments[name] for name in NAMES])


def test_strided_lse_and_indices_are_copied():
    arguments = valid()
    expected = cpu.attention_backward(*[arguments[name] for name in BACKWARD.split()], True)
    arguments["lse"] = torch.zeros(11, 2).t()
    for name in INDICES:
        arguments[name] = arguments[name].repeat_interleave(2)[::2]
    found = cpu.attention_backward(*[arguments[name] for name in BACKWARD.split()], True)
    assert all(map(torch.equal, found, expected))
