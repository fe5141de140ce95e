"""Fused kernels whose blocks do not wait, in OpenCL on PoCL: every operator in them against TVM's own loops of it."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = pytest.mark.relax

from tvm import relax, te  # noqa: E402

from roller_check import Checked  # noqa: E402
from roller_check.fused import OnPocl  # noqa: E402
from roller_check.relax_fused import check_fusion_on_pocl, own_loops  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import TargetError, WrongAnswer  # noqa: E402
from roller_tvm.rammer import fused_kernel, plan_graph  # noqa: E402
from roller_tvm.rammer.cuda_functions import CannotFuse  # noqa: E402
from roller_tvm.rammer.functions import Call, call_graph  # noqa: E402
from roller_tvm.relax import FuseRTasks  # noqa: E402
from roller_tvm.relax.rtask_functions import RFunctions  # noqa: E402
from roller_tvm.relax.targets import make_target  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from tests.relax.networks import LLVM, default, module, values  # noqa: E402
from tests.relax.test_fuse_rtasks import emulate  # noqa: E402

A100 = {"kind": "cuda", "arch": "sm_80"}


def call(name, operator, tensors, **params):
    return Call(name, te.create_prim_func(te_operator(operator, **params)), tensors)


def fused(calls, top=10):
    """(what checks it, the one part of the plan) of calls side by side."""
    functions = RFunctions(load_device("a100"), top)
    (part,) = plan_graph(call_graph(calls, functions), functions.device, "horizontal").parts
    assert part.horizontal and len(part.kernels) == len(calls)
    return OnPocl(functions, own_loops), part


def widths(witness, part, calls):
    """Threads of each kernel in a part; whether it has copies that run ahead."""
    by_name = {c.name: c for c in calls}
    launches = {n: witness.maker.code(by_name[n], k).host.launches for n, k in part.kernels}
    ahead = {n for n, k in part.kernels if any(p.choice("stages", 1) > 1 for p in k.plan.programs)}
    return {n: x * y * z for n, (one,) in launches.items() for x, y, z in [one.block]}, ahead


def conv(name, tensors, k):
    return call(name, "conv2d_nchw", tensors, n=1, c=8, h=14, w=14, f=8, kh=k, kw=k, padding=k // 2, relu=True)


def test_operators_of_one_width(pocl):
    """Equal functions of other tensors, by way of shared memory."""
    calls = [call(f"d{n}", "dense", ("x", f"w{n}", f"y{n}"), m=32, n=64, k=32) for n in range(3)]
    witness, part = fused(calls, top=2)
    made, _ = widths(witness, part, calls)
    kernel = witness.maker.fused("together", part, calls)
    assert len(set(made.values())) == 1 and "barrier(" in kernel.source and "rammer_live" not in kernel.source
    assert kernel.source.count("void together_") == 1
    checked = witness.check("together", part, calls)
    assert checked.elements == checked.of_elements == 3 * 32 * 64 and checked.kernels == 1
    assert checked.blocks == part.program.tasks and "by PoCL" in str(checked)


def test_operators_of_other_widths(pocl):
    """A convolution, another whose copies run ahead, a softmax with barriers of its own, one of single elements."""
    calls = [
        conv("one", ("x", "w1", "a"), 1), conv("three", ("x", "w3", "b"), 3),
        call("soft", "softmax", ("q", "y"), shape=(4, 64)),
        call("add", "add", ("s", "c", "z"), shape=(1, 8, 14, 14), other=(1, 8, 14, 14)),
    ]  # fmt: skip
    witness, part = fused(calls)
    made, ahead = widths(witness, part, calls)
    assert len(set(made.values())) > 2 and ahead
    assert "rammer_live" in witness.maker.fused("together", part, calls).source
    assert witness.check("together", part, calls).elements == 2 * 8 * 14 * 14 + 4 * 64 + 8 * 14 * 14


def test_blocks_of_another_operator_are_found(monkeypatch, pocl):
    """What the witness is for: each block of the second operator runs as its first."""
    calls = [call(f"d{n}", "dense", ("x", f"w{n}", f"y{n}"), m=32, n=64, k=32) for n in range(2)]
    witness, part = fused(calls, top=2)
    run = fused_kernel._run
    monkeypatch.setattr(fused_kernel, "_run", lambda m, n, block, *more: run(m, n, "0u" if n else block, *more))
    with pytest.raises(WrongAnswer, match="result 1: "):
        witness.check("together", part, calls)


def heads(builder, x):
    """Two rounds of independent products, and a sum."""
    def weight():
        return relax.const(values(16, 16))

    first = [builder.emit(relax.op.matmul(x, weight())) for _ in range(2)]
    second = [builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(f, weight())))) for f in first]
    return relax.op.add(*second)


def test_a_module(pocl):
    found = check_fusion_on_pocl(module(heads, (4, 16)), A100, top=2)
    assert "rtasks_0" in found and all(isinstance(r, Checked) for r in found.values()), found


def test_a_target_that_is_no_gpu():
    with pytest.raises(TargetError, match="fused kernels are a GPU's"):
        check_fusion_on_pocl(module(heads, (4, 16)), LLVM)


def test_the_same_policy_in_cuda(tmp_path):
    """Built as any model, executed by the emulator, compared with the whole model."""
    mod, x = module(heads, (4, 16)), values(4, 16)
    fuse = FuseRTasks(make_target(A100), policy="horizontal", top=2)
    (made,), _, fuse = emulate(mod, [(4, 16)], tmp_path, [[x]], fuse)
    np.testing.assert_allclose(made[0], default(mod, x)[0], rtol=1e-4, atol=1e-4)
    assert fuse.report.kernels and not any(kernel.resident for kernel in fuse.report.kernels.values())


def test_plans_that_wait_are_not_run(pocl):
    found = check_fusion_on_pocl(module(heads, (4, 16)), A100, policy="best", top=2)
    assert list(found) == ["rtasks_0"] and isinstance(found["rtasks_0"], CannotFuse)
    assert "its blocks wait for one another" in str(found["rtasks_0"])
