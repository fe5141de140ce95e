"""Shapes computed by numpy while ONNX is imported are what TVM's kernels would compute, and no kernel is compiled."""

import numpy as np
import pytest

pytest.importorskip("tvm.relay")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402
from tvm.relay.frontend.common import fold_constant  # noqa: E402

from roller_tvm.relay import from_onnx as importer  # noqa: E402
from roller_tvm.relay.folding import shared_constant_kernels  # noqa: E402
from roller_tvm.relay.shape_arithmetic import evaluated, shapes_by_numpy  # noqa: E402

from ..trust.models import model  # noqa: E402

A, B = relay.const(np.array([2, 1, 7])), relay.const(np.array([1, 5, 7]))


@pytest.mark.parametrize("expr", [
    relay.maximum(A, B), relay.minimum(A, B), A + B, A - B, A * B, relay.concatenate([A, B], 0),
    relay.strided_slice(A, [1], [3]), relay.strided_slice(A, [0], [9]),
    relay.concatenate([relay.maximum(relay.strided_slice(A, [0], [1]), relay.strided_slice(B, [0], [1])), B], 0),
])  # fmt: skip
def test_as_tvm_computes_it(expr):
    wanted, got = fold_constant(expr).data.numpy(), evaluated(expr)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("expr", [
    relay.var("x", shape=(3,), dtype="int64"), relay.const(np.float32([1])), relay.strided_slice(A, [-2], [3]),
    relay.strided_slice(A, [0], [3], [2]), relay.const(np.zeros(10_000, "int64")),
    relay.maximum(A, relay.const(1, "int64")),
])  # fmt: skip
def test_the_rest_is_left_to_tvm(expr):
    assert evaluated(expr) is None


@pytest.mark.parametrize("first", [A, relay.var("x", shape=(3,), dtype="int64")])
def test_nodes_that_are_read_twice_are_looked_at_once(first):
    """24 sums, each of the one before and itself: 2 ** 24 paths."""
    expr = first
    for _ in range(24):
        expr = expr + expr
    value = evaluated(expr)
    assert value is None if isinstance(first, relay.Var) else value.tolist() == [2 << 24, 1 << 24, 7 << 24]


def test_a_product_is_imported_without_a_kernel(monkeypatch):
    kernels = []

    def counted():
        with_counts = shared_constant_kernels()
        kernels.append(with_counts.__enter__())
        return _Left(with_counts)

    monkeypatch.setattr(importer, "shared_constant_kernels", counted)
    of = model([("MatMul", ["x", "y"], ["z"], {})], {"x": ("float32", [4, 3, 5, 7]), "y": ("float32", [3, 7, 2])},
               {"z": ("float32", [4, 3, 5, 2])})  # fmt: skip
    importer.from_onnx(of, {"x": (4, 3, 5, 7), "y": (3, 7, 2)})
    assert [one["compiled"] for one in kernels] == [0]


class _Left:
    """The context that was entered, left once."""

    def __init__(self, context):
        self.context = context

    def __enter__(self):
        return None

    def __exit__(self, *told):
        return self.context.__exit__(*told)


def test_tvm_s_importer_is_left_as_it_was():
    from tvm.relay.frontend import onnx

    before = onnx.fold_constant
    with shapes_by_numpy():
        assert onnx.fold_constant is not before
    assert onnx.fold_constant is before
