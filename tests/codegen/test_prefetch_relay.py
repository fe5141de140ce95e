"""Weights asked for ahead of time: the same numbers, only within the context, and in all that builds."""

import re

import numpy as np
import pytest

pytestmark = [pytest.mark.tvm, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relay, te  # noqa: E402

from roller_tvm.relay import PrefetchPanels, build, tune  # noqa: E402

from ..relay.drop_in import built_by_drop_in  # noqa: E402

WIDE = "llvm -mcpu=core-avx2"
ROWS, PANELS, DEPTH, WIDTH = 6, 5, 24, 16


def asks(library):
    source = (library.get_lib() if hasattr(library, "get_lib") else library).get_source("ll")
    return len(re.findall(r"call void @llvm\.prefetch", source))


def test_what_is_written_is_not_asked_for():
    """Nobody has written the next panel of it yet."""
    b = te.placeholder((PANELS, DEPTH, WIDTH), "float32", "b")
    twice = te.compute(b.shape, lambda *at: b[at] * 2, "twice")
    k = te.reduce_axis((0, DEPTH), "k")
    c = te.compute((PANELS, ROWS, WIDTH), lambda p, i, j: te.sum(twice[p, k, j], k), "c")
    made = te.create_schedule(c.op)
    p, i, j = c.op.axis
    made[c].reorder(p, i, c.op.reduce_axis[0], j)
    made[c].vectorize(j)
    with PrefetchPanels():
        assert not asks(tvm.build(made, [b, c], WIDE))


def test_build_and_the_drop_in_have_it(tmp_path):
    rng = np.random.default_rng(2)
    x, w = relay.var("x", shape=(1, 8, 8, 256)), rng.standard_normal((1, 1, 256, 512)).astype("float32")
    conv = relay.nn.conv2d(x, relay.const(w), kernel_size=1, channels=512, data_layout="NHWC", kernel_layout="HWIO")
    mod = tvm.IRModule.from_expr(relay.Function([x], conv))
    log = tmp_path / "records.json"
    tune(mod, None, WIDE, str(log), trials=0)
    assert asks(build(mod, None, WIDE, str(log))) and not asks(build(mod, None, WIDE, str(log), prefetch=False))
    assert asks(built_by_drop_in(mod, log, WIDE)) and not asks(built_by_drop_in(mod, log, WIDE, prefetch=False))
