"""Weights asked for ahead of time: the same numbers, only within the context, and in all that builds."""

import re

import numpy as np
import pytest

pytestmark = pytest.mark.tvm
tvm = pytest.importorskip("tvm")

from tvm import relay, te  # noqa: E402

from roller_tvm.relay import PrefetchPanels, WideIndices, build, tune  # noqa: E402

from .drop_in import built_by_drop_in  # noqa: E402

WIDE = "llvm -mcpu=core-avx2"
ROWS, PANELS, DEPTH, WIDTH = 6, 5, 24, 16


def product(order):
    """Rows times packed weights: panels of 16 columns."""
    a = te.placeholder((ROWS, DEPTH), "float32", "a")
    b = te.placeholder((PANELS, DEPTH, WIDTH), "float32", "b")
    k = te.reduce_axis((0, DEPTH), "k")
    c = te.compute((PANELS, ROWS, WIDTH), lambda p, i, j: te.sum(a[i, k] * b[p, k, j], k), "c")
    made = te.create_schedule(c.op)
    p, i, j = c.op.axis
    loops = {"p": p, "i": i, "k": c.op.reduce_axis[0]}
    made[c].reorder(*(loops[name] for name in order), j)
    made[c].vectorize(j)
    return made, [a, b, c]


def asks(library):
    source = (library.get_lib() if hasattr(library, "get_lib") else library).get_source("ll")
    return len(re.findall(r"call void @llvm\.prefetch", source))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("order, wanted", [("pik", True), ("ipk", False)])
def test_the_numbers_are_the_same(order, wanted, wide):
    rng = np.random.default_rng(1)
    a, b = rng.random((ROWS, DEPTH), "float32"), rng.random((PANELS, DEPTH, WIDTH), "float32")
    answers = []
    for on in (False, True):
        out = tvm.nd.array(np.full((PANELS, ROWS, WIDTH), 7, "float32"))
        with PrefetchPanels(on), WideIndices(wide):
            library = tvm.build(*product(order), WIDE)
        library(tvm.nd.array(a), tvm.nd.array(b), out)
        answers.append(out.numpy())
        assert bool(asks(library)) == (on and wanted)
    np.testing.assert_array_equal(*answers)
    np.testing.assert_allclose(answers[0], np.einsum("ik,pkj->pij", a, b), rtol=1e-5)


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
