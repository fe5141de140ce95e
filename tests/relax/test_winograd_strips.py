"""Winograd's algorithm in strips: what the planned kernels compute, and the memory that a core keeps of each."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

import tvm_ffi  # noqa: E402
from tvm import relax, te, tirx  # noqa: E402
from tvm.s_tir import transform  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.codegen.tensorir_packing import constant_parameters  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relax.arrangement import Arrangement, Convolution  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.layout_cost import LayoutCosts  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare  # noqa: E402
from roller_tvm.roller.features import Features  # noqa: E402
from roller_tvm.te.numbering import PARALLEL  # noqa: E402
from roller_tvm.te.winograd import transformed_weights  # noqa: E402
from roller_tvm.tir.nodes import structurally_equal  # noqa: E402
from roller_tvm.tir.read import read_prim_func  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402
from .networks import LLVM, default, module, run, values  # noqa: E402

CPU = device("avx512")
#: Images, channels, filters, rows, columns; rows of tiles of a strip; channels of a block; outputs of a tile.
KERNELS = [
    ((1, 16, 16, 16, 16), 1, 0, 4), ((2, 32, 16, 8, 24), 2, 0, 4), ((2, 32, 48, 24, 16), 2, 16, 4),
    ((3, 16, 32, 16, 20), 4, 16, 4), ((1, 16, 16, 12, 8), 2, 16, 2), ((2, 16, 16, 8, 8), 1, 0, 2),
]  # fmt: skip


def convolution(n, c, f, h, w, padding=(1, 1, 1, 1)):
    return Convolution((n, c, h, w), (f, c, 3, 3), (1, 1), padding, (1, 1), 1, "float32", "float32")


def planned(conv, strip, block, tile):
    """The kernel in slices, as scheduled, and how many there are."""
    inputs, out = conv.compute(Arrangement(block), tile, strip)
    func = te.create_prim_func([*inputs, out])
    reading = read_prim_func(func, "winograd")
    found = construct(reading.expression, CPU, 200, Features.of_tensor_ir(CPU)).plans
    plan = next(ranked.plan for ranked in found if ranked.plan.slices)
    return func, apply_steps_tir(func, reading, lower(plan)), plan.slices


@pytest.mark.parametrize("shape, strip, block, tile", sampled(KERNELS, 4))
def test_slices_compute_the_convolution(shape, strip, block, tile):
    conv, arrangement = convolution(*shape), Arrangement(block)
    _, schedule, slices = planned(conv, strip, block, tile)
    assert slices == shape[0] * shape[3] // (tile * strip)
    x, w = values(*conv.data), values(*conv.weights)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    wanted = arrangement.array(np.einsum("ncyxpq,ocpq->noyx", views, w, optimize=True))
    result = tvm.runtime.tensor(np.full(wanted.shape, np.nan, "float32"))
    kernel = tvm.compile(schedule.mod, "llvm")["main"]
    kernel(*map(tvm.runtime.tensor, (arrangement.array(x), transformed_weights(w, tile))), result)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("turned", [False, True])
def test_slices_of_another_operator(turned):
    """Products whose sums of columns follow: slice by slice where the slices number the outermost rows of both."""
    a, b = te.placeholder((8, 16, 32), name="a"), te.placeholder((32, 48), name="b")
    k, i = te.reduce_axis((0, 32), name="k"), te.reduce_axis((0, 16), name="i")
    m = te.compute((8, 16, 48), lambda n, y, x: te.sum(a[n, y, k] * b[k, x], axis=k), name="m")
    shape, place = ((48, 8), lambda x, n: (n, x)) if turned else ((8, 48), lambda n, x: (n, x))
    last = te.compute(shape, lambda *at: te.sum(m[place(*at)[0], i, place(*at)[1]], axis=i), name="last")
    func = te.create_prim_func([a, b, last])
    reading = read_prim_func(func, "sums")
    found = construct(reading.expression, CPU, 40, Features.of_tensor_ir(CPU)).plans
    sliced = [ranked.plan for ranked in found if ranked.plan.slices]
    assert bool(sliced) != turned and found
    x, w = values(8, 16, 32), values(32, 48)
    wanted = np.einsum("nyk,kx->xn" if turned else "nyk,kx->nx", x, w)
    plan = sliced[0] if sliced else found[0].plan
    result = tvm.runtime.tensor(np.full(wanted.shape, np.nan, "float32"))
    kernel = tvm.compile(apply_steps_tir(func, reading, lower(plan)).mod, "llvm")["main"]
    kernel(*map(tvm.runtime.tensor, (x, w)), result)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_core_keeps_one_slice():
    """One parallel loop, and inside of it memory for the tiles of one strip."""
    _, schedule, slices = planned(convolution(2, 32, 48, 24, 16), 2, 16, 4)
    narrowed = tvm.transform.Sequential([
        transform.LowerInitBlock(), transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(), transform.CompactBufferAllocation(),
    ])(schedule.mod)  # fmt: skip
    found, parallel = {}, []
    tvm_ffi.structural_walk(narrowed["main"].body, [
        (tvm.s_tir.SBlock, lambda block: found.update({b.name: list(map(int, b.shape)) for b in block.alloc_buffers})),
        (tirx.For, lambda loop: parallel.append(int(loop.extent)) if int(loop.kind) == PARALLEL else None),
    ])  # fmt: skip
    assert parallel == [slices]
    assert found["transformed"] == [1, 6, 6, 2, 8, 16] and found["product"] == [1, 6, 6, 3, 8, 16]


def test_a_record_of_slices_is_replayed():
    func, schedule, _ = planned(convolution(2, 32, 48, 24, 16), 2, 16, 4)
    again = tvm.s_tir.Schedule(func)
    tvm.s_tir.schedule.Trace.apply_json_to_schedule(schedule.trace.as_json(), again)
    assert structurally_equal(again.mod["main"], schedule.mod["main"])


def test_strips_that_are_offered():
    assert convolution(1, 64, 64, 56, 56).strips(4) == (0, 1, 2)
    assert convolution(1, 64, 64, 28, 28).strips(4) == (0,)  # one strip of seven rows of seven tiles is all
    assert convolution(8, 64, 64, 28, 28).strips(4) == (0, 7)
    assert convolution(1, 64, 64, 30, 56).strips(4) == (0,)  # tiles go over the edge


def test_a_network_has_them_where_they_pay():
    """What lies between is larger than a core's cache stage by stage; with what follows the convolution."""

    def body(builder, x):
        y = builder.emit(relax.op.nn.conv2d(x, relax.const(values(64, 64, 3, 3)), padding=1))
        y = builder.emit(relax.op.add(y, relax.const(values(1, 64, 1, 1))))
        return builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(y, x))))

    mod, x = module(body, (2, 64, 56, 56)), values(2, 64, 56, 56)
    costs, conv = LayoutCosts(CPU), convolution(2, 64, 64, 56, 56)
    assert costs.tile(conv, Arrangement(16)) == 4 and costs.strip(conv, Arrangement(16), 4) > 0
    prepared = prepare(PlanLayout(LLVM, CPU, "blocked")(mod), LLVM, device=CPU)
    (func,) = (f for var, f in prepared.functions_items() if "winograd" in var.name_hint)
    expression = read_prim_func(func, "winograd", constant_parameters(func)).expression
    assert construct(expression, CPU, 1, Features.of_tensor_ir(CPU)).best.plan.slices == 2 * 14 // costs.strip(
        conv, Arrangement(16), 4
    )
    got, wanted = run(build(prepared, LLVM, device=CPU), x)[0], default(mod, x)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())
