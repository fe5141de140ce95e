"""Models that the fuzzer found to fail, shrunk; each with the answers of onnxruntime."""

import numpy as np
import pytest

pytest.importorskip("tvm")
pytestmark = pytest.mark.te

import roller_tvm  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

from .models import answers, model  # noqa: E402

RNG = np.random.default_rng(0)


def numbers(*shape, dtype="float32"):
    return RNG.uniform(-1, 1, shape).astype(dtype)


CASES = {
    # Packed weights of float64 became float32.
    "product of float64": (
        model([("MatMul", ["x", "w"], ["z"], {})], {"x": ("float64", [64, 7, 2])}, {"z": ("float64", [64, 7, 1])},
              {"w": numbers(64, 2, 1, dtype="float64")}), {"x": numbers(64, 7, 2, dtype="float64")}),
    # No plan of the variance's reduction could be applied, which the connection of tiles took for granted.
    "norm and gather": (
        model([("InstanceNormalization", ["x", "s", "b"], ["y"], {}), ("Gather", ["y", "i"], ["z"], {"axis": 4})],
              {"x": ("float32", [2, 31, 1, 1, 32])}, {"z": ("float32", [2, 31, 1, 1, 5])},
              {"s": numbers(31), "b": numbers(31), "i": np.array([3, 31, 0, 7, 7])}),
        {"x": numbers(2, 31, 1, 1, 32)}),
    "cumulative sum of nothing": (
        model([("CumSum", ["x", "axis"], ["z"], {})], {"x": ("float32", [0, 4])}, {"z": ("float32", [0, 4])},
              {"axis": np.array(0)}), {"x": numbers(0, 4)}),
    # The layout of a buffer named a variable that nobody binds.
    "cumulative sum of an open extent": (
        model([("CumSum", ["x", "axis"], ["z"], {})], {"x": ("float32", ["n", 4])}, {"z": ("float32", ["n", 4])},
              {"axis": np.array(0)}), {"x": numbers(5, 4)}),
}  # fmt: skip
#: Cases of the Relax line alone: the Relay line has no open extents.
RELAX = ("cumulative sum of an open extent",)


@pytest.mark.one_line
@pytest.mark.parametrize("name", CASES)
def test_found_by_the_fuzzer(name):
    if name in RELAX and line() != "relax":
        pytest.skip("the Relay line builds one shape")
    of, inputs = CASES[name]
    (wanted,) = answers(of, inputs)
    (got,) = roller_tvm.compile(of).run(inputs)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-10 if wanted.dtype == "float64" else 1e-4, atol=1e-6)
