"""Products on tensor cores and pipelines of copies, executed: numbers, shared memory as predicted, traces replayed."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")  # numpy's bfloat16
tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import s_tir, te, topi  # noqa: E402

from roller_check.relax_plans import emulated_function  # noqa: E402
from roller_tvm.codegen import find_compilers  # noqa: E402
from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.explain import explain  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relax.cuda import check_resources  # noqa: E402
from roller_tvm.roller.features import Features  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402

from ..sampling import sampled  # noqa: E402

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


def pixels(c, h, w, f, k, dtype="float16", padding=0):
    """A convolution summed in float32, with pairs of pixels in rows of an even length."""
    data, weight = te.placeholder((2, c, h, w), dtype, "data"), te.placeholder((f, c, k, k), dtype, "weight")
    out = topi.nn.conv(data, weight, 1, [padding] * 4, 1, 1, "NCHW", out_dtype="float32")
    return [data, weight, topi.cast(out, "float16" if dtype == "float16" else "float32")]


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
    "pairs of pixels": lambda: pixels(32, 8, 8, 48, 1),
    "pairs of pixels, nothing divides": lambda: pixels(24, 7, 10, 20, 3, padding=1),
    "pairs of pixels, bfloat16": lambda: pixels(16, 6, 6, 24, 3, "bfloat16", padding=1),
    "conv 1x1": lambda: half("conv2d_nchw", n=2, c=32, h=8, w=8, f=48, kh=1, kw=1, padding=0),
}


def on_tensor_cores(func, reading, features=FEATURES, **choices):
    """The best plan on tensor cores, with choices of its program changed."""
    found = construct(reading.expression, DEVICE, 60, features).plans
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


@pytest.mark.parametrize("name", sampled(CASES, 6))
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


#: float32 read as tf32, as a user may allow.
ROUNDED = {
    "rows and columns": lambda: product(64, 48, 64, right_turned=True, dtype="float32"),
    "both along the sum": lambda: product(48, 64, 64, dtype="float32"),
    "left turned": lambda: product(64, 64, 32, left_turned=True, dtype="float32"),
    "both turned": lambda: product(64, 64, 64, left_turned=True, right_turned=True, dtype="float32"),
    "nothing divides, epilogue": lambda: product(50, 72, 40, dtype="float32", epilogue=True),
    "batches": lambda: product(32, 32, 64, batch=3, dtype="float32"),
    "conv nhwc": lambda: te_operator("conv2d_nhwc", n=1, c=32, h=9, w=9, f=32, kh=3, kw=3, padding=1, stride=2),
    "conv nchw": lambda: te_operator("conv2d_nchw", n=2, c=16, h=7, w=9, f=24, kh=3, kw=3, padding=1, relu=True),
}


def to_tf32(x):
    """To the nearest with ten bits of fraction, ties away from zero."""
    return ((x.view("uint32") + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view("float32")


@pytest.mark.parametrize("name", sampled(ROUNDED, 6, 1))
def test_float32_as_tf32(name):
    """Operands are rounded, not cut off, and summed in float32: as exact as a product of the rounded operands."""
    tensors = ROUNDED[name]()
    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    ranked, schedule = on_tensor_cores(func, reading, replace(FEATURES, tf32=True))
    inputs = inputs_of(tensors)
    function = emulated_function(schedule.mod, "sm_80")
    (out,) = function.run(inputs)
    rounded = [to_tf32(array) if n < 2 else array for n, array in enumerate(inputs)]
    agree(out, expected(func, tensors, rounded), "float32", "float32")
    exact = expected(func, tensors, inputs)
    assert 1e-5 < np.abs(out - exact).max() / np.abs(exact).max() < 2e-3
    assert function.launches[0].dynamic_shared == ranked.estimate.programs[0].shared_bytes


def test_tf32_keeps_what_is_not_finite():
    tensors = product(16, 16, 32, dtype="float32")
    func = te.create_prim_func(tensors)
    _, schedule = on_tensor_cores(func, read_prim_func(func), replace(FEATURES, tf32=True))
    left, right = inputs_of(tensors)
    left[0, 0], left[1, 0], right[:, 0] = np.inf, np.nan, 1.0
    (out,) = emulated_function(schedule.mod, "sm_80").run([left, right])
    assert np.isposinf(out[0]).all() and np.isnan(out[1]).all() and np.isfinite(out[2:]).all()


def test_float32_stays_float32_where_nobody_allowed_otherwise():
    reading = read_prim_func(te.create_prim_func(product(512, 512, 512, dtype="float32")))
    for features, recipe in ((FEATURES, "gpu.tiled"), (replace(FEATURES, tf32=True), "gpu.tensor")):
        ranked = construct(reading.expression, DEVICE, 1, features).plans[0]
        assert [p.recipe for p in ranked.plan.programs] == [recipe]
        assert "TFLOP/s" in explain(ranked, DEVICE)


@pytest.mark.skipif(not find_compilers(), reason="needs a CUDA compiler")
@pytest.mark.parametrize("arch, device", [("sm_80", "a100"), ("sm_90", "h100")])
def test_tf32_kernels_take_what_was_predicted(arch, device):
    spec = load_device(device)
    func = te.create_prim_func(product(512, 512, 256, right_turned=True, dtype="float32"))
    reading = read_prim_func(func)
    ranked = construct(reading.expression, spec, 1, Features.of_tensor_ir(spec, tf32=True)).plans[0]
    checked = check_resources(ranked.plan, ranked.estimate, func, reading, [arch], device=spec)
    (kernel,), (predicted,) = checked.kernels(arch), ranked.estimate.programs
    assert kernel.local_bytes == 0 and kernel.shared_bytes == predicted.shared_bytes
    assert predicted.registers >= 0.7 * kernel.registers
    assert "m16n8k8.row.col.f32.tf32.tf32.f32" in checked.source and "cvt.rna.tf32" in checked.source


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
@pytest.mark.nightly
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
