"""Digits of a loop that was fused of several, in a flattened index: how far an access moves with each."""

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

from math import prod  # noqa: E402
from types import SimpleNamespace  # noqa: E402

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from roller_tvm.codegen.flat import kind_of, number_of, sum_of  # noqa: E402
from roller_tvm.codegen.rewrites.loop_digits import axes_of  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

if line() == "relay":
    from tvm import tir
else:
    from tvm import tirx as tir


def loop_of(var, trips):
    return SimpleNamespace(loop_var=var, extent=tir.const(trips, "int32"))


WAYS = {"Add": int.__add__, "Mul": int.__mul__, "FloorDiv": int.__floordiv__, "Div": int.__floordiv__,
        "FloorMod": int.__mod__, "Mod": int.__mod__}  # fmt: skip


def number(value, at):
    """Return an expression's value where its variable has one."""
    if (found := number_of(value)) is not None:
        return found
    return at if kind_of(value) == "Var" else WAYS[kind_of(value)](number(value.a, at), number(value.b, at))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(2, 5), st.integers(0, 40)), min_size=1, max_size=3))
def test_an_access_moves_with_each_digit_as_told(axes):
    var, index, below = tir.Var("chunk", "int32"), tir.const(7, "int32"), 1
    trips = prod(extent for extent, _ in axes)
    for n, (extent, stride) in enumerate(reversed(axes)):
        digit = tir.floordiv(var, below) if below > 1 else var
        index = index + (digit if n == len(axes) - 1 else tir.floormod(digit, extent)) * stride
        below *= extent
    start = sum_of(index, {}, set())
    found = axes_of(loop_of(var, trips), start, tir)
    assert prod(axis.extent for axis in found) == trips
    for at in range(trips):
        digits = [number(axis.value, at) for axis in found]
        assert 7 + sum(d * a.stride for d, a in zip(digits, found, strict=True)) == number(index, at)


def test_what_is_no_digit_tells_nothing():
    var = tir.Var("chunk", "int32")
    for index in (tir.min(var, 3), tir.floordiv(var * 2, 3), tir.floormod(var, 4) * 16):
        start = sum_of(index, {}, set())
        assert axes_of(loop_of(var, 6), start, tir) is None  # six trips are no fours
