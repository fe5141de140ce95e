"""Register tiles on the stack: the same numbers, no workspace where a function is marked, and in all that builds."""

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax import build  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402
from roller_tvm.relax.rewrites import MARKS  # noqa: E402

from ..relax.networks import LLVM, module  # noqa: E402


def test_the_pipeline_marks_what_it_schedules():
    mod = module(lambda b, x: b.emit(relax.op.nn.softmax(x)), (64, 128))
    scheduled, _ = schedule(prepare(mod, LLVM), LLVM)
    funcs = [f for _, f in scheduled.functions_items() if type(f).__name__ == "PrimFunc"]
    assert funcs and all(MARKS["stack_tiles"] in f.attrs for f in funcs)


def test_a_model_built_and_its_answers():
    def body(builder, x, w):
        return builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, w))))

    mod = module(body, (48, 64), (64, 96))
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((48, 64), (64, 96)))
    found = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())["main"](x, w).numpy()
    np.testing.assert_allclose(found, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


def test_tensors_without_elements():
    mod = module(lambda b, x: b.emit(relax.op.nn.softmax(x)), (0, 32))
    empty = tvm.runtime.tensor(np.zeros((0, 32), "float32"))
    found = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())["main"](empty)
    assert found.numpy().shape == (0, 32)
