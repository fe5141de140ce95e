"""Operands packed for register tiles: layout, numbers, what is split off and folded, and the code made of them."""

import re

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.relax, pytest.mark.optimised]

from tvm import s_tir, te, topi  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.codegen.tensorir_packing import index_map  # noqa: E402
from roller_tvm.planner import Plan, RProgram, RTile, construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relax.kernels import packed_parameters, split_packing, taking_packed  # noqa: E402
from roller_tvm.roller.features import Features  # noqa: E402
from roller_tvm.roller.steps import Pack  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import covering, sampled  # noqa: E402

CPU = device("avx512")
#: Its plans are for vectors of 16; what is executed has to run on whatever CPU is here.
HERE, WIDE = (tvm.target.Target({"kind": "llvm", "mcpu": c, "num-cores": 2}) for c in ("core-avx2", "skylake-avx512"))
RNG = np.random.default_rng(5)


def values(tensors):
    return [RNG.standard_normal([int(e) for e in t.shape]).astype("float32") for t in tensors]


def run(mod, inputs, out):
    result = tvm.runtime.tensor(np.zeros([int(e) for e in out.shape], "float32"))
    tvm.compile(mod, HERE)(*map(tvm.runtime.tensor, inputs), result)
    return result.numpy()


def convolution(layout="OHWI", size=14, channels=16, outputs=64, kernel=3):
    data = te.placeholder((1, size, size, channels), name="data")
    shapes = {"O": outputs, "I": channels, "H": kernel, "W": kernel}
    weights = te.placeholder([shapes[c] for c in layout], name="weights")
    out = topi.nn.conv(data, weights, 1, kernel // 2, 1, 1, "NHWC", layout, "float32")
    return [data, weights, topi.nn.relu(out)]


def product(m=48, n=2048, k=64):
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    return [a, b, topi.matmul(a, b)]


def batched():
    a, b = te.placeholder((4, 24, 32), name="a"), te.placeholder((4, 32, 48), name="b")
    return [a, b, topi.nn.batch_matmul(a, b, transpose_b=False)]


CASES = {
    "convolution OHWI": (convolution(), (1,)),
    "convolution HWIO": (convolution("HWIO", outputs=48), (1,)),
    "pointwise": (convolution(kernel=1), (1,)),
    "product with a constant": (product(n=96), (1,)),
    "copied panels": (product(), ()),
    "several products": (batched(), (1,)),
}


@pytest.mark.parametrize("name", sampled(CASES, 3))
def test_packed_it_computes_the_same(name):
    tensors, constants = CASES[name]
    func = te.create_prim_func(tensors, index_dtype_override="int64")
    reading = read_prim_func(func, constants=constants)
    inputs = values(tensors[:-1])
    wanted = run(tvm.IRModule({"main": func}), inputs, tensors[-1])
    packs = 0
    for ranked in construct(reading.expression, CPU, top=3).plans:
        steps = lower(ranked.plan)
        packs += sum(isinstance(step, Pack) for step in steps)
        schedule = apply_steps_tir(func, reading, steps)
        np.testing.assert_allclose(run(schedule.mod, inputs, tensors[-1]), wanted, rtol=1e-4, atol=1e-4)
        replayed = s_tir.Schedule(func)
        schedule.trace.apply_to_schedule(replayed, remove_postproc=False)
        tvm.ir.assert_structural_equal(replayed.mod, schedule.mod)
        kernel, packed = split_packing(schedule.mod["main"], dict(enumerate(inputs)), HERE)
        assert not packed_parameters(kernel)
        assert [n for n in packed if packed[n].shape != inputs[n].shape] == list(constants)
        np.testing.assert_array_equal(
            run(tvm.IRModule({"main": kernel}), [packed[n] for n in range(len(inputs))], tensors[-1]),
            run(schedule.mod, inputs, tensors[-1]),
        )
    assert packs


@pytest.mark.parametrize(("m", "n", "dtype"), covering([(1, 50), (12, 133), (3, 17)], ["float64", "float32", "int8"]))
def test_constants_packed_with_zeros_behind_their_edge(m, n, dtype):
    a, b = te.placeholder((m, 24), dtype, "a"), te.placeholder((24, n), dtype, "b")
    k = te.reduce_axis((0, 24), "k")
    wide = "int32" if dtype == "int8" else dtype
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k].astype(wide) * b[k, j].astype(wide), k), "c")
    func = te.create_prim_func([a, b, c])
    reading = read_prim_func(func, constants=(1,))
    inputs = [RNG.integers(-9, 9, [int(e) for e in t.shape]).astype(dtype) for t in (a, b)]
    wanted = inputs[0].astype(wide) @ inputs[1].astype(wide)
    found = 0
    for ranked in construct(reading.expression, CPU, 30, Features.of_tensor_ir(CPU)).plans:
        steps = lower(ranked.plan)
        if not any(program.choice("padded") for program in ranked.plan.programs):
            continue
        found += 1
        scheduled = apply_steps_tir(func, reading, steps).mod["main"]
        kernel, packed = split_packing(scheduled, dict(enumerate(inputs)), HERE)
        assert packed[1].size > inputs[1].size and np.count_nonzero(packed[1]) == np.count_nonzero(inputs[1])
        for own in (kernel, taking_packed(scheduled)):  # as a network runs it, and as it is measured
            result = tvm.runtime.tensor(np.full((m, n), 77, wide))
            tvm.compile(tvm.IRModule({"main": own}), HERE)(*map(tvm.runtime.tensor, packed.values()), result)
            np.testing.assert_array_equal(result.numpy(), wanted)
        if found == 2:
            return
    assert found


def test_digits_are_those_of_the_array_reshaped():
    step = Pack("w", "conv", (0, 1, 0, 1), (4, 2, 8, 3))
    weights = RNG.integers(0, 99, (32, 6))
    packed = np.empty((4, 2, 8, 3), weights.dtype)
    for index in np.ndindex(weights.shape):
        packed[tuple(index_map(step)(*index))] = weights[index]
    np.testing.assert_array_equal(packed, weights.reshape(4, 8, 2, 3).transpose(0, 2, 1, 3))


@pytest.mark.parametrize(
    ("rows", "columns", "vectors"), [((1, 14), 32, 16), ((2, 7), 32, 16), ((1, 4), 64, 16), ((2, 14), 16, 16)]
)
def test_a_register_tile_stays_in_registers(rows, columns, vectors):
    tensors = convolution(channels=64)
    func = te.create_prim_func(tensors, index_dtype_override="int64")
    reading = read_prim_func(func, constants=(1,))
    best = construct(reading.expression, CPU, top=1).best.plan
    *before, program = best.programs
    extents = {a.name: a.extent for a in best.expression.stage(program.anchor).axes}
    tile = {a: 1 for a in extents} | {"yy": rows[0], "xx": rows[1], "ff": columns}
    choices = (("order:ff", 0), ("order:yy", 1), *([("vector", vectors)] if vectors < columns else []))
    tiles = (RTile("l2", tuple(extents.items())), RTile("register", tuple(tile.items())))
    forced = RProgram(program.recipe, program.anchor, program.output, tiles, program.inlined, (), choices)
    plan = Plan(best.expression, best.device, (*before, forced))
    mod = apply_steps_tir(func, reading, lower(plan)).mod
    fused, others, spilled = innermost(tvm.compile(mod, WIDE).mod.inspect_source("asm"))
    assert fused % (rows[0] * rows[1] * columns // vectors) == 0
    assert spilled == 0 and others <= fused


def innermost(assembly):
    """Multiply-adds, other instructions and accesses of the stack in the shortest loop that multiplies."""
    labels, code, loops = {}, [], []
    for line in (text.split("#")[0].strip() for text in assembly.splitlines()):
        if match := re.fullmatch(r"([.\w$]+):", line):
            labels[match[1]] = len(code)
        elif line and not line.startswith("."):
            code.append(line)
            words = line.split()
            if words[0].startswith("j") and words[0] != "jmp" and words[-1] in labels:
                loops.append(code[labels[words[-1]] :])
    loops = [loop for loop in loops if any("fmadd" in line for line in loop)]
    body = min(loops, key=len)
    fused = sum("fmadd" in line for line in body)
    return fused, len(body) - fused, sum("(%rsp" in line for line in body)


@pytest.mark.parametrize("shape", [(64, 96, 48, None), (24, 40, 32, 4), (13, 64, 30, None), (33, 17, 24, 2)])
def test_rows_are_turned_while_they_are_copied(shape):
    """No constant: a panel is copied in each run, and its vectors lie along what were rows."""
    m, n, k, batch = shape
    first = () if batch is None else (batch,)
    a, b = te.placeholder((*first, m, k), name="a"), te.placeholder((*first, n, k), name="b")
    tensors = [a, b, topi.nn.batch_matmul(a, b, transpose_b=True) if batch else topi.nn.dense(a, b)]
    inputs = values(tensors[:-1])
    expected = inputs[0] @ np.swapaxes(inputs[1], -1, -2)
    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    plans = construct(reading.expression, device("avx2"), 200, Features(turned_copies=True)).plans
    turned = [r.plan for r in plans if any(p.recipe == "cpu.tiled" and p.staged == ("b",) for p in r.plan.programs)]
    assert turned
    for plan in turned[:6]:
        mod = apply_steps_tir(func, reading, tuple(lower(plan))).mod
        np.testing.assert_allclose(run(mod, inputs, tensors[-1]), expected, rtol=1e-4, atol=1e-4, err_msg=str(plan))
        assert not packed_parameters(mod["main"]), "nothing is split off: b is given"
