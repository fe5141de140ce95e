"""Products on tensor cores and pipelines of copies, executed: numbers, shared memory as predicted, traces replayed."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")  # numpy's bfloat16
tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import s_tir, te  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.lower import lower  # noqa: E402
from roller_tvm.plan import construct  # noqa: E402
from roller_tvm.plan.features import Features  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tir import apply_steps_tir, read_prim_func  # noqa: E402
from roller_tvm.tir.emulated import emulated_function  # noqa: E402

DEVICE = load_device("a100")
FEATURES = Features.of_tensor_ir(DEVICE)


def product(m, n, k, left_turned=False, right_turned=False, batch=0, dtype="float16", sums="float32", epilogue=False):
    """A product of matrices in any of the orders in which they lie in memory, with bias, relu and a cast after it."""
    lead = (batch,) if batch else ()
    a = te.placeholder(lead + ((k, m) if left_turned else (m, k)), dtype, "A")
    b = te.placeholder(lead + ((k, n) if right_turned else (n, k)), dtype, "B")
    r = te.reduce_axis((0, k), "k")

    def term(*index):
        *z, i, j = index
        left, right = a[(*z, r, i) if left_turned else (*z, i, r)], b[(*z, r, j) if right_turned else (*z, j, r)]
        return te.sum(left * right if sums == dtype else left.astype(sums) * right.astype(sums), axis=r)

    c = te.compute((*lead, m, n), term, name="C")
    if not epilogue:
        return [a, b, c]
    bias = te.placeholder((n,), sums, "bias")
    d = te.compute((*lead, m, n), lambda *i: c[i] + bias[i[-1]], name="D")
    e = te.compute((*lead, m, n), lambda *i: te.max(d[i], 0.0).astype(dtype), name="E")
    return [a, b, bias, e]


def half(name, **params):
    return te_operator(name, **params, dtype="float16")


CASES = {
    "rows and columns": lambda: product(64, 64, 128, right_turned=True),
    "both along the sum": lambda: product(64, 64, 128),
    "both turned": lambda: product(64, 64, 64, left_turned=True, right_turned=True),
    "sums of halves": lambda: product(32, 64, 64, sums="float16"),
    "nothing divides, epilogue": lambda: product(50, 72, 40, epilogue=True),
    "batches": lambda: product(32, 32, 64, batch=3, epilogue=True),
    "bfloat16": lambda: product(48, 64, 64, left_turned=True, dtype="bfloat16"),
    "bytes": lambda: product(64, 32, 256, dtype="int8", sums="int32"),
    "bytes, nothing divides": lambda: product(40, 20, 48, dtype="int8", sums="int32"),
    "conv nhwc": lambda: half("conv2d_nhwc", n=1, c=32, h=9, w=9, f=32, kh=3, kw=3, padding=1, stride=2),
    "conv nchw": lambda: half("conv2d_nchw", n=2, c=16, h=7, w=9, f=24, kh=3, kw=3, padding=1, bias=True, relu=True),
    "conv 1x1": lambda: half("conv2d_nchw", n=2, c=32, h=8, w=8, f=48, kh=1, kw=1, padding=0),
}


def on_tensor_cores(func, reading, **choices):
    """The best plan on tensor cores, with choices of its program changed."""
    found = construct(reading.expression, DEVICE, 60, FEATURES).plans
    ranked = next(r for r in found if [p.recipe for p in r.plan.programs] == ["gpu.tensor"])
    (program,) = ranked.plan.programs
    changed = replace(program, choices=tuple({**dict(program.choices), **choices}.items()))
    return ranked, apply_steps_tir(func, reading, lower(replace(ranked.plan, programs=(changed,))))


def inputs_of(tensors):
    rng = np.random.default_rng(0)
    shapes = [([int(e) for e in t.shape], str(t.dtype)) for t in tensors[:-1]]
    return [
        rng.standard_normal(shape).astype(dtype) if "float" in dtype else rng.integers(-9, 9, shape).astype(dtype)
        for shape, dtype in shapes
    ]


def expected(func, tensors, inputs):
    """By TVM's own loops on the CPU."""
    out = tensors[-1]
    result = tvm.runtime.tensor(np.zeros([int(e) for e in out.shape], str(out.dtype)))
    tvm.compile(tvm.IRModule({"main": func}), {"kind": "llvm"})(*map(tvm.runtime.tensor, inputs), result)
    return result.numpy().astype("float64")


def agree(got, wanted, dtype, sums):
    # Sums in another order: of halves they lose three digits, and results in halves have no more.
    tolerance = 1e-2 if "float16" in (dtype, sums) else 1e-5
    assert np.abs(got.astype("float64") - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_shared_memory(name):
    tensors = CASES[name]()
    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    ranked, schedule = on_tensor_cores(func, reading)
    function = emulated_function(schedule.mod, "sm_80")
    (launch,) = function.launches
    (predicted,) = ranked.estimate.programs
    assert (np.prod(launch.grid), np.prod(launch.block)) == (predicted.blocks, predicted.threads)
    inputs = inputs_of(tensors)
    (out,) = function.run(inputs)
    agree(out, expected(func, tensors, inputs), str(out.dtype), reading.expression.anchor.dtype)
    if ranked.plan.programs[0].choice("dynamic"):
        assert launch.dynamic_shared == predicted.shared_bytes


def test_instructions_in_the_source():
    tensors = CASES["rows and columns"]()
    func = te.create_prim_func(tensors)
    _, schedule = on_tensor_cores(func, read_prim_func(func), stages=3)
    source = tvm.compile(schedule.mod, target=tvm.target.Target({"kind": "cuda", "arch": "sm_80"}).with_host("llvm"))
    text = source.mod.imports[0].inspect_source()
    assert all(word in text for word in ("mma.sync", "ldmatrix", "cp.async.c", "cp.async.wait_group"))


def test_bands_of_blocks():
    tensors = product(128, 64, 64)
    func = te.create_prim_func(tensors)
    _, schedule = on_tensor_cores(func, read_prim_func(func), raster=2)
    inputs = inputs_of(tensors)
    (out,) = emulated_function(schedule.mod, "sm_80").run(inputs)
    agree(out, expected(func, tensors, inputs), "float32", "float32")


def test_a_trace_replays():
    func = te.create_prim_func(CASES["nothing divides, epilogue"]())
    _, schedule = on_tensor_cores(func, read_prim_func(func))
    again = s_tir.Schedule(func)
    s_tir.schedule.Trace.apply_json_to_schedule(schedule.trace.as_json(), again)
    tvm.ir.assert_structural_equal(schedule.mod, again.mod)


@pytest.mark.parametrize("name", ["matmul", "conv"])
def test_staged_tiles_run_ahead(name):
    """gpu.tiled with several buffers: the same numbers, shared memory for all of them."""
    params = dict(m=128, n=128, k=256) if name == "matmul" else dict(n=1, c=64, h=14, w=14, f=64, kh=3, kw=3, padding=1)
    tensors = te_operator("matmul" if name == "matmul" else "conv2d_nchw", **params)
    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    found = construct(reading.expression, DEVICE, 20, FEATURES).plans
    ranked = next(r for r in found if [p.choice("stages") > 1 for p in r.plan.programs] == [True])
    function = emulated_function(apply_steps_tir(func, reading, lower(ranked.plan)).mod, "sm_80")
    inputs = inputs_of(tensors)
    (out,) = function.run(inputs)
    agree(out, expected(func, tensors, inputs), "float32", "float32")
    assert [launch.dynamic_shared for launch in function.launches] == [p.shared_bytes for p in ranked.estimate.programs]
