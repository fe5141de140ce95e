"""Graphs of PrimFuncs as fused kernels, executed by the emulator with all blocks interleaved."""

import re

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import te  # noqa: E402

from roller_check import Function, compile_source  # noqa: E402
from roller_tvm.codegen.host_code import BufferSpec, HostCode, Launch  # noqa: E402
from roller_tvm.codegen.host_code_tensorir import generated  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.rammer.cuda_functions import CannotFuse  # noqa: E402
from roller_tvm.rammer.functions import Call  # noqa: E402
from roller_tvm.rammer.fused_kernel import FusedKernel  # noqa: E402
from roller_tvm.rammer.launch_bounds import Bounds  # noqa: E402
from roller_tvm.rammer.makers import KernelMaker  # noqa: E402
from roller_tvm.relax.fused_function import fused_function  # noqa: E402
from roller_tvm.relax.rtask_functions import RFunctions  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tir.nodes import parameters  # noqa: E402
from roller_tvm.tir.read import read_prim_func  # noqa: E402
from tests.rammer.calls import fuse_calls  # noqa: E402

A100 = load_device("a100")


def call(name, operator, tensors, **params):
    return Call(name, te.create_prim_func(te_operator(operator, **params)), tensors)


class Kernels:
    """A graph of calls as kernels, in the plan's order; the operators of parts that are not fused by their own."""

    def __init__(self, calls, kept=(), policy="best", top=10):
        maker = KernelMaker(RFunctions(A100, top, target="sm_80"), policy)
        (region,), fused = fuse_calls(calls, maker, kept)
        self.plan, self.refused, self.launches = region.plan, region.refused, region.plan.launches
        by_name, made = {c.name: c for c in calls}, {one.symbol: one.made for one in fused}
        self.kernels = []
        for part, name in zip(region.plan.parts, region.functions, strict=True):
            self.kernels += [made[name]] if name else [maker.code(by_name[o], k) for o, k in part.kernels]

    def run(self, values, order=None):
        """Every kernel in turn; what it writes joins the values."""
        for one in self.kernels:
            function = Function.of(compile_source(one.source), one.host)
            fused = isinstance(one, FusedKernel)
            names = [p.name for p in function.parameters] if fused else one.buffers
            arrays = [values.get(n) for n in names]
            blocks = order(function.blocks) if fused and order else None
            results = iter(function.run(arrays, blocks=blocks))
            values |= {n: next(results) for n, a in zip(names, arrays, strict=True) if a is None}


def reference(calls, values: dict[str, np.ndarray]) -> None:
    for one in calls:
        arrays = [values[t] for t in one.tensors[:-1]]
        shape = [int(e) for e in parameters(one.func)[-1].shape]
        out = tvm.runtime.tensor(np.zeros(shape, "float32"))
        tvm.compile(tvm.IRModule({"main": one.func}), {"kind": "llvm"})(*map(tvm.runtime.tensor, arrays), out)
        values[one.tensors[-1]] = out.numpy()


def compare(calls, given, kept):
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(s).astype("float32") for n, s in given.items()}
    expected = dict(values)
    fused = Kernels(calls)
    fused.run(values)
    reference(calls, expected)
    for name in kept:
        np.testing.assert_allclose(values[name], expected[name], rtol=1e-4, atol=1e-4)
    return fused


@pytest.mark.parametrize("bounds, said", [(Bounds(640), "128, 5"), (Bounds(128, 5), "128, 5"), (Bounds(128), "128")])
def test_launch_bounds_as_far_as_tensor_ir_can_say_them(bounds, said):
    """How many threads a larger block would have it cannot: then it asks for room for all blocks of a unit."""
    spec = BufferSpec("x", (128,), "float32")
    source = f'extern "C" __global__ void __launch_bounds__({bounds}) k(float* b0) {{ b0[threadIdx.x] = 0.0f; }}'
    host = HostCode((spec,), (), (Launch("k", ("x",), (8, 1, 1), (128, 1, 1)),))
    func = fused_function("rtasks_0", FusedKernel(source, host, 0, 5, bounds), "sm_80", [spec])
    assert set(re.findall(r"__launch_bounds__\(([^)]*)\)", generated(func, "sm_80")[0])) == {said}


def test_branches_of_convolutions():
    """An Inception cell in small: branches that share the device, one of them two convolutions long, added up."""
    def conv(name, tensors, c, k):
        return call(name, "conv2d_nchw", tensors, n=1, c=c, h=14, w=14, f=16, kh=k, kw=k, padding=k // 2, relu=True)

    calls = [
        conv("one", ("x", "w1", "a"), 16, 1), conv("three", ("x", "w3", "b"), 16, 3),
        conv("reduce", ("x", "w0", "c0"), 16, 1), conv("again", ("c0", "w4", "c"), 16, 3),
        call("add0", "add", ("a", "b", "s"), shape=(1, 16, 14, 14), other=(1, 16, 14, 14)),
        call("add1", "add", ("s", "c", "y"), shape=(1, 16, 14, 14), other=(1, 16, 14, 14)),
    ]  # fmt: skip
    weights = {f"w{n}": (16, 16, k, k) for n, k in ((0, 1), (1, 1), (3, 3), (4, 3))}
    fused = compare(calls, {"x": (1, 16, 14, 14)} | weights, ("y",))
    assert not fused.refused
    assert fused.launches <= fused.plan.sequential_launches // 3
    assert any(isinstance(code, FusedKernel) and code.resident for code in fused.kernels)


def test_dense_layers_side_by_side_then_softmax():
    """Attention's projections: three products, whose sums may be split in parts, and a softmax of one of them."""
    calls = [call(n, "dense", ("x", f"w{n}", n), m=4, n=64, k=256) for n in ("q", "k", "v")]
    calls.append(call("soft", "softmax", ("q", "y"), shape=(4, 64)))
    fused = compare(calls, {"x": (4, 256), "wq": (64, 256), "wk": (64, 256), "wv": (64, 256)}, ("y", "k", "v"))
    assert fused.launches < fused.plan.sequential_launches


def chain(sizes):
    """Products in a row, one function."""
    given = [te.placeholder((128, sizes[0]), name="x")]
    out = given[0]
    for n, (depth, width) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        given.append(te.placeholder((depth, width), name=f"w{n}"))
        out = te_product(out, given[-1], te.reduce_axis((0, depth), name="k"), f"y{n}")
    return te.create_prim_func([*given, out])


def te_product(a, b, k, name):
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=name)


def test_results_that_tvm_keeps_in_one_memory_are_not_fused():
    """Of four products in a row the third goes where the first was, of which other tiles may still read."""
    maker = KernelMaker(RFunctions(A100, target="sm_80"))
    for sizes, told in (((64, 32, 64, 48, 64), "the 3 results between its kernels in 2 buffers"), ((64, 32, 64), "")):
        tensors = ("x", *(f"w{n}" for n in range(len(sizes) - 1)), "y")
        one = Call("chain", chain(sizes), tensors)
        kernel = next(k for k in maker.functions.of(one.func).kernels if len(k.phases) == len(sizes) - 1)
        if told:
            with pytest.raises(CannotFuse, match=told):
                maker.code(one, kernel)
        else:
            assert len(maker.code(one, kernel).host.between) == 1


def test_what_writes_otherwise_than_axis_by_axis_is_scheduled_and_not_fused():
    x = te.placeholder((8, 16), name="x")
    func = te.create_prim_func([x, te.compute((8, 16), lambda i, j: x[i, j] * 2.0, name="y")])
    schedule = tvm.s_tir.Schedule(func)
    schedule.transform_layout(schedule.get_sblock("y"), ("write", 0), lambda i, j: [j, i])
    turned = schedule.mod["main"]
    assert read_prim_func(turned).elsewhere
    with pytest.raises(UnsupportedOperator, match="by axes"):
        RFunctions(A100).of(turned, "turned")
