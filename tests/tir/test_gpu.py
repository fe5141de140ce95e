"""Each GPU recipe through TensorIR: as many kernels, blocks, threads and bytes as planned, and the right numbers."""

import re
from math import prod

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import s_tir, te  # noqa: E402

from roller_check.relax_plans import emulated_function  # noqa: E402
from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.codegen.host_code_tensorir import generated  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import MeasureError  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.recipes import gpu_tile_candidates  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402

from ..te.every_operator import CONVOLUTIONS  # noqa: E402

# Operator, arguments, a recipe that is to be among its plans.
OPERATORS = {
    "staged": ("matmul", dict(m=125, n=64, k=128), "gpu.tiled"),
    "staged, epilogue": ("matmul", dict(m=64, n=96, k=64, layout="NT", bias=True, relu=True), "gpu.tiled"),
    "staged, padding in place": (
        "conv2d_nchw", dict(n=2, c=16, h=14, w=14, f=32, kh=3, kw=3, stride=1, padding=1, relu=True), "gpu.tiled"),
    "rows cut by vectors": ("conv2d_nchw", dict(n=2, c=64, h=14, w=14, f=64, kh=1, kw=1), "gpu.tiled"),
    "sums in parts": ("matmul", dict(m=16, n=32, k=1024), "gpu.reduce"),
    "windows in parts": ("conv2d_nchw", dict(n=1, c=256, h=7, w=7, f=32, kh=3, kw=3, padding=1), "gpu.direct"),
    "direct": ("max_pool2d", dict(n=2, c=16, h=28, w=28, k=3, stride=2, padding=1), "gpu.direct"),
    "reduction": ("reduce_sum", dict(shape=(64, 4096), axis=(1,)), "gpu.reduce"),
    "rows": ("softmax", dict(shape=(64, 1024)), "gpu.rows"),
    "transpose": ("transpose", dict(shape=(640, 60), perm=(1, 0)), "gpu.transpose"),
}  # fmt: skip
BYTES = {"float": 4, "half": 2, "int": 4}


def shared_bytes(source):
    """Of each kernel, what its arrays in shared memory are declared with."""
    kernels = re.split(r'extern "C" __global__ void [^;{]*\{', source)[1:]
    arrays = [re.findall(r"__shared__ alignas\(\d+\) (\w+) \w+\[(\d+)\]", text) for text in kernels]
    return [sum(int(count) * BYTES[kind] for kind, count in found) for found in arrays]


@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_are_as_planned(name):
    operator, params, recipe = OPERATORS[name]
    tensors = te_operator(operator, **params)
    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    plans = construct(reading.expression, load_device("h200"), 40).plans
    ranked = next(r for r in plans if recipe in [p.recipe for p in r.plan.programs])
    schedule = apply_steps_tir(func, reading, lower(ranked.plan))
    source, host = generated(schedule)
    predicted = ranked.estimate.programs
    found = [(prod(launch.grid), prod(launch.block)) for launch in host.launches]
    assert found == [(p.blocks, p.threads) for p in predicted]
    assert shared_bytes(source) == [p.shared_bytes for p in predicted]
    if name.startswith("staged, epilogue"):
        assert source.count("*(float4*)") == 4, "both tiles are fetched and kept in vectors"
    again = s_tir.Schedule(func)
    s_tir.schedule.Trace.apply_json_to_schedule(schedule.trace.as_json(), again)
    tvm.ir.assert_structural_equal(schedule.mod, again.mod)

    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([int(e) for e in t.shape]).astype("float32") for t in tensors[:-1]]
    (out,) = emulated_function(schedule).run(inputs)
    expected = tvm.runtime.tensor(np.zeros(out.shape, "float32"))
    tvm.compile(tvm.IRModule({"main": func}), {"kind": "llvm"})(*map(tvm.runtime.tensor, inputs), expected)
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_transforms_are_unrolled_and_initial_values_stand_before_sums():
    tensors = CONVOLUTIONS["conv2d winograd"]()
    func = te.create_prim_func(list(tensors))
    reading = read_prim_func(func)
    plan = next(
        r.plan for r in construct(reading.expression, load_device("h200"), 5).plans
        if "gpu.unrolled" in [p.recipe for p in r.plan.programs]
    )  # fmt: skip
    text = apply_steps_tir(func, reading, lower(plan)).mod.script()
    assert "T.init()" not in text
    assert 'scope="local"' in text


def test_windows_cut_into_remainders_are_refused_where_tvm_keeps_more_than_a_tile(monkeypatch):
    """TVM 0.27 cannot tell the rows that a window's last part reads, and would keep the whole image."""
    tensors = te_operator("conv2d_nchw", n=8, c=3, h=230, w=230, f=64, kh=7, kw=7, stride=2)
    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)

    def outcomes():
        refused = kept = 0
        for ranked in construct(reading.expression, load_device("h200"), 10).plans:
            tile = ranked.plan.programs[0].tiles[0]
            try:
                schedule = apply_steps_tir(func, reading, lower(ranked.plan))
            except MeasureError as error:
                assert "a window is cut" in str(error) and 7 % tile["ry"]
                refused += 1
            else:
                source, _ = generated(schedule)
                assert max(shared_bytes(source)) == max(p.shared_bytes for p in ranked.estimate.programs)
                kept += 1
        return refused, kept

    refused, kept = outcomes()
    assert kept and not refused  # such steps are not planned
    monkeypatch.setattr(gpu_tile_candidates, "slides", lambda *_: False)
    refused, _ = outcomes()
    assert refused
