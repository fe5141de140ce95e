"""Weights asked for ahead of time: the same numbers, where a function is marked, in all that builds."""

import re
from math import ceil
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.codegen.rewrites.prefetch_panels import ROUNDS, _in_all_passes  # noqa: E402
from roller_tvm.relax import build  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402
from roller_tvm.relax.rewrites import MARKS  # noqa: E402

from ..relax.networks import LLVM, module  # noqa: E402
from ..relax.test_hard_to_build import code_of  # noqa: E402


def asks(text):
    return len(re.findall(r"call void @llvm\.prefetch", text))


def test_the_pipeline_marks_what_it_schedules_and_what_it_builds_asks():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((64, 256)).astype("float32"), rng.standard_normal((256, 512)).astype("float32")
    mod = module(lambda b, v: b.emit(relax.op.matmul(v, relax.const(w))), (64, 256))
    scheduled, _ = schedule(prepare(mod, LLVM), LLVM)
    funcs = [f for _, f in scheduled.functions_items() if type(f).__name__ == "PrimFunc"]
    assert funcs and all(MARKS["prefetch"] in f.attrs for f in funcs)
    made = build(mod, LLVM)
    np.testing.assert_allclose(relax.VirtualMachine(made, tvm.cpu())["main"](x).numpy(), x @ w, rtol=1e-4, atol=1e-4)
    assert asks(code_of(scheduled))


def test_kernels_of_an_open_number_of_rows_ask_in_their_passes():
    rng = np.random.default_rng(4)
    w = rng.standard_normal((256, 768)).astype("float32")
    mod = module(lambda b, v: b.emit(relax.op.matmul(v, relax.const(w))), (tvm.tirx.Var("n", "int64"), 256))
    scheduled, _ = schedule(prepare(mod, LLVM), LLVM)
    assert asks(code_of(scheduled))
    machine = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())
    for rows in (1, 2, 3, 7, 8, 9, 15, 17, 64):
        x = rng.standard_normal((rows, 256)).astype("float32")
        np.testing.assert_allclose(machine["main"](x).numpy(), x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wide, trips", [(48, 10), (64, 7), (16, 3)])
def test_all_passes_of_an_open_number_ask_for_all_of_a_panel(wide, trips):
    """A trip asks for as many lines as those of the fewest passes need; passes beyond the panel ask for nothing new."""
    tir, size = tvm.tirx, wide * trips
    lines = ceil(ceil(wide / ROUNDS) / 16)

    def const(value):
        return tir.const(value, "int64")

    for passes in (1, 2, ROUNDS, 5, wide - 1, wide, wide + 1, 3 * wide):
        starts = [
            int(tvm.sym.Analyzer().simplify(_in_all_passes(
                SimpleNamespace(loop_var=const(n), extent=const(passes)), const(trip), size, trips, tir
            )))
            for n in range(passes) for trip in range(trips)
        ]  # fmt: skip
        asked = {start + more for start in starts for more in range(16 * lines)}
        assert min(starts) == 0 and max(starts) < 2 * size
        assert passes < ROUNDS or asked >= set(range(size))


def test_weights_that_stream_through_ask_ahead_and_those_that_caches_keep_do_not():
    rng = np.random.default_rng(3)
    for size, streams in ((128, False), (512, True)):  # 64 KiB and 1 MiB of weights
        x, w = (rng.standard_normal(shape).astype("float32") for shape in ((1, size), (size, size)))
        mod = module(lambda b, v, w=w: b.emit(relax.op.matmul(v, relax.const(w))), (1, size))
        made = build(mod, LLVM)
        np.testing.assert_allclose(
            relax.VirtualMachine(made, tvm.cpu())["main"](x).numpy(), x @ w, rtol=1e-4, atol=1e-4
        )
        assert bool(asks(code_of(schedule(prepare(mod, LLVM), LLVM)[0]))) == streams
