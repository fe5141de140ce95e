"""Weights asked for ahead of time: the same numbers, where a function is marked, in all that builds."""

import re

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, te  # noqa: E402

from roller_tvm.relax import PrefetchPanels, build  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402
from roller_tvm.relax.prefetch import MARK  # noqa: E402

from .networks import LLVM, module  # noqa: E402

WIDE = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2}
ROWS, PANELS, DEPTH, WIDTH = 6, 5, 24, 16


def product(order, packed=True):
    """Rows times packed weights: panels of 16 columns."""
    a = te.placeholder((ROWS, DEPTH), "float32", "a")
    b = te.placeholder((PANELS, DEPTH, WIDTH), "float32", "b")
    k = te.reduce_axis((0, DEPTH), "k")
    c = te.compute((PANELS, ROWS, WIDTH), lambda p, i, j: te.sum(a[i, k] * b[p, k, j], k), "c")
    sch = tvm.s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("c")
    p, i, j, k = sch.get_loops(block)
    sch.reorder(*({"p": p, "i": i, "k": k}[name] for name in order), j)
    sch.vectorize(j)
    sch.decompose_reduction(block, k)
    return tvm.IRModule({"main": sch.mod["main"].with_attr("global_symbol", "main")})


def built(mod, on):
    return tvm.compile(tvm.transform.Sequential([PrefetchPanels()])(mod) if on else mod, WIDE)


def asks(library):
    kernels = library.mod.imports[0] if isinstance(library, relax.VMExecutable) else library.mod
    return len(re.findall(r"call void @llvm\.prefetch", kernels.inspect_source("ll")))


@pytest.mark.parametrize("order, wanted", [("pik", True), ("ipk", False)])
def test_the_numbers_are_the_same(order, wanted):
    mod, rng = product(order), np.random.default_rng(1)
    a, b = rng.random((ROWS, DEPTH), "float32"), rng.random((PANELS, DEPTH, WIDTH), "float32")
    answers = []
    for on in (False, True):
        library, out = built(mod, on), tvm.runtime.tensor(np.full((PANELS, ROWS, WIDTH), 7, "float32"))
        library["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
        answers.append(out.numpy())
        assert bool(asks(library)) == (on and wanted)
    np.testing.assert_array_equal(*answers)
    np.testing.assert_allclose(answers[0], np.einsum("ik,pkj->pij", a, b), rtol=1e-5)


def test_the_pipeline_marks_what_it_schedules_and_what_it_builds_asks():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((64, 256)).astype("float32"), rng.standard_normal((256, 512)).astype("float32")
    mod = module(lambda b, v: b.emit(relax.op.matmul(v, relax.const(w))), (64, 256))
    scheduled, _ = schedule(prepare(mod, LLVM), LLVM)
    funcs = [f for _, f in scheduled.functions_items() if type(f).__name__ == "PrimFunc"]
    assert funcs and all(MARK in f.attrs for f in funcs)
    made = build(mod, LLVM)
    np.testing.assert_allclose(relax.VirtualMachine(made, tvm.cpu())["main"](x).numpy(), x @ w, rtol=1e-4, atol=1e-4)
    assert asks(made)
