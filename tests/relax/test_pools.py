"""Pooling with windows of one element becomes its data; other pooling stays."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax.pipeline import build  # noqa: E402
from roller_tvm.relax.pools import PoolsOfPixels  # noqa: E402

from .networks import LLVM, module, run, values  # noqa: E402


def of(pool, shape=(1, 4, 5, 6), **options):
    return module(lambda builder, x: builder.emit(relax.op.nn.relu(builder.emit(pool(x, **options)))), shape)


@pytest.mark.parametrize("pool", [relax.op.nn.avg_pool2d, relax.op.nn.max_pool2d])
def test_windows_of_a_pixel(pool):
    mod, x = of(pool, pool_size=(1, 1), count_include_pad=True), values(1, 4, 5, 6) - np.float32(0.5)
    assert "pool" not in str(PoolsOfPixels()(mod))
    np.testing.assert_array_equal(run(build(mod, LLVM), x)[0], np.maximum(x, 0))


@pytest.mark.parametrize("options", [
    {"pool_size": (1, 2)}, {"pool_size": (1, 1), "strides": (2, 1)}, {"pool_size": (1, 1), "padding": (0, 1)},
    {"pool_size": (1, 1), "out_layout": "NHWC"},
])  # fmt: skip
def test_others_stay(options):
    assert "pool" in str(PoolsOfPixels()(of(relax.op.nn.max_pool2d, **options)))


def test_a_pool_that_is_the_whole_network():
    mod = module(lambda builder, x: builder.emit(relax.op.nn.avg_pool1d(x, 1)), (1, 4, 6))
    np.testing.assert_array_equal(run(build(mod, LLVM), x := values(1, 4, 6))[0], x)
