"""Nodes of either line, each known by itself."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.te

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.flat import address_of, direct_parts, number_of, remembering  # noqa: E402


def test_numbers_with_one_hash_are_two():
    """-1 and -2 have the same hash in Python."""
    tir = dialect_here().tir
    one, two = (tir.const(number, "int32") for number in (-1, -2))
    x = tir.Var("x", "int32")
    with remembering():
        assert address_of(one) != address_of(two)
        assert [number_of(n) for n in (one, two, one)] == [-1, -2, -1]
        assert [number_of(direct_parts(tir.Mul(x, n))[1]) for n in (one, two)] == [-1, -2]
