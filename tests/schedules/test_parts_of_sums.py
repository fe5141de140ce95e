"""Sums whose parts two launches write: right ones are proven, wrong ones are not."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax
if not hasattr(tvm, "tirx"):
    pytest.skip("written in the Relax line's script", allow_module_level=True)

from tvm.script import tirx as T  # noqa: E402

from .test_begins import answer  # noqa: E402


@T.prim_func(s_tir=True)
def summed(x: T.Buffer((48, 32), "float32"), y: T.Buffer((48,), "float32")):
    for i, k in T.grid(48, 32):
        with T.sblock("y"):
            v, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = T.float32(0)
            y[v] = y[v] + x[v, vk]


def halves(
    first=lambda p, b: p,
    second=lambda p, b: p,
    blocks=3,
    part=lambda p, b: p,
    row=lambda i: i,
    added=lambda p: p,
):
    """Return sums of four parts of eight terms.

    Parameters
    ----------
    first, second : function of (part, block)
        The terms of the parts that either launch computes.
    blocks : int
        Of the second launch.
    part, row : function
        Where it writes.
    added : function
        Parts that are added up.
    """

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(x: T.Buffer((48, 32), "float32"), y: T.Buffer((48,), "float32")):
        rf = T.alloc_buffer((4, 48), "float32")
        for block in T.thread_binding(3, thread="blockIdx.x"):
            for t in T.thread_binding(16, thread="threadIdx.x"):
                for p in range(2):
                    with T.sblock("y_rf_init"):
                        vp, v = T.axis.remap("SS", [p, t])
                        rf[vp, block * 16 + v] = T.float32(0)
                    for q in range(8):
                        with T.sblock("y_rf_update"):
                            vp, v, vq = T.axis.remap("SSR", [p, t, q])
                            rf[vp, block * 16 + v] = (
                                rf[vp, block * 16 + v] + x[block * 16 + v, first(vp, block) * 8 + vq]
                            )
        for block in T.thread_binding(blocks, thread="blockIdx.x"):
            for t in T.thread_binding(16, thread="threadIdx.x"):
                for p in range(2):
                    with T.sblock("y_rf_init"):
                        vp, v = T.axis.remap("SS", [p, t])
                        rf[part(vp + 2, block), row(block * 16 + v)] = T.float32(0)
                    for q in range(8):
                        with T.sblock("y_rf_update"):
                            vp, v, vq = T.axis.remap("SSR", [p, t, q])
                            rf[part(vp + 2, block), row(block * 16 + v)] = (
                                rf[part(vp + 2, block), row(block * 16 + v)]
                                + x[row(block * 16 + v), second(vp + 2, block) * 8 + vq]
                            )
        for i in T.thread_binding(48, thread="blockIdx.x"):
            with T.sblock("y_init"):
                v = T.axis.spatial(48, i)
                y[v] = T.float32(0)
            for p in range(4):
                with T.sblock("y_update"):
                    v, vp = T.axis.remap("SR", [i, p])
                    y[v] = y[v] + rf[added(vp), v]

    return func


@pytest.mark.parametrize("right", [
    halves(), halves(lambda p, b: p + 2, lambda p, b: p - 2),
    halves(part=lambda p, b: T.if_then_else(b == 1, 5 - p, p), second=lambda p, b: T.if_then_else(b == 1, 5 - p, p)),
    halves(lambda p, b: T.if_then_else(b == 1, p + 2, p), lambda p, b: T.if_then_else(b == 1, p - 2, p)),
    halves(row=lambda i: 47 - i),
], ids=["in order", "exchanged", "another place in a block", "exchanged in a block", "other rows"])  # fmt: skip
def test_parts_of_two_launches_are_proven(right):
    assert answer(right, summed, ()) == "proven"


@pytest.mark.parametrize("wrong", [
    halves(blocks=2), halves(second=lambda p, b: p - 2), halves(second=lambda p, b: T.if_then_else(b == 1, p - 2, p)),
    halves(lambda p, b: T.if_then_else(b == 1, p + 2, p), lambda p, b: T.if_then_else(b == 2, p - 2, p)),
    halves(part=lambda p, b: 2), halves(part=lambda p, b: p - 2), halves(row=lambda i: T.max(i, 1)),
    halves(added=lambda p: T.min(p, 2)),
], ids=["a block less", "the first's terms", "in one block", "exchanged in others", "one part", "the first's place",
        "a row twice", "a part twice"])  # fmt: skip
def test_wrong_parts_of_two_launches_are_not_proven(wrong):
    assert answer(wrong, summed, ()) != "proven"
